"""What `specsim sweep` is asked: a scenario, flags over it and a grid, resolved to cells, questions and traces."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specsim.cli.profile_input import StoredProfiles
from specsim.cli.scenario_input import in_scenario, read_workload
from specsim.cli.scenario_options import described
from specsim.cli.single_input import chosen_policy, grown, overruled
from specsim.cli.sweep_axes import Axis, Over

if TYPE_CHECKING:
    from scenarios.loader import ScenarioFile
    from scenarios.workload import WorkloadSpec
    from specsim.config import PolicySpec
    from specsim.planner.question import Question
    from specsim.planner.sweep import Cell, SweepJob
    from specsim.planner.sweep_find import Find
    from specsim.traces.model import Trace

__all__ = ["MOST_POINTS", "Sweep", "read_find", "read_sweep"]

MOST_POINTS = 20_000
"""The answer has every metric of every point."""


_IDLE = (
    "Policy static:0 is speculation that is loaded and never used: the drafter keeps its memory and its machinery its "
    "share of every step. Policy off has neither, so that the two are not the same."
)


@dataclass(frozen=True)
class Sweep:
    """A sweep, and what is to be said of it."""

    job: SweepJob
    items: Mapping[tuple[Any, ...], ScenarioFile]
    """The scenario of every point, by `SweepPoint.of_scenario`, for the store."""
    axes: tuple[Axis, ...]
    against: Mapping[str, str]
    notes: tuple[str, ...]
    find: Mapping[str, Any] | None = None
    """What is searched, and where; None: the grid is run."""

    @property
    def drafting(self) -> list[Question]:
        """Questions that some point asks with drafts; the others take nothing from what is known of acceptance."""
        points = (point for cell in self.job.cells for point in cell.points)
        places = sorted({point.question for point in points if point.policy.num_spec_tokens})
        return [self.job.questions[place] for place in places]

    def says(self) -> dict[str, Any]:
        """The part of the answer that repeats what was asked, and where its numbers are from."""
        questions = self.job.questions
        profiles = {q.on.profile.sha256: q.on.profile for q in questions}
        return {
            "axes": [{"name": axis.name, "values": list(axis.values)} for axis in self.axes],
            "against": dict(self.against) or None,
            "find": self.find,
            "seeds": list(self.job.seeds),
            "profiles": [
                {"name": p.name, "kind": p.kind, "sha256": p.sha256, "relative_error": p.relative_error}
                for p in profiles.values()
            ],
            "acceptance": list(dict.fromkeys(q.acceptance_source for q in questions)),
            "traces": [
                {"source": trace.meta.source, "requests": len(trace), "rate_per_s": trace.rate_per_s or None}
                for trace in self.job.traces
            ],
            "notes": list(self.notes),
            "warnings": list(dict.fromkeys(w for trace in self.job.traces for w in trace.meta.warnings)),
        }

    def inputs(self) -> dict[str, Any]:
        """What decides the id: same inputs, same answer."""
        from specsim.traces.write import fingerprint

        cells = [
            [cell.values, cell.refused, cell.base, [asdict(point) for point in cell.points]] for cell in self.job.cells
        ]
        return {
            "axes": [[axis.name, list(axis.values)] for axis in self.axes],
            "against": dict(self.against),
            "find": self.find,
            "seeds": list(self.job.seeds),
            "questions": [question.identity() for question in self.job.questions],
            "traces": [fingerprint(trace) for trace in self.job.traces],
            # in full they are as many as the points
            "cells_sha256": hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest(),
        }


@dataclass
class _Reader:
    """Cells one by one; questions and traces that are the same are shared."""

    base: ScenarioFile
    values: Mapping[str, Any]
    """Flags as they were typed, None or empty where not given."""
    seeds: tuple[int, ...]
    kept: StoredProfiles
    questions: list[Question] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    items: dict[tuple[Any, ...], ScenarioFile] = field(default_factory=dict)
    """Scenarios, by `SweepPoint.of_scenario`."""
    _question_at: dict[str, int] = field(default_factory=dict)
    _traces_at: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _acceptance: dict[str, Any] = field(default_factory=dict)

    def cell(self, axes: Sequence[Axis], texts: Sequence[str]) -> Cell:
        """One combination of values.

        Raises:
            InputError: a value that no scenario could have. A combination that cannot be is a refused cell instead.
        """
        from specsim.errors import CapacityError, InputError, ScenarioError
        from specsim.planner.sweep import Cell, SweepPoint

        shown = tuple((axis.name, text) for axis, text in zip(axes, texts, strict=True))
        place = " ".join(f"{name}={text}" for name, text in shown)
        try:
            item, policy, load, rate = self._laid_over(axes, texts)
        except InputError as error:
            raise type(error)(f"at {place}: {error}" if place else str(error)) from error
        workload = item.workload
        assert workload is not None
        if workload.concurrency is not None and (load is not None or rate is not None):
            raise ScenarioError(
                f"at {place}: load and rate change arrival times, and {item.path.name} keeps {workload.concurrency} "
                f"requests in flight; sweep concurrency, or give --arrivals poisson:RATE"
            )
        with in_scenario(item.path.name, flags=described(dict(self.values))):
            traces = self._traces(item, workload)
        try:
            question = self._question(item, policy, traces)
            self.questions[question].check_policy(policy)
        except (CapacityError, ScenarioError) as error:
            return Cell(shown, refused=str(error))
        points = []
        for seed, trace in zip(self.seeds, traces, strict=True):
            scale = 1.0 if load is None else load
            if rate is not None:
                scale = rate / self._rate(item, trace)
            points.append(
                SweepPoint(
                    question=question,
                    trace=trace,
                    policy=policy,
                    seed=seed,
                    rate_scale=scale,
                    concurrency=workload.concurrency,
                    warmup_share=item.plan.warmup_share,
                )
            )
            self.items[points[-1].of_scenario] = item
        return Cell(shown, tuple(points))

    def _laid_over(
        self, axes: Sequence[Axis], texts: Sequence[str]
    ) -> tuple[ScenarioFile, PolicySpec, float | None, float | None]:
        """(scenario, policy, load, rate) of a combination."""
        from scenarios.loader import with_value
        from specsim.config import PolicySpec

        item, values = self.base, dict(self.values)
        special: dict[str, Any] = {}
        for axis, text in zip(axes, texts, strict=True):
            if axis.key is not None:
                item = with_value(item, *axis.key, text)
            elif axis.option is not None:
                values[str(axis.option.name)] = text if axis.option.name == "policy" else axis.converted(text)
            else:
                special[axis.name] = axis.converted(text)
        policy_text = values.pop("policy")
        k = special.get("k")
        if k:
            values["num_spec_tokens"] = str(k)
        item = overruled(item, values, self.seeds[0], command="sweep", kept=self.kept)
        if k is not None:
            policy = PolicySpec("static", k) if k else PolicySpec("off")
        else:
            policy, assumed = chosen_policy(item, policy_text, command="sweep")
            self.notes.update(dict.fromkeys(assumed))
        return item, policy, special.get("load"), special.get("rate")

    def _traces(self, item: ScenarioFile, workload: WorkloadSpec) -> tuple[int, ...]:
        """A trace a seed; the same one for all where nothing of it is drawn."""
        from specsim.traces.write import fingerprint

        key = repr(workload)
        if key not in self._traces_at:
            read: list[Trace] = []
            prints: list[str] = []
            for seed in self.seeds:
                if len(prints) == 2 and prints[0] == prints[1]:  # nothing is drawn, so nothing will be
                    break
                read.append(read_workload(workload, folder=item.folder, seed=seed))
                prints.append(fingerprint(read[-1]))
            if len(prints) > 1 and prints[0] == prints[1]:
                read = read[:1]
            first = len(self.traces)
            self.traces += read
            self._traces_at[key] = tuple(first + min(n, len(read) - 1) for n in range(len(self.seeds)))
        return self._traces_at[key]

    def _rate(self, item: ScenarioFile, trace: int) -> float:
        """Requests per second of load 1: what was asked of a drawn workload, what a log has."""
        from specsim.errors import TraceError
        from specsim.traces.options import parse_arrivals

        workload = item.workload
        assert workload is not None
        if workload.rate_per_s is not None:
            return workload.rate_per_s
        if workload.arrivals is not None:
            return parse_arrivals(workload.arrivals).rate_per_s
        rate = self.traces[trace].rate_per_s
        if not rate > 0:
            raise TraceError(f"{self.traces[trace].meta.source}: has no rate of its own to scale; sweep concurrency")
        return rate

    def _question(self, item: ScenarioFile, policy: PolicySpec, traces: Sequence[int]) -> int:
        from scenarios.resolve import by_task, resolve
        from specsim.planner.question import acceptance_fingerprint

        speculation = grown(item.speculation, policy)
        trace = self.traces[traces[0]]
        tasks = traces[0] if trace.task is not None else None
        key = repr((item.deployment, speculation, item.slo, tasks))
        if key not in self._question_at:
            profile = self.kept.profile_of(item.deployment, item.folder)
            question = by_task(
                resolve(item.deployment, speculation, item.slo, folder=item.folder, profile=profile), trace,
                folder=item.folder,
            )  # fmt: skip
            same = self._acceptance.setdefault(acceptance_fingerprint(question.acceptance), question.acceptance)
            self._question_at[key] = len(self.questions)
            self.questions.append(replace(question, acceptance=same))
        return self._question_at[key]


def read_sweep(
    base: ScenarioFile,
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    *,
    seeds: tuple[int, ...],
    against: Mapping[str, str],
    kept: StoredProfiles,
) -> Sweep:
    """All cells of the grid, the first axis slowest.

    Raises:
        InputError: a value that cannot be, or too many points.
    """
    from specsim.errors import ScenarioError

    combinations = list(itertools.product(*(axis.values for axis in axes)))
    if len(combinations) * len(seeds) > MOST_POINTS:
        raise ScenarioError(
            f"the grid has {len(combinations):,} points, with {len(seeds)} seeds {len(combinations) * len(seeds):,} "
            f"runs; at most {MOST_POINTS:,} at once"
        )
    _refuse_same(_Reader(base, values, seeds, kept), axes)
    reader = _Reader(base, values, seeds, kept)
    cells = [
        replace(reader.cell(axes, texts), base=at)
        for texts, at in zip(combinations, _bases(axes, combinations, against), strict=True)
    ]
    return _sweep(reader, cells, axes, against)


def _bases(
    axes: Sequence[Axis], combinations: Sequence[tuple[str, ...]], against: Mapping[str, str]
) -> list[int | None]:
    """For every combination the place of the one that it is compared with; None where it is one itself."""
    at = {texts: n for n, texts in enumerate(combinations)}
    names = [axis.name for axis in axes]
    wanted = [tuple(against.get(name, text) for name, text in zip(names, texts, strict=True)) for texts in combinations]
    return [None if base == texts else at[base] for base, texts in zip(wanted, combinations, strict=True)]


def _sweep(reader: _Reader, cells: Sequence[Cell], axes: Sequence[Axis], against: Mapping[str, str]) -> Sweep:
    from specsim.errors import ScenarioError
    from specsim.planner.sweep import SweepJob

    if all(cell.refused is not None for cell in cells):
        raise ScenarioError(f"no point of the grid is possible; the first: {cells[0].refused}")
    drawn = {point.trace for cell in cells for point in cell.points[:1]} != {
        point.trace for cell in cells for point in cell.points
    }
    notes = list(reader.notes)
    if len(reader.seeds) > 1:
        covered = "arrivals, lengths and luck" if drawn else "luck alone, since the requests are those of the log"
        notes.append(f"A seed is the same requests and the same luck at every point; intervals cover {covered}.")
    policies = {point.policy for cell in cells for point in cell.points}
    if any(policy.kind == "static" and not policy.num_spec_tokens for policy in policies):
        notes.append(_IDLE)
    job = SweepJob(tuple(cells), reader.questions, reader.traces, reader.seeds)
    found = Sweep(job, reader.items, tuple(axes), against, tuple(notes))
    doubts = dict.fromkeys(doubt for question in found.drafting for doubt in question.doubts)
    return replace(found, notes=(*notes, *doubts))


def _refuse_same(reader: _Reader, axes: Sequence[Axis]) -> None:
    """Values of an axis that are one value in two spellings, such as two names of a GPU.

    Raises:
        ScenarioError: the axis and both.
    """
    from specsim.errors import InputError, ScenarioError

    for axis in axes:
        seen: dict[str, str] = {}
        for text in axis.values if len(axis.values) > 1 and axis.kind in ("flag", "key") else ():
            try:
                item, policy, _, _ = reader._laid_over([axis], [text])
                means = repr((_spelt_out(item), policy))
            except InputError:  # told with the point that it is of
                continue
            if means in seen:
                raise ScenarioError(
                    f"--grid {axis.name} has {seen[means]} and {text}, which are the same; give each value once"
                )
            seen[means] = text


def _spelt_out(item: ScenarioFile) -> tuple[Any, ...]:
    """What a scenario says, with names that have several spellings in one of them."""
    from scenarios.hardware import known_gpu
    from scenarios.models import known_model
    from specsim.traces.options import parse_arrivals
    from specsim.traces.recipe import parse_lengths

    workload = asdict(item.workload) if item.workload is not None else {}
    for name in ("isl", "osl"):
        if workload.get(name) is not None:
            workload[name] = parse_lengths(str(workload[name]), name)
    if workload.get("arrivals") is not None:
        workload["arrivals"] = parse_arrivals(workload["arrivals"])
    names = []
    for name, find in ((item.deployment.gpu, known_gpu), (item.deployment.target, known_model)):
        found = find(name)
        names.append(name if found is None else found.name)
    deployment = asdict(item.deployment) | {"gpu": names[0], "target": names[1]}
    return deployment, item.speculation, item.slo, item.plan, workload


def read_find(
    base: ScenarioFile,
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    over: Over,
    *,
    kind: str,
    width: float,
    seeds: tuple[int, ...],
    against: Mapping[str, str],
    kept: StoredProfiles,
) -> tuple[Sweep, Find]:
    """A search along one axis for every combination of the others; places are read when they are looked at, the lower
    end of each at once.

    Raises:
        InputError: see `read_sweep`; or a crossover that is to be found against nothing.
    """
    from specsim.errors import ScenarioError
    from specsim.planner.sweep_find import Find

    if kind == "crossover" and not against:
        raise ScenarioError("--find crossover needs --against, e.g. --grid k=0,3 --against k=0")
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    bases = _bases(axes, combinations, against) if against else [None] * len(combinations)
    if kind == "crossover" and all(base is None for base in bases):
        point = ";".join(f"{name}={value}" for name, value in against.items())
        raise ScenarioError(
            f"--against {point}: is the whole grid, so that nothing is compared; add other values to it"
        )
    _refuse_same(_Reader(base, values, seeds, kept), axes)
    reader = _Reader(base, values, seeds, kept)

    def cell_at(index: int, x: float) -> Cell:
        text = str(int(x)) if over.whole else f"{x:.12g}"
        return reader.cell([*axes, over.axis], [*combinations[index], text])

    cells = [cell_at(index, over.low) for index in range(len(combinations))]
    for index in range(len(combinations)):  # both ends are looked at first, and a wrong one is told before that
        cell_at(index, over.high)
    if kind == "capacity" and any(q.slo.ttft_s is q.slo.tpot_s is q.slo.e2e_s is None for q in reader.questions):
        raise ScenarioError("--find capacity needs an objective to hold: give --ttft, --tpot or --e2e")
    asked = _sweep(reader, cells, axes, against)
    names = [axis.name for axis in axes]
    find = Find(
        kind=kind,
        low=over.low,
        high=over.high,
        width=width,
        whole=over.whole,
        cell_at=cell_at,
        bases=tuple(bases),
        values=tuple(tuple(zip(names, texts, strict=True)) for texts in combinations),
    )
    spec = {"kind": kind, "over": over.axis.name, "low": over.low, "high": over.high, "width": width}
    return replace(asked, find=spec), find
