"""How sure a plan's answer is: speculation on or off at the deciding load, under joint errors and the luck of runs.

Models: each simulated gain times what errors of costs and acceptance do to the gain by step times at the running batch.
Leaves out: that the running batch moves with the step times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from specsim.config import PolicySpec
from specsim.planner import surface
from specsim.planner.compare import AS_GOOD_AS, LoadTable
from specsim.planner.uncertainty import NEGLIGIBLE, Draws, Rounds, Source, draw, measuring_command, rounds_of, unsettled
from specsim.rng import Purpose, stream

if TYPE_CHECKING:
    from specsim.planner.job import PlanJob

__all__ = ["plan_flips"]

_TWO_SIDED = 1.96
_WIDEST = 2.0
"""One sigma of the logarithm of a gain at most: two replications that differ much know nothing."""
_LUCK = 2
"""Index of the stream of the luck of the replications."""


def plan_flips(job: PlanJob, table: LoadTable, chosen: str, at: float) -> dict[str, Any]:
    """`flip_probability` of on or off, `policy_flip_probability` that another policy is clearly faster, and `options`:
    what could be learnt, by how likely on or off is wrong once it is known, least first.

    Null where nothing was measured.
    """
    question = job.question
    gpu = str(question.names["gpu"])
    batch = table.mean("off", at, "running_batch").mean
    policies = [p for p in job.policies if p.kind != "off" and question.offers(p)]
    gains = [table.ratio_to_off(p.label, at, "e2e_mean_s") for p in policies]
    known = [(p, g) for p, g in zip(policies, gains, strict=True) if math.isfinite(g.mean)]
    if not known or not math.isfinite(batch):
        return {"flip_probability": None, "policy_flip_probability": None, "options": []}
    context = min(job.context_tokens, question.on.limits.max_model_len)
    requests = max(1, min(round(batch), surface.batch_limit(question, context)))
    off = rounds_of(question, context, None, [requests])
    draws = draw([gpu], seed=job.settings.seed)
    luck = stream(job.settings.seed, Purpose.ERRORS, _LUCK).standard_normal((len(known), len(draws)))
    rounds = [rounds_of(question, context, _k_at(job, p, context, requests), [requests]) for p, _ in known]

    def ratios(it: Draws, *, lucky: bool = True) -> np.ndarray:
        """Gain of each policy by draw, (policies, draws)."""
        found = []
        for n, (own, (_, gain)) in enumerate(zip(rounds, known, strict=True)):
            spread = 0.0
            if lucky and math.isfinite(gain.low) and gain.mean > 0:
                spread = min(_WIDEST, (gain.high - gain.low) / 2 / _TWO_SIDED / gain.mean)
            found.append(gain.mean * _change(off, own, it, gpu) * np.exp(spread * luck[n, : len(it)]))
        return np.array(found)

    def on(it: Draws, *, lucky: bool = True) -> np.ndarray:
        return np.asarray((ratios(it, lucky=lucky).max(axis=0) > 1.0).astype(int))

    found = ratios(draws)
    own = next((n for n, (p, _) in enumerate(known) if p.label == chosen), None)
    mine = np.ones(len(draws)) if own is None else found[own]
    flip = float(np.mean((found.max(axis=0) > 1.0) != (chosen != "off")))
    return {
        "flip_probability": flip,
        "policy_flip_probability": float(np.mean(np.maximum(found.max(axis=0), 1.0) > AS_GOOD_AS * mine)),
        "options": [] if flip < NEGLIGIBLE else _options(job, draws, on, gpu),
    }


def _options(job: PlanJob, draws: Draws, on: Any, gpu: str) -> list[dict[str, Any]]:
    sources: list[Source] = [("acceptance", ""), ("latency", gpu)]
    found = [
        {"what": what, "flip_probability": unsettled(draws, on, (what, name)),
         "command": measuring_command(job.question, what)}
        for what, name in sources
    ]  # fmt: skip
    found.append(
        {
            "what": "replications",
            "flip_probability": unsettled(draws, lambda it: on(it, lucky=False), None),
            "command": f"specsim plan --replications {4 * len(job.stretches)}",
        }
    )
    return sorted(found, key=lambda it: (it["flip_probability"], it["what"]))


def _change(off: Rounds, on: Rounds, draws: Draws, gpu: str) -> np.ndarray:
    """By how much the gain by step times differs from that assumed, by draw."""
    drawn = off.token_s(draws, gpu)[:, 0] / on.token_s(draws, gpu)[:, 0]
    return np.asarray(drawn / (off.token_s(None, gpu)[0, 0] / on.token_s(None, gpu)[0, 0]))


def _k_at(job: PlanJob, policy: PolicySpec, context: float, batch: int) -> int:
    """Drafts of a policy at a batch: of a rule that adapts, what costs and acceptance as assumed say."""
    if policy.kind == "static":
        return policy.num_spec_tokens
    rows = policy.table or surface.best_k_table(job.question, context)
    return next((k for first, last, k in rows if first <= batch <= last), rows[-1][2])
