"""The answer in sentences, how sure it is, and the short measurement that would settle what is unsure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specsim.config import PolicySpec
from specsim.planner import surface
from specsim.planner.compare import AS_GOOD_AS, LoadTable, share_text
from specsim.planner.job import FEWEST_TO_ANSWER
from specsim.stats import paired_ratio

if TYPE_CHECKING:
    from specsim.planner.job import PlanJob

__all__ = ["recommendation", "settle"]


def recommendation(
    job: PlanJob, table: LoadTable, chosen: str, result: dict[str, Any], *, at: float | None = None
) -> dict[str, Any]:
    """Which policy at the load that decides (None: the trace's own), where it stops paying, and how sure that is."""
    own = job.own_per_s if at is None else at
    speculating = [p.label for p in job.policies if p.kind != "off" and job.question.offers(p)]
    best = chosen if chosen != "off" else min(
        speculating, key=lambda label: -_mean(table.ratio_to_off(label, own, "e2e_mean_s").mean))  # fmt: skip
    gain = table.ratio_to_off(best, own, "e2e_mean_s")
    tpot = table.ratio_to_off(best, own, "tpot_mean_s")
    batch = table.mean(best, own, "running_batch").mean
    error = surface.surface_error(job.question)
    margin = abs(_mean(gain.mean) - 1.0)
    sure = "sure" if margin > 2 * error else "likely" if margin > error else "unsure"
    tie = gain.compared_to(1.0) in ("tie", "unknown")
    by_margin, why = sure, ""
    if job.is_too_short:
        sure, why = "unsure", f"{job.log_requests} requests are too few"
    elif tie:
        alone = "one replication gives no interval" if gain.n == 1 else "the gain cannot be told from none"
        sure, why = "unsure", alone if gain.n else "nothing was measured there"
    elif job.log_requests < 100 and sure == "sure":
        sure, why = "likely", f"{job.log_requests} requests are few"
    running = f" (about {batch:.0f} running with {best})" if batch == batch else ""
    whose = job.whose
    where = f"at {whose} {own:.3g} requests/s{running}"
    if own != job.own_per_s:
        where = (
            f"at {own:.3g} requests/s{running}, the highest load simulated that this fleet keeps up with ({whose} "
            f"{job.own_per_s:.3g} is more)"
        )
        if sure == "sure":
            sure, why = "likely", f"{whose} load is beyond what the fleet keeps up with"
    if chosen == "off" and not tie:
        first = f"Leave speculation off {where}: the best of it, {best}, takes {_slower(gain.mean)} longer per request."
    elif chosen == "off" and gain.n < 2:
        first = f"No answer {where}: fewer than two replications have a request that was measured."
    elif chosen == "off" and abs(_mean(gain.mean) - 1) > 0.02:
        first = (
            f"No answer yet {where}: with {best} requests finish {gain.mean:.2f}x as fast in the mean, but the 95% "
            f"interval {gain.low:.2f}..{gain.high:.2f} holds 1. Until then leave speculation off, or raise "
            f"--replications (now {len(job.stretches)})."
        )
    elif chosen == "off":
        first = f"Speculation makes no separable difference {where}; leave it off, which is simpler."
    else:
        first = (
            f"Turn speculation on with {chosen} {where}: requests finish {gain.mean:.2f}x as fast, "
            f"time per output token {_factor(tpot.mean)}."
        )
    share = table.mean(chosen, own, "slo_share").mean
    asked = job.question.slo.share
    missed = [f"The objective is not met there: {share_text(share, asked)} of the requests, {asked:.0%} are asked for."]
    text = [
        first,
        _second(best, result, job),
        *_not_offered(job, table, chosen, own),
        *(missed if share < asked else []),
    ]
    if job.is_too_short:
        text = [
            f"No recommendation: {job.log_requests} requests are too few to tell a policy or what this fleet keeps up "
            f"with; the tables show what they did. Give at least {FEWEST_TO_ANSWER} (a longer log or window, "
            f"--max-requests)."
        ]
    return {
        "policy": chosen,
        "decided_at_per_s": own,
        "compared_policy": best,
        "e2e_speedup": {"mean": _none(gain.mean), "low": _none(gain.low), "high": _none(gain.high)},
        "tpot_speedup": {"mean": _none(tpot.mean), "low": _none(tpot.low), "high": _none(tpot.high)},
        "running_batch": _none(batch),
        "confidence": sure,
        "confidence_reason": why or None if sure != by_margin or job.is_too_short else None,
        "speedup_error": error,
        "text": text,
    }


def _not_offered(job: PlanJob, table: LoadTable, chosen: str, load: float) -> list[str]:
    """The best policy that the engine lacks, where it is separably faster than what is recommended."""
    found = []
    for policy in job.policies:
        if job.question.offers(policy):
            continue
        gain = paired_ratio(*(table.values(label, load, "e2e_mean_s") for label in (chosen, policy.label)))
        if gain.compared_to(1.0) == "higher" and gain.mean > AS_GOOD_AS:
            found.append((gain.mean, policy.label))
    if not found:
        return []
    factor, label = max(found)
    engine = job.question.deployment.serving.title
    return [f"{label} would be {factor:.2f}x as fast as {chosen} there, but {engine} has no such rule."]


def _second(best: str, result: dict[str, Any], job: PlanJob) -> str:
    cross = next((c for c in result["crossovers"]["by_load"] if c["policy"] == best), None)
    return f"{_by_load(best, cross, job)}{_by_batch(best, result, job)}."


def _by_batch(best: str, result: dict[str, Any], job: PlanJob) -> str:
    k = _k_of(best, job)
    at = min(job.context_tokens, max(c["context_tokens"] for c in result["crossovers"]["by_batch"]))
    c = next((c for c in result["crossovers"]["by_batch"] if c["k"] == k and c["context_tokens"] == at), None)
    if c is None:
        return ""
    of, context = f"k={k}", f"at {at:,} tokens of context"
    if c["batch"] is None:
        return f"; by batch {of} pays up to the {c['limit']:,} requests that fit {context}"
    if not c["pays"]:
        return f"; by batch {of} never pays {context}"
    pays = _bridged(c["pays"])
    if len(pays) > 1 or pays[0][0] > 1:
        ranges = " and ".join(f"{first}-{last}" for first, last in pays)
        return f"; by batch {of} pays at {ranges} running requests {context}"
    return f"; by batch {of} pays below {c['batch']:,} running requests {context}"


def _bridged(ranges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Ranges of batches, without the gaps of a few per cent that padding to captured sizes makes."""
    found = [list(ranges[0])]
    for first, last in ranges[1:]:
        if first <= max(found[-1][1] + 3, 1.1 * found[-1][1]):
            found[-1][1] = last
        else:
            found.append([first, last])
    return found


def _by_load(best: str, cross: dict[str, Any] | None, job: PlanJob) -> str:
    verdict = "unknown" if cross is None else cross["verdict"]
    if cross is None or verdict in ("tie", "unknown"):
        return f"At no load simulated does {best} differ from off beyond the interval"
    if verdict == "always":
        return f"It pays at every load simulated, up to {cross['faster_per_s'][1]:.3g} requests/s"
    if verdict == "never":
        return f"It pays at no load simulated, from {cross['slower_per_s'][0]:.3g} requests/s up"
    if verdict in ("faster", "slower"):
        low, high = cross[f"{verdict}_per_s"]
        where = f"at {low:.3g} requests/s" if low == high else f"from {low:.3g} to {high:.3g} requests/s"
        return f"It is {verdict} {where}; at other loads no difference holds"
    turn = f" near {cross['load_per_s']:.3g} requests/s" if cross["load_per_s"] is not None else ""
    does = "stops paying" if verdict == "crosses" else "begins to pay"
    return f"It {does}{turn} (between {cross['low_per_s']:.3g} and {cross['high_per_s']:.3g} requests/s)"


def settle(job: PlanJob, table: LoadTable, chosen: PolicySpec, flips: Mapping[str, Any]) -> dict[str, Any]:
    """What to measure next: acceptance against its break-even, or step times, whichever settles more.

    `flips`: of `specsim.planner.plan_uncertainty`; where the answer hardly flips, whichever is the less certain.
    """
    question = job.question
    own = job.own_per_s
    k = chosen.num_spec_tokens or job.policies[1].num_spec_tokens
    batch = max(1, round(_mean(table.mean("off", own, "running_batch").mean)))
    context = min(job.context_tokens, question.on.limits.max_model_len)
    length = question.acceptance.expected_length(k)
    even = length / surface.speedup(question, batch, context, k)
    acceptance_error = question.acceptance_error
    cost_error = surface.surface_error(question) ** 2 - acceptance_error**2
    cost_error = max(0.0, cost_error) ** 0.5
    what = "acceptance" if acceptance_error >= cost_error else "latency"
    options = flips["options"]
    what = next((option["what"] for option in options if option["what"] != "replications"), what)
    if what == "acceptance":
        text = (
            f"Measure the mean acceptance length at k={k} on your own prompts: above {even:.2f} (bonus included) "
            f"speculation pays at {batch} running requests and {context:,} tokens of context; assumed here is "
            f"{length:.2f} ±{acceptance_error:.0%}. In vLLM: 1 + spec_decode_num_accepted_tokens_total / "
            f"spec_decode_num_drafts_total over a few hundred requests."
        )
    else:
        text = (
            f"Measure two step times on the target GPU: {batch} requests at {context:,} tokens of context with 1 and "
            f"with {1 + k} query tokens each (vllm bench forward), plus one drafter round. Speculation pays when the "
            f"ratio of a whole round to a plain step stays below the acceptance length {length:.2f}; the cost model "
            f"says {even:.2f} ±{cost_error:.0%}."
        )
    if options:
        left = next(option for option in options if option["what"] == what)
        text += (
            f" Once that is known, on or off is wrong in {left['flip_probability']:.0%} of the draws, now in "
            f"{flips['flip_probability']:.0%} ({left['command']})."
        )
        if options[0]["what"] == "replications":
            text = f"More replications settle most ({options[0]['command']}). {text}"
    return {
        "what": what,
        "batch": batch,
        "context_tokens": context,
        "k": k,
        "break_even_acceptance_length": even,
        "assumed_acceptance_length": length,
        "acceptance_error": acceptance_error,
        "cost_error": cost_error,
        "options": options,
        "text": text,
    }


def _k_of(label: str, job: PlanJob) -> int:
    for policy in job.policies:
        if policy.label == label and policy.kind == "static":
            return policy.num_spec_tokens
    return job.policies[1].num_spec_tokens


def _mean(value: float) -> float:
    return value if value == value else 1.0


def _none(value: float) -> float | None:
    return value if value == value else None


def _slower(ratio: float) -> str:
    return f"{(1 / ratio - 1):.0%}"


def _factor(ratio: float) -> str:
    return f"{1 / ratio:.2f}x" if ratio == ratio else "not measurable (no outputs of 2 tokens or more)"
