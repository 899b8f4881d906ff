"""Published points predicted by simulation, each beside its null model, with nothing fitted row by row.

Models: a closed loop at the point's concurrency, off and on, as `specsim crossover` runs it, or arrivals at its rate.
Protocols: `given` (the row states its acceptance), `catalogue` (it does not: published acceptance of the method), and
`anchored` (rows that differ in load alone: acceptance solved at the lowest load, every other load predicted).
Leaves out: what the engines of the rows do beyond the modelled disciplines. Numbers: the rows' conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specsim.acceptance import AcceptanceModel, PerPosition
from specsim.errors import InputError, ScenarioError
from specsim.executors import run_jobs
from specsim.planner.concurrency import CrossoverSettings, PairedLoop, Point
from specsim.planner.implied import Metric, gain, implied_acceptance
from specsim.planner.null_model import (
    NullModel,
    Round,
    batch_at_rate,
    null_length,
    null_speedup,
    null_speedup_at_rate,
)
from specsim.planner.open_loop import PairedArrivals
from specsim.planner.question import Question

__all__ = ["Case", "Prediction", "Protocol", "Refused", "predict"]

Protocol = Literal["given", "catalogue", "anchor", "anchored", "loaded"]
"""`anchor` is the point at which a sweep's acceptance is solved: it is no prediction. `loaded` is k = 0, where nothing
is accepted or rejected."""


@dataclass(frozen=True, slots=True)
class Case:
    """A published point and the conditions under which it is predicted."""

    id: str
    source: str
    target: str
    gpu: str
    method: str
    unit: str
    question: Question
    settings: CrossoverSettings
    """One concurrency; it does not count where arrivals come at a rate."""
    rate_per_s: float | None
    """Requests per second in an open loop; None: a closed loop."""
    metric: Metric
    measured: float
    """Speed-up as published."""
    baseline: float | None
    """Measured tokens/s, or seconds per output token, without speculation; None: not given."""
    speculative: float | None
    acceptance_given: bool
    acceptance_said: str
    """How the row states it."""
    base: PerPosition
    """Vector that a sweep scales, whatever the row states."""
    null: NullModel
    assumed: tuple[str, ...]
    """What was filled in, in sentences."""
    incomplete: tuple[str, ...] = ()
    """Conditions without which a prediction says little, and that the row does not state."""
    sets: str = ""
    """What in specsim was set by this point, so that its prediction is no test of it; empty: nothing."""
    sweep: str | None = None
    """Name shared by points that differ in load alone."""

    @property
    def load(self) -> float:
        """Requests in flight, or per second."""
        return float(self.settings.concurrency[0]) if self.rate_per_s is None else self.rate_per_s

    def conditions(self) -> tuple[Any, ...]:
        """What decides a simulation, load and acceptance aside; equal for cases that can share one."""
        s = self.settings
        question = self.question
        return (
            question.off.profile.sha256, question.on.profile.sha256, question.off.limits, question.on.limits,
            self.rate_per_s is None, s.prompt, s.output, s.num_spec_tokens, question.on.trees, s.seeds, s.seed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """One point under one protocol."""

    case: Case
    protocol: Protocol
    speedup: float
    low: float
    high: float
    """Interval over luck alone."""
    null: float
    baseline: float
    """Predicted tokens/s, or seconds per output token, of the case's metric."""
    speculative: float
    length: float
    """Mean acceptance length used, bonus included."""
    null_length: float
    warning: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured speed-up, less 1."""
        return self.speedup / self.case.measured - 1.0

    @property
    def null_error(self) -> float:
        """The same of the null model."""
        return self.null / self.case.measured - 1.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A case that turned out not to be simulatable, and why."""

    case: Case
    reason: str


def predict(
    cases: Sequence[Case],
    *,
    processes: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Prediction], list[Refused]]:
    """Every case under every protocol that it allows, in the order of the cases, then of the protocols, and the cases
    that cannot be simulated, such as lengths that do not fit the deployment. One of these never stops the others.

    `progress` is told how many cases were finished.
    """
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        # a sweep stays together, though a batch that runs whole has limits of its own at every load
        key = case.conditions() if case.sweep is None else ("sweep", case.sweep)
        groups.setdefault(key, []).append(case)
    jobs = [tuple(group) for group in groups.values()]
    found = run_jobs(_run, jobs, processes=processes, done=lambda job: progress(len(job)))
    order = {case.id: n for n, case in enumerate(cases)}
    ranks = {"given": 0, "catalogue": 0, "loaded": 0, "anchor": 1, "anchored": 1}
    flat = [prediction for group, _ in found for prediction in group]
    refused = [refusal for _, group in found for refusal in group]
    return (
        sorted(flat, key=lambda p: (order[p.case.id], ranks[p.protocol])),
        sorted(refused, key=lambda r: order[r.case.id]),
    )


def _run(cases: tuple[Case, ...]) -> tuple[list[Prediction], list[Refused]]:
    """Cases that share everything but load and acceptance, with the sweeps among them."""
    loops: dict[float, PairedLoop] = {}
    points: dict[tuple[float, str], Point] = {}

    def loop(case: Case) -> PairedLoop:
        if case.load not in loops:
            if case.rate_per_s is None:
                loops[case.load] = PairedLoop(case.question, case.settings, case.settings.concurrency[0])
            else:
                loops[case.load] = PairedArrivals(case.question, case.settings, case.rate_per_s)
        return loops[case.load]

    def point(case: Case, acceptance: AcceptanceModel) -> Point:
        key = (case.load, repr(acceptance))
        if key not in points:
            points[key] = loop(case).point(acceptance)
        return points[key]

    found: list[Prediction] = []
    refused: list[Refused] = []
    sweeps: dict[str, list[Case]] = {}
    for case in cases:
        acceptance = case.question.acceptance
        length = acceptance.expected_length(case.settings.num_spec_tokens)
        protocol: Protocol = "given" if case.acceptance_given else "catalogue"
        if not case.settings.num_spec_tokens:
            protocol = "loaded"
        try:
            prediction = _prediction(case, protocol, point(case, acceptance), length, _null(case, length), length)
            if not math.isfinite(prediction.speedup):
                raise ScenarioError("outputs are too short: no time per output token can be measured; raise osl")
        except InputError as refusal:
            refused.append(Refused(case, str(refusal)))
            continue
        found.append(prediction)
        if case.sweep is not None:
            sweeps.setdefault(case.sweep, []).append(case)
    for members in sweeps.values():
        if len(members) > 1:
            found += _sweep(members, loop, point)
    return found, refused


def _sweep(
    members: Sequence[Case],
    loop: Callable[[Case], PairedLoop],
    point: Callable[[Case, AcceptanceModel], Point],
) -> list[Prediction]:
    anchor = min(members, key=lambda case: case.load)
    k = anchor.settings.num_spec_tokens
    solved = implied_acceptance(loop(anchor), anchor.base, k, anchor.measured, anchor.metric)
    null_at = _null_length(anchor)
    warning = ""
    if not solved.reached:
        warning = (
            f"no acceptance gives {anchor.measured:.3f} at load {anchor.load:g}: the nearest is "
            f"{gain(solved.point, anchor.metric).mean:.3f} with {solved.length:.2f} tokens a round, taken for the sweep"
        )
    found = []
    for case in members:
        here = solved.point if case is anchor else point(case, solved.acceptance)
        null = _null(case, null_at)
        protocol: Protocol = "anchor" if case is anchor else "anchored"
        found.append(_prediction(case, protocol, here, solved.length, null, null_at, warning))
    return found


def _round(case: Case) -> Round:
    """The point as the null models see it; a lookup verifies what it proposes on average."""
    settings, profile = case.settings, case.question.on.profile
    k = settings.num_spec_tokens
    passes = 0 if profile.draft is None else k if profile.draft_mode == "serial" else 1
    drafts = float(case.question.verified_drafts(k))
    if profile.draft is None and k:
        drafts = case.question.acceptance.expected_drafts(k)
    return Round(case.load, settings.prompt.mean + settings.output.mean / 2.0, drafts, passes)


def _null(case: Case, length: float) -> float:
    if case.rate_per_s is None:
        return null_speedup(case.null, _round(case), length)
    return null_speedup_at_rate(case.null, _round(case), length, case.rate_per_s, case.settings.output.mean)


def _null_length(case: Case) -> float:
    """Length at which the null model gives what was measured; at a rate, the batch is taken as it is without drafts."""
    point = _round(case)
    if case.rate_per_s is not None:
        batch = batch_at_rate(case.null.plain_s, point, case.rate_per_s * case.settings.output.mean)
        point = replace(point, batch=batch)
    return null_length(case.null, point, case.measured)


def _prediction(
    case: Case, protocol: Protocol, point: Point, length: float, null: float, null_at: float, warning: str = ""
) -> Prediction:
    estimate = gain(point, case.metric)
    per_token = case.metric != "throughput"
    return Prediction(
        case=case,
        protocol=protocol,
        speedup=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        null=null,
        baseline=(point.tpot_off_s if per_token else point.throughput_off).mean,
        speculative=(point.tpot_on_s if per_token else point.throughput_on).mean,
        length=length,
        null_length=null_at,
        warning=warning,
    )
