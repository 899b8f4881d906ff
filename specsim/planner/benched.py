"""Runs of a benchmark client held against the simulator: the same requests at the same load, and how far it is off.

Models: the run as the client made it, from the first request to the last, filling and emptying of the engine included;
the requests' own lengths, or those that the file tells of; a closed loop at the concurrency, or an open one at the
rate; where a file has both, the one of the two that lets fewer requests through. Several runs of the same settings are
repeats. Leaves out: what the client saw of queues, which stays out of the prediction; network and tokenizer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specsim.benchmarks.model import FIGURES, Benchmark
from specsim.config import PolicySpec
from specsim.metrics import RunMetrics, summarise
from specsim.planner.judging import BOUND, JUDGED, compared, finite, middle, sign_right
from specsim.planner.question import Question
from specsim.planner.single import SingleRun
from specsim.traces.arrivals import draw_arrivals
from specsim.traces.model import Trace, TraceMeta
from specsim.traces.options import ArrivalProcess

__all__ = ["SCHEMA_VERSION", "Arm", "Predicted", "deployment_of", "held_against", "predicted"]

SCHEMA_VERSION = 1
_SHOWN = (*FIGURES, "mean_acceptance_length")


@dataclass(frozen=True)
class Arm:
    """Runs of the same settings, and how they are simulated."""

    question: Question
    """Deployment, speculation and acceptance."""
    policy: PolicySpec
    runs: tuple[Benchmark, ...]
    """Repeats of one another."""


@dataclass(frozen=True)
class Predicted:
    """The same load in the simulator."""

    figures: Mapping[str, float]
    """Means over luck."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviation over luck, relative to the mean."""
    loop: str = ""
    """`closed` or `open`."""
    running_batch: float = math.nan
    peak_batch: float = math.nan
    preemptions: float = 0.0
    rejected: int = 0


def predicted(arm: Arm, *, luck: int = 5, seed: int = 0) -> Predicted:
    """An arm simulated `luck` times, each with luck (and drawn arrivals) of its own.

    Raises:
        ScenarioError, TraceError: the policy drafts more than is known, or no request fits.
    """
    run = arm.runs[0]
    loops = _loops(run)
    found = {loop: [_metrics(arm, loop, seed + n) for n in range(luck)] for loop in loops}
    # a rate under a cap: what lets fewer requests through is what holds
    loop = min(loops, key=lambda name: statistics.fmean(m.served_requests_per_s for m in found[name]))
    metrics = found[loop]
    values = {name: [float(getattr(m, name)) for m in metrics] for name in _SHOWN}
    means = {name: float(np.mean(own)) for name, own in values.items()}
    return Predicted(
        figures=means,
        spread={name: float(np.std(values[name])) / means[name] if means[name] else math.nan for name in _SHOWN},
        loop=loop,
        running_batch=statistics.fmean(m.running_batch for m in metrics),
        peak_batch=max(m.peak_batch for m in metrics),
        preemptions=statistics.fmean(m.preemptions for m in metrics),
        rejected=max(m.rejected for m in metrics),
    )


def _loops(run: Benchmark) -> tuple[str, ...]:
    if run.concurrency is None:
        return ("open",)
    return ("closed",) if run.rate_per_s is None else ("open", "closed")


def _metrics(arm: Arm, loop: str, seed: int) -> RunMetrics:
    run = arm.runs[0]
    count = len(run.prompt_tokens)
    if loop == "closed" or (run.rate_per_s is None and not run.starts_s):
        arrival_s = np.zeros(count)
    elif run.starts_s:
        arrival_s = np.array(run.starts_s)
    else:
        kind = "even" if run.arrival_cv == 0 else "gamma"
        arrival_s = draw_arrivals(ArrivalProcess(kind, float(run.rate_per_s or 0), run.arrival_cv), count, seed)
    trace = Trace(
        arrival_s=arrival_s,
        prompt_tokens=np.array(run.prompt_tokens, dtype=np.int32),
        output_tokens=np.array(run.output_tokens, dtype=np.int32),
        meta=TraceMeta(f"requests of {run.source}", run.client, "s", "", count, count),
    )
    concurrency = None if loop == "open" or run.concurrency is None else min(run.concurrency, count)
    single = SingleRun(
        question=arm.question, trace=trace, policy=arm.policy, seed=seed, warmup_share=0.0, concurrency=concurrency
    )
    return summarise(single.simulate())


def held_against(
    arms: Sequence[Arm],
    *,
    luck: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] = lambda arms: None,
) -> dict[str, Any]:
    """Every arm beside its prediction, speed-ups of loads that were measured with and without, and a verdict, as JSON.

    Raises:
        ScenarioError, TraceError: see `predicted`.
    """
    rows, found = [], []
    for arm in arms:
        found.append(predicted(arm, luck=luck, seed=seed))
        rows.append(_row(arm, found[-1]))
        progress(1)
    gains = list(_gains(arms, found))
    judged = [row["figures"][name] for row in rows for name in JUDGED if name in row["figures"]]
    signs = [gain["sign_right"] for gain in gains if gain["sign_right"] is not None]
    return {
        "rows": rows,
        "speedups": gains,
        "verdict": {
            "figures": len(judged), "within": sum(figure["within"] for figure in judged), "bound": BOUND,
            "signs": len(signs), "signs_right": sum(signs),
        },
        "range": list(dict.fromkeys(_beyond_range(arms, found))),
        "luck": luck,
        "seed": seed,
    }  # fmt: skip


def _row(arm: Arm, prediction: Predicted) -> dict[str, Any]:
    run = arm.runs[0]
    figures = {
        name: compared([own.figures[name] for own in arm.runs], prediction.figures[name], prediction.spread[name],
                       decides=name in JUDGED)
        for name in FIGURES if all(name in own.figures for own in arm.runs)
    }  # fmt: skip
    lengths = [own.acceptance.length for own in arm.runs if own.acceptance is not None]
    if lengths:
        name = "mean_acceptance_length"
        figures[name] = compared(lengths, prediction.figures[name], prediction.spread[name], decides=False)
    return {
        "load": run.load,
        "concurrency": run.concurrency,
        "rate_per_s": run.rate_per_s,
        "loop": prediction.loop,
        "policy": arm.policy.label,
        "client": run.client,
        "model": run.model,
        "runs": [own.source for own in arm.runs],
        "repeats": len(arm.runs),
        "requests": len(run.prompt_tokens),
        "prompt_tokens_mean": statistics.fmean(run.prompt_tokens),
        "output_tokens_mean": statistics.fmean(run.output_tokens),
        "predicted_running_batch": finite(prediction.running_batch),
        "predicted_preemptions": prediction.preemptions,
        "refused": prediction.rejected,
        "figures": figures,
        "acceptance": {
            "source": arm.question.acceptance_source,
            "length": arm.question.acceptance.expected_length(arm.policy.num_spec_tokens),
        }
        if arm.policy.num_spec_tokens
        else None,
        "notes": list(dict.fromkeys(note for own in arm.runs for note in own.notes)),
    }


def _gains(arms: Sequence[Arm], found: Sequence[Predicted]) -> Iterator[dict[str, Any]]:
    """On over off at the same load: throughput in a closed loop, mean TPOT where the rate is given."""
    off = [(arm, own) for arm, own in zip(arms, found, strict=True) if arm.policy.kind == "off"]
    for arm, own in zip(arms, found, strict=True):
        baseline = _baseline(arm, off)
        if arm.policy.kind == "off" or baseline is None:
            continue
        plain, plain_own = baseline
        name = JUDGED[0] if own.loop == "closed" or arm.runs[0].rate_per_s is None else JUDGED[1]
        if not all(name in run.figures for run in (*arm.runs, *plain.runs)):
            continue
        faster = name == JUDGED[0]
        ratios = [_ratio(on.figures[name], base.figures[name], faster) for on in arm.runs for base in plain.runs]
        measured, noise = middle(ratios)
        expected = _ratio(own.figures[name], plain_own.figures[name], faster)
        yield {
            "load": arm.runs[0].load, "policy": arm.policy.label, "of": name, "measured": measured,
            "noise": finite(noise), "predicted": expected, "error": expected / measured - 1.0,
            "sign_right": sign_right(expected, measured, noise),
        }  # fmt: skip


def _baseline(arm: Arm, off: Sequence[tuple[Arm, Predicted]]) -> tuple[Arm, Predicted] | None:
    """The runs without speculation of the same settings; else the only ones at the same load."""
    run = arm.runs[0]
    same = [item for item in off if item[0].runs[0].repeats(run)]
    near = [item for item in off if (item[0].runs[0].client, item[0].runs[0].load) == (run.client, run.load)]
    return same[0] if same else near[0] if len(near) == 1 else None


def _ratio(on: float, off: float, faster: bool) -> float:
    return on / off if faster else off / on


def _beyond_range(arms: Sequence[Arm], found: Sequence[Predicted]) -> Iterator[str]:
    for arm, own in zip(arms, found, strict=True):
        run = arm.runs[0]
        yield from arm.question.side(arm.policy).extrapolated(
            requests=own.peak_batch,
            width=1 + (arm.question.verified_drafts(arm.policy.num_spec_tokens) if arm.policy.num_spec_tokens else 0),
            context_tokens=max(p + o for p, o in zip(run.prompt_tokens, run.output_tokens, strict=True)),
            prompt_tokens=max(run.prompt_tokens),
        )


def deployment_of(question: Question) -> dict[str, Any]:
    """What was simulated, as JSON: deployment, speculation, profile, acceptance."""
    sides = {"off": question.off, "on": question.on}
    return {
        "deployment": {**asdict(question.deployment), "names": dict(question.names)},
        "speculation": asdict(question.speculation),
        "limits": {name: asdict(side.limits) for name, side in sides.items()},
        "profile": {
            name: {
                "name": side.profile.name, "kind": side.profile.kind, "sha256": side.profile.sha256,
                "relative_error": side.profile.relative_error, "notes": [*side.profile.notes, *side.notes],
            }
            for name, side in sides.items()
        },
        "assumed": list(question.assumed),
    }  # fmt: skip
