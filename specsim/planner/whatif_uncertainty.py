"""How sure a what-if is: fleets, costs and the choice under joint errors of costs and acceptance.

Models: for each option the traffic that a replica takes, by steady batches with their share of prompts, anchored at
what was simulated: the least number of replicas, and how far above the objective it was. Under other step times and
another acceptance a replica takes the traffic at which a token takes as long as it did there.
Leaves out: how queues change otherwise; every draw is the closed form, not a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.latency import StepWork
from specsim.planner import surface
from specsim.planner.job import decode_context
from specsim.planner.question import Question
from specsim.planner.uncertainty import (
    COMPUTING,
    GROUPS,
    NEGLIGIBLE,
    Draws,
    Rounds,
    Source,
    draw,
    measuring_command,
    rounds_of,
    unsettled,
)
from specsim.planner.whatif import Option, WhatIfJob
from specsim.planner.whatif_rank import Ranking

__all__ = ["uncertainty_part"]

_LIKELY = (5.0, 95.0)
"""Percentiles of draws between which a range reaches."""
_MOST = 4096.0
_GRID = 48
"""Batches at which a step is known; in between it is taken as straight."""
_Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Sized:
    """One option: how many replicas it takes under each draw."""

    gpu: str
    rounds: Rounds
    prefill_s: np.ndarray
    """Seconds of prompt work for each output token, by batch."""
    output_tokens: float
    rate_per_s: float
    limit_s: float
    """A token's time at which the objective is just held; nan: it never is."""
    factor: float
    """Simulated traffic of a replica at that time, over that of the closed form."""

    def _token_s(self, draws: Draws | None) -> np.ndarray:
        computing = 1.0 if draws is None else draws.cost_factors(self.gpu, self.rounds.error)[:, COMPUTING, None]
        return np.asarray(self.rounds.token_s(draws, self.gpu) + computing * self.prefill_s[None, :])

    def replicas(self, draws: Draws) -> np.ndarray:
        """Least replicas by draw; infinite where no number holds."""
        if math.isnan(self.limit_s):
            return np.full(len(draws), math.inf)
        token, batches = self._token_s(draws), self.rounds.batches
        rates = batches / (self.output_tokens * token)
        best = _most_within(token, rates, self.limit_s)
        with np.errstate(divide="ignore"):
            needed = np.maximum(1.0, np.ceil(self.rate_per_s / (self.factor * best) - 1e-9))
        return np.where(needed > _MOST, math.inf, needed)

    def slowdown(self, draws: Draws, replicas: int) -> np.ndarray:
        """A token's time over that assumed, by draw, with so many replicas; infinite where they fall behind."""
        wanted = self.rate_per_s / replicas / self.factor
        assumed = _token_at(self._token_s(None), self.rounds.batches, self.output_tokens, wanted)
        return _token_at(self._token_s(draws), self.rounds.batches, self.output_tokens, wanted) / assumed


def _most_within(token_s: np.ndarray, rates: np.ndarray, limit_s: float) -> np.ndarray:
    """Highest rate, row by row, at which a token takes no longer than `limit_s`; 0: none."""
    fits = token_s <= limit_s
    best = np.where(fits, rates, 0.0).max(axis=1)
    rows = np.arange(len(token_s))
    last = token_s.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1)
    after = np.minimum(last + 1, token_s.shape[1] - 1)
    rise = token_s[rows, after] - token_s[rows, last]
    share = np.where(rise > 0, (limit_s - token_s[rows, last]) / np.where(rise > 0, rise, 1.0), 0.0)
    between = rates[rows, last] + np.clip(share, 0.0, 1.0) * (rates[rows, after] - rates[rows, last])
    return np.where(fits.any(axis=1), np.maximum(best, between), 0.0)


def _token_at(token_s: np.ndarray, batches: np.ndarray, output_tokens: float, rate_per_s: float) -> np.ndarray:
    """A token's time at a rate, row by row: at the smallest batch that completes so much."""
    rates = batches / (output_tokens * token_s)
    reached = rates >= rate_per_s
    rows, first = np.arange(len(token_s)), np.argmax(reached, axis=1)
    before = np.maximum(first - 1, 0)
    rise = rates[rows, first] - rates[rows, before]
    share = np.where(rise > 0, (rate_per_s - rates[rows, before]) / np.where(rise > 0, rise, 1.0), 1.0)
    found = token_s[rows, before] + np.clip(share, 0.0, 1.0) * (token_s[rows, first] - token_s[rows, before])
    return np.where(reached.any(axis=1), found, math.inf)


def _batches(limit: int) -> list[int]:
    every = surface.batches_up_to(limit)
    if len(every) <= _GRID:
        return every
    wanted = np.unique(np.round(np.geomspace(1, limit, _GRID)).astype(int))
    return [int(b) for b in wanted]


def _below_one(rounds: Rounds, prefill_s: np.ndarray) -> tuple[Rounds, np.ndarray]:
    """With batches below one request, for replicas that are mostly idle: straight on from the first two."""
    if len(rounds.batches) < 2:
        return rounds, prefill_s
    below = np.array([0.05, 0.2, 0.5])
    rise = (rounds.parts_s[1] - rounds.parts_s[0]) / (rounds.batches[1] - rounds.batches[0])
    parts = np.maximum(rounds.parts_s[0] - (1.0 - below)[:, None] * np.maximum(rise, 0.0), 0.9 * rounds.parts_s[0])
    fuller = Rounds(
        np.concatenate([below, rounds.batches]), np.concatenate([parts, rounds.parts_s]), rounds.length,
        rounds.num_spec_tokens, rounds.error, rounds.acceptance_error,
    )  # fmt: skip
    return fuller, np.concatenate([below * prefill_s[0], prefill_s])


def _prefill_s(question: Question, job: WhatIfJob, batches: Sequence[int], context: float, *, on: bool) -> np.ndarray:
    """Seconds of prompts that fall on each output token at some batches, as they share steps with decoding."""
    side = question.on if on else question.off
    prompt, output = float(job.trace.prompt_tokens.mean()), float(job.trace.output_tokens.mean())
    chunk = max(1, min(round(prompt), side.limits.max_num_batched_tokens))
    found = []
    for batch in batches:
        step = side.cost.decode_step_s(batch, context, 0, machinery=on)
        work = StepWork(
            decode_requests=batch, kv_tokens=round(batch * context), prefill_tokens=chunk, prefill_rows=1,
            prefill_pairs=chunk * chunk // 2, windowed_kv_tokens=round(batch * min(context, side.cost.window_tokens)),
            prefill_windowed_pairs=chunk * chunk // 2, machinery=on,
        )  # fmt: skip
        found.append(batch * max(0.0, side.cost.step_s(work) - step) * prompt / chunk / output)
    return np.array(found)


def _rounds(question: Question, option: Option, context: float, batches: list[int]) -> Rounds:
    """Of a rule that changes k, each batch with the k that its table, or the costs as assumed, give it."""
    kind = option.found.policy
    if kind.kind == "off":
        return rounds_of(question, context, None, batches)
    if kind.kind == "static":
        return rounds_of(question, context, kind.num_spec_tokens, batches)
    table = kind.table or surface.best_k_table(question, context)
    ks = [next((k for first, last, k in table if first <= b <= last), table[-1][2]) for b in batches]
    by_k = {k: rounds_of(question, context, k, batches) for k in sorted(set(ks))}
    most = by_k[max(by_k)]
    # as if all were of the largest k: seconds over the length of each batch's own
    parts = np.array([by_k[k].parts_s[i] * most.length / by_k[k].length for i, k in enumerate(ks)])
    return Rounds(most.batches, parts, most.length, most.num_spec_tokens, most.error, most.acceptance_error)


def _sized(job: WhatIfJob, option: Option, row: _Row) -> _Sized:
    question = job.groups[option.group].question
    context = decode_context(job.trace, question)
    on = option.kind != "off"
    batches = _batches(surface.batch_limit(question, context, on=on))
    rounds, prefill = _below_one(
        _rounds(question, option, context, batches), _prefill_s(question, job, batches, context, on=on)
    )
    output, rate = float(job.trace.output_tokens.mean()), job.trace.rate_per_s
    gpu = str(question.names["gpu"])
    plain = _Sized(gpu, rounds, prefill, output, rate, math.nan, 1.0)
    token = plain._token_s(None)[0]
    rates = rounds.batches / (output * token)
    needed = _needed(job, row)
    if needed is None:
        limit = _limit_alone(job, row, float(token[0]))
        return _Sized(gpu, rounds, prefill, output, rate, limit, 1.0)
    wanted = rate / needed
    if wanted >= rates.max():
        at = int(np.argmax(rates))
        return _Sized(gpu, rounds, prefill, output, rate, float(token[at]), wanted / float(rates[at]))
    limit = float(_token_at(token[None, :], rounds.batches, output, wanted)[0])
    return _Sized(gpu, rounds, prefill, output, rate, limit, 1.0)


def _needed(job: WhatIfJob, row: _Row) -> float | None:
    """Replicas at which the objective would be just held, between the number that holds and one less; None: none."""
    if row["verdict"] != "holds":
        return None
    n, below = int(row["replicas"]), row["proof"]["below"]
    if below is not None:
        at, less = (row["proof"][side]["metrics"]["slo_share"]["mean"] for side in ("at", "below"))
        share = (job.slo.share - less) / (at - less) if at > less else 1.0
        return float(n - 1 + min(1.0, max(0.05, share)))
    beyond = row["beyond"]
    if beyond is not None:
        return 1.0 / float(beyond["holds_to"] if beyond["fails_at"] is None else
                           0.5 * (beyond["holds_to"] + beyond["fails_at"]))  # fmt: skip
    return 1.0 / max(1.0, _spare_of_one(job, row))


def _spare_of_one(job: WhatIfJob, row: _Row) -> float:
    """How much more traffic one replica may take, where that was not simulated: as its time per token is below the
    objective; without such an objective it is taken as just enough."""
    tpot = row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]
    if job.slo.tpot_s is None or not tpot:
        return 1.0
    return min(3.0, job.slo.tpot_s / tpot)


def _limit_alone(job: WhatIfJob, row: _Row, token_s: float) -> float:
    """Where an option holds with no number of replicas: the time per token that it would have to have."""
    alone = row["proof"]["alone"]
    slo = job.slo
    if alone is None or slo.tpot_s is None or not alone["tpot_p95_s"] or alone["tpot_p95_s"] <= slo.tpot_s:
        return math.nan
    return token_s * float(slo.tpot_s) / float(alone["tpot_p95_s"])


def uncertainty_part(
    job: WhatIfJob, options: Sequence[Option], rows: Sequence[dict[str, Any]], order: Ranking
) -> dict[str, Any]:
    """`uncertainty` of the answer; each row gets its `range`."""
    draws = draw([group.name for group in job.groups], seed=job.settings.seed)
    sized = [_sized(job, option, row) for option, row in zip(options, rows, strict=True)]
    replicas = [it.replicas(draws) for it in sized]
    for it, row, found in zip(sized, rows, replicas, strict=True):
        row["range"] = _range(it, row, found, draws, order)
    best = order.cheapest()
    if best is None:
        return {"draws": len(draws), "confidence": None, "wrong_probability": None, "flip_probability": None,
                "nothing_holds_probability": None, "speculation_flip_probability": None,
                "too_small_probability": None, "alternatives": [], "measure": [], "terms": [], "text": []}  # fmt: skip
    choice = _Choice(rows, sized, order)
    chosen = choice.decide(draws)
    off, on = (choice.costs(draws, speculative=which) for which in (False, True))
    saves = np.sign(np.nan_to_num(off, posinf=_NEVER) - np.nan_to_num(on, posinf=_NEVER))
    some = chosen != _NOTHING
    other = chosen != choice.kind_of(best)
    small = replicas[best] > rows[best]["replicas"]
    wrong = float(np.mean(other | small))
    unsettled_now = float(np.mean(other))
    part = {
        "draws": len(draws),
        "confidence": _confidence(wrong, close=rows[best]["close"]),
        "wrong_probability": wrong,
        "flip_probability": float(np.mean(other & some)),
        "nothing_holds_probability": float(np.mean(~some)),
        "speculation_flip_probability": float(np.mean(((saves > 0) != choice.saves()) & some)),
        "too_small_probability": float(np.mean(small)),
        "alternatives": choice.alternatives(chosen, best),
        "measure": _measurements(job, choice, draws, unsettled_now),
        "terms": _terms(choice, draws, unsettled_now),
    }
    part["text"] = _sentences(part, rows, best)
    return part


_NEVER = 1e18
_NOTHING = -1
"""In place of the number of a kind of fleet: no number of any of them holds, or none that does has a price."""
_SURE, _LIKELY_RIGHT = 0.0228, 0.1587
"""Share of wrong draws below which a choice is sure, or likely: beyond two sigma, or one, on one side, as in a plan."""


def _confidence(wrong: float, *, close: bool) -> str:
    """`sure`, `likely` or `unsure`; never sure where replications cannot tell whether the fleet holds."""
    if wrong < _SURE and not close:
        return "sure"
    return "likely" if wrong < _LIKELY_RIGHT else "unsure"


class _Choice:
    """Which kind of fleet is cheapest under each draw, as the ranking would say."""

    def __init__(self, rows: Sequence[dict[str, Any]], sized: Sequence[_Sized], order: Ranking) -> None:
        self.rows, self.sized, self.order = rows, sized, order
        self.offered = [i for i, row in enumerate(rows) if row["offered"]]
        kinds = dict.fromkeys(self._kind(i) for i in self.offered)
        self._number = {kind: n for n, kind in enumerate(kinds)}
        self._first = {n: next(i for i in self.offered if self._kind(i) == kind) for kind, n in self._number.items()}

    def _kind(self, index: int) -> tuple[Any, ...]:
        row = self.rows[index]
        return row["gpu"], row["tp"], row["weight_dtype"], row["policy_kind"] != "off"

    def kind_of(self, index: int) -> int:
        return self._number[self._kind(index)]

    def _unit(self, index: int) -> float:
        """Cost of one replica; infinite without a price."""
        return self.order.unit(index) * self.rows[index]["tp"]

    def costs(self, draws: Draws, *, speculative: bool) -> np.ndarray:
        """The cheapest by draw, with or without speculation; infinite where none holds."""
        own = [i for i in self.offered if (self.rows[i]["policy_kind"] != "off") == speculative]
        found = [self._unit(i) * self.sized[i].replicas(draws) for i in own]
        return np.min(found, axis=0) if found else np.full(len(draws), math.inf)

    def saves(self) -> bool:
        """Whether speculation is cheaper, as assumed."""
        off, on = (self.order.cheapest(speculative=which) for which in (False, True))
        if on is None:
            return False
        return off is None or self.order.cost(on) < self.order.cost(off)

    def decide(self, draws: Draws) -> np.ndarray:
        """Number of the kind that is cheapest, by draw; of equals the one with fewer GPUs, then without speculation;
        `_NOTHING` where none holds."""
        costs = []
        for index in self.offered:
            row = self.rows[index]
            replicas = self.sized[index].replicas(draws)
            tie = 1e-9 * replicas * row["tp"] + 1e-12 * (row["policy_kind"] != "off")
            costs.append(np.nan_to_num(self._unit(index) * replicas * (1.0 + tie), nan=_NEVER, posinf=_NEVER))
        numbers = np.array([self.kind_of(index) for index in self.offered])
        by_option = np.array(costs)
        return np.where(by_option.min(axis=0) < _NEVER, numbers[np.argmin(by_option, axis=0)], _NOTHING)

    def alternatives(self, chosen: np.ndarray, best: int) -> list[dict[str, Any]]:
        """Kinds that are cheapest in some draws, likeliest first, by the first option of each."""
        numbers, times = np.unique(chosen, return_counts=True)
        found = sorted(zip(times / len(chosen), numbers, strict=True), key=lambda it: (-it[0], it[1]))
        own = self.kind_of(best)
        return [
            {"option": best if n == own else self._first[int(n)], "probability": float(p)}
            for p, n in found
            if n != _NOTHING and (p >= 0.005 or n == own)
        ]


def _range(it: _Sized, row: _Row, replicas: np.ndarray, draws: Draws, order: Ranking) -> dict[str, Any]:
    """Between which numbers 90 of 100 draws lie; null: no number holds."""
    low, high = (_whole(np.percentile(replicas, q, method="inverted_cdf")) for q in _LIKELY)
    tp = row["tp"]
    unit = order.unit_of(row)
    found: dict[str, Any] = {
        "gpus_low": None if low is None else low * tp,
        "gpus_high": None if high is None else high * tp,
        "cost_low": None if low is None or not math.isfinite(unit) else low * tp * unit,
        "cost_high": None if high is None or not math.isfinite(unit) else high * tp * unit,
        "holds_probability": float(np.mean(np.isfinite(replicas))),
        "enough_probability": None,
        "tpot_p95_low_s": None,
        "tpot_p95_high_s": None,
    }
    if row["verdict"] == "holds":
        found["enough_probability"] = float(np.mean(replicas <= row["replicas"]))
        tpot = row["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]
        if tpot is not None:
            ends = (
                float(np.percentile(it.slowdown(draws, row["replicas"]), q, method="inverted_cdf")) for q in _LIKELY
            )
            found["tpot_p95_low_s"], found["tpot_p95_high_s"] = (
                tpot * end if math.isfinite(end) else None for end in ends
            )
    return found


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _measurements(job: WhatIfJob, choice: _Choice, draws: Draws, wrong: float) -> list[dict[str, Any]]:
    """Short measurements, by how likely the choice is wrong once each is known; none where it hardly is."""
    if wrong < NEGLIGIBLE:
        return []
    gpus = dict.fromkeys(it.gpu for it in choice.sized)
    sources: list[Source] = [("acceptance", ""), *(("latency", gpu) for gpu in gpus)]
    found = []
    for what, gpu in sources:
        left = unsettled(draws, choice.decide, (what, gpu))
        command = measuring_command(job.groups[0].question, what)
        found.append({"what": what, "gpu": gpu or None, "flip_probability": left, "command": command})
    return sorted(found, key=lambda it: (it["flip_probability"], it["what"], it["gpu"] or ""))


def _terms(choice: _Choice, draws: Draws, wrong: float) -> list[dict[str, Any]]:
    """Groups of causes of a step, by how likely the choice is wrong once each is known on every GPU, least first."""
    if wrong < NEGLIGIBLE:
        return []
    found = [{"term": term, "flip_probability": unsettled(draws, choice.decide, ("term", term))} for term in GROUPS]
    return sorted(found, key=lambda it: (it["flip_probability"], it["term"]))


def _sentences(part: Mapping[str, Any], rows: Sequence[_Row], best: int) -> list[str]:
    flip, nothing, small = (part[f"{what}_probability"] for what in ("flip", "nothing_holds", "too_small"))
    row = rows[best]
    none = f", in {_percent(nothing)} nothing {_that_counts(rows)}holds" if nothing else ""
    text = [
        f"Confidence: {part['confidence']}. Step times and acceptance are uncertain: in {_percent(flip)} of "
        f"{part['draws']:,} joint draws of their errors another kind of fleet is cheapest{none}, and in "
        f"{_percent(small)} this one is too small; {_takes(row)}."
    ]
    others = [it for it in part["alternatives"] if it["option"] != best][:2]
    if flip >= NEGLIGIBLE and others:
        named = "; ".join(f"{_named(rows[it['option']])} in {_percent(it['probability'])}" for it in others)
        text.append(f"Cheapest instead: {named}.")
    if part["measure"]:
        first = part["measure"][0]
        if first["flip_probability"] > 0.9 * (flip + nothing):
            text.append("No single measurement settles that: several things are about as uncertain.")
        else:
            what = (
                "acceptance on your prompts" if first["what"] == "acceptance" else f"step times on one {first['gpu']}"
            )
            above_all = f", above all {part['terms'][0]['term']}" if first["what"] == "latency" else ""
            text.append(
                f"Measure first: {what}{above_all} ({first['command']}). Once they are known, the choice is still "
                f"wrong in {_percent(first['flip_probability'])}."
            )
    return text


def _that_counts(rows: Sequence[_Row]) -> str:
    """What is left out of the ranking: options that the engine cannot follow, and those without a price."""
    unpriced = any(row["cost"] is not None and row["cost"]["usd_per_h"] is None for row in rows)
    priced = any(row["cost"] is not None and row["cost"]["usd_per_h"] is not None for row in rows)
    return "that has a price " if unpriced and priced else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share == 0 or share >= 0.005 else "under 1%"


def _named(row: _Row) -> str:
    dtype = f" {row['weight_dtype']}" if row["weight_dtype"] else ""
    return f"{row['gpu']} tp {row['tp']}{dtype} {'without' if row['policy_kind'] == 'off' else 'with'} speculation"


def _takes(row: _Row) -> str:
    found, gpu = row["range"], row["gpu"]
    low, high = found["gpus_low"], found["gpus_high"]
    if low is None:
        return f"in most no number of {gpu} holds"
    if high is None:
        return f"it takes {low} {gpu} at best, and in {_percent(1 - found['holds_probability'])} no number holds"
    many = f"{low}" if low == high else f"{low} to {high}"
    return f"in 90% it takes {many} {gpu}"
