"""One measurement of acceptance: the target writes, the methods draft, and every finished piece is kept at once.

Greedy: each text is written once, every method is held against it. At a temperature the rounds themselves are run, for
every method and k. The result does not depend on how many requests run at a time, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrate.acceptance.journal import Journal
from calibrate.acceptance.methods import Method
from calibrate.acceptance.positions import leading_matches
from calibrate.acceptance.prompts import Prompt
from calibrate.acceptance.rounds import Finished, run_rounds
from calibrate.drafters import Drafter
from calibrate.drafters.base import Draftee
from calibrate.engine.verify import Sampling, stream
from calibrate.models import FlatModel
from specsim.acceptance.measured_on import MEASURED_KEY

__all__ = ["AcceptanceJob", "measure_acceptance", "rounds_on_text", "rows"]


@dataclass(frozen=True)
class AcceptanceJob:
    """What is measured."""

    target: FlatModel
    prompts: Sequence[Prompt]
    methods: Sequence[Method]
    stops: Collection[int]
    k_max: int
    """Most drafts of a round where acceptance is measured by position."""
    ks: Sequence[int]
    """Drafts a round where it is measured by round."""
    sampling: Sampling
    batch: int
    """Requests that run at a time."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What it is measured on, which every row says."""
    progress: Callable[[int, int, str], None] = lambda done, total, what: None

    def by_position(self, method: Method) -> bool:
        """Whether a method's runs are known at every position."""
        return self.sampling.is_greedy and method.positions is not None


def measure_acceptance(job: AcceptanceJob, journal: Journal) -> None:
    """Do what is not in the journal yet.

    Pieces: `("text", request)` with the output and the runs of methods by position; `(method, k, request)` with rounds.
    """
    units = _units(job)
    done = sum(key in journal.done for key in units)
    job.progress(done, len(units), "measuring")

    def keep(key: tuple[Any, ...], piece: Mapping[str, Any]) -> None:
        nonlocal done
        journal.add(key, piece)
        done += 1
        job.progress(done, len(units), str(key[0]))

    if job.sampling.is_greedy:
        _texts(job, journal, keep)
    for method in job.methods:
        if job.by_position(method):
            continue
        for k in job.ks:
            _rounds(job, method, k, journal, keep)


def _units(job: AcceptanceJob) -> list[tuple[Any, ...]]:
    requests = range(len(job.prompts))
    units: list[tuple[Any, ...]] = [("text", n) for n in requests] if job.sampling.is_greedy else []
    for method in job.methods:
        if not job.by_position(method):
            units += [(method.name, k, n) for k in job.ks for n in requests]
    return units


def _texts(job: AcceptanceJob, journal: Journal, keep: Callable[[tuple[Any, ...], Mapping[str, Any]], None]) -> None:
    left = [(n, prompt) for n, prompt in enumerate(job.prompts) if ("text", n) not in journal.done]
    if not left:
        return
    longest = max(len(prompt.token_ids) + prompt.max_tokens for _, prompt in left)
    positions = {
        method.name: method.positions(longest)
        for method in job.methods
        if job.by_position(method) and method.positions is not None
    }
    for finished in run_rounds(job.target, left, stops=job.stops, batch=job.batch):
        prompt = job.prompts[finished.number].token_ids
        piece: dict[str, Any] = {"output": finished.output}
        for name, drafting in positions.items():
            found = drafting.runs(prompt, finished.output, job.k_max)
            piece[name] = (found.run + 1).tolist()
            if found.drafts is not None:
                piece[f"{name}_drafts"] = found.drafts.tolist()
        keep(("text", finished.number), piece)


def _rounds(
    job: AcceptanceJob,
    method: Method,
    k: int,
    journal: Journal,
    keep: Callable[[tuple[Any, ...], Mapping[str, Any]], None],
) -> None:
    """Rounds of one method at one k, of every request that lacks them."""
    drafter = method.drafter()
    for finished in _finished(job, method, k, drafter, journal):
        piece: dict[str, Any] = {"emitted": finished.emitted, "drafted": finished.drafted}
        if not job.sampling.is_greedy:
            piece["output"] = finished.output
        keep((method.name, k, finished.number), piece)


def _finished(job: AcceptanceJob, method: Method, k: int, drafter: Drafter, journal: Journal) -> Iterator[Finished]:
    left = [(n, prompt) for n, prompt in enumerate(job.prompts) if (method.name, k, n) not in journal.done]
    if method.remembers:  # one after another, so that what is remembered does not depend on who ended first
        first = left[0][0] if left else 0
        for n in range(first):
            source = ("text", n) if job.sampling.is_greedy else (method.name, k, n)
            drafter.learn(n, [job.prompts[n].token_ids[-1], *journal.done[source]["output"]])  # type: ignore[attr-defined]
    if job.sampling.is_greedy and method.looks_up:
        for n, prompt in left:
            output = journal.done["text", n]["output"]
            emitted, drafted = rounds_on_text(drafter, n, prompt.token_ids, output, k)
            yield Finished(n, output, emitted, drafted)
        return
    batch = 1 if method.remembers else job.batch
    yield from run_rounds(job.target, left, stops=job.stops, batch=batch, drafter=drafter, k=k, sampling=job.sampling)


def rounds_on_text(
    drafter: Drafter, request: int, prompt: Sequence[int], output: Sequence[int], k: int
) -> tuple[list[int], list[int]]:
    """(tokens, drafts) of each round of a drafter that needs no model, on a greedy text that is known."""
    generator = stream(Sampling(), request)
    text = list(prompt)
    emitted, drafted = [], []
    while (position := len(text) - len(prompt)) < len(output):
        draftee = Draftee(request, text, len(text) - 1, 0, True, generator)
        drafts = drafter.propose([draftee], k, None)[0].tokens
        tokens = min(leading_matches(drafts, output[position:]) + 1, len(output) - position)
        emitted.append(tokens)
        drafted.append(len(drafts))
        text += output[position : position + tokens]
    drafter.release(request, text)
    return emitted, drafted


def rows(job: AcceptanceJob, journal: Journal) -> list[dict[str, Any]]:
    """The measured requests in the order of the prompts, as `specsim.acceptance.measured` reads them.

    At a temperature every method and k writes a text of its own; `output_tokens` is then that of the last.
    """
    found = []
    for n, prompt in enumerate(job.prompts):
        row: dict[str, Any] = {"request": prompt.name, "task": prompt.task, "prompt_tokens": len(prompt.token_ids)}
        row["output_tokens"] = 0
        figures: dict[str, Any] = {}
        if job.sampling.is_greedy:
            text = dict(journal.done["text", n])
            row["output_tokens"] = len(text["output"])
            row["k_max"] = job.k_max
            figures |= {key: value for key, value in text.items() if key not in ("key", "output")}
        if job.measured:
            row[MEASURED_KEY] = dict(job.measured)
        figures |= {f"{method.name}_tree": method.tree for method in job.methods if method.tree}
        for method in job.methods:
            if job.by_position(method):
                continue
            pieces = {str(k): journal.done[method.name, k, n] for k in job.ks}
            row["output_tokens"] = sum(pieces[str(max(job.ks))]["emitted"])
            figures[f"{method.name}_rounds"] = {k: piece["emitted"] for k, piece in pieces.items()}
            figures[f"{method.name}_rounds_drafts"] = {k: piece["drafted"] for k, piece in pieces.items()}
        found.append(row | figures)
    return found
