"""What a plan says of trace, deployment and profile, as name and text, and the words for its turns and schedules.

From the JSON form; shared by the text of a terminal and by the pages of `specsim report -o`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specsim.report.text import gigabytes, number, percent

__all__ = [
    "PAYS",
    "batch_text",
    "change_text",
    "confidence",
    "deployment_facts",
    "duration",
    "from_to",
    "full_fleet",
    "objective_text",
    "profile_facts",
    "rank",
    "schedule_text",
    "trace_facts",
    "turn_text",
]

PAYS = {
    "always": "at every load",
    "never": "at no load",
    "crosses": "at low loads",
    "begins": "at high loads",
    "faster": "at some loads",
    "slower": "at no load",
    "tie": "no difference",
    "unknown": "unknown",
}
"""Verdict of `crossovers.by_load` -> where it pays."""


def confidence(result: Mapping[str, Any]) -> str:
    """How sure the answer is, and what a speedup of its profile is good to."""
    answer = result["recommendation"]
    kind, error = result["profile"]["kind"], answer["speedup_error"]
    flip = answer.get("flip_probability")
    reason, turned = answer.get("confidence_reason"), ""
    if flip is not None:
        share = percent(flip) if flip else "none"
        alone = " alone" if reason else ""
        turned = f" Joint errors of costs, acceptance and luck{alone} turn on or off round in {share} of the draws."
    sure = f"Confidence: {answer['confidence']}" + (f", because {reason}" if reason else "")
    return f"{sure} (a speedup from this {kind} profile is good to about ±{error:.0%}).{turned}"


def full_fleet(result: Mapping[str, Any]) -> str:
    """What the fleet completes when it is full, as a sentence: the other capacity, which no objective limits."""
    return (
        f"Whatever the objective, a full fleet completes {number(result['loads']['capacity_off_per_s'])} requests/s "
        f"without speculation."
    )


def trace_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The log as it was read, and its figures."""
    trace = result["trace"]
    s = trace["statistics"]
    dropped = sum(trace["dropped"].values())
    rows = f"{trace['rows_read']:,} read, {trace['rows_kept']:,} kept, {dropped:,} not used"
    facts = [("file", f"{trace['source']} ({trace['format']}; time: {trace['time_unit']})"), ("rows", rows)]
    for reason, count in trace["dropped"].items():
        facts.append(("", f"{count:,} x {reason}: {trace['dropped_examples'].get(reason, '')}"))
    facts += [
        ("rate", f"{s['rate_per_s']:.3g} requests/s over {duration(s['span_s'])}; busiest minute "
                 f"{s['busiest_minute_rate_per_s']:.3g}/s from {s['busiest_minute_start_s']:.0f} s; "
                 f"CV of gaps {number(s['gap_cv'])}"),
        ("input tokens", f"p50 {s['prompt']['p50']:,.0f}, p95 {s['prompt']['p95']:,.0f}, max {s['prompt']['max']:,}"),
        ("output tokens", f"p50 {s['output']['p50']:,.0f}, p95 {s['output']['p95']:,.0f}, max {s['output']['max']:,}"),
        ("prefix reuse", "the trace has no prefix hashes" if s["prefix_reuse"] is None
         else f"{s['prefix_reuse']:.1%} of full blocks, with an endless cache"),
    ]  # fmt: skip
    return facts


def duration(seconds: float) -> str:
    """A time in days, hours, minutes or seconds."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


def deployment_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is deployed, what fits, and the objective."""
    d = result["deployment"]
    names, slo, cost = d["names"], d["slo"], result["cost_of_speculation"]
    limits = d["limits_on"]
    return [
        ("target", f"{names['target']}, weights {d['weight_dtype'] or 'as published'}, KV {d['kv_dtype']}"),
        ("drafter", f"{names['draft']} by {d['speculation']['method']}"),
        ("hardware", _hardware(d)),
        ("engine", f"{d['engine']} {d['engine_version']}: {limits['max_num_seqs']} sequences, "
                   f"{limits['max_num_batched_tokens']} batched tokens, model length {limits['max_model_len']}"),
        ("KV cache", f"{cost['kv_tokens_off']:,} tokens a replica, {cost['kv_tokens_on']:,} with speculation "
                     f"({cost['kv_share_lost']:.1%} less; drafter {gigabytes(cost['draft_weight_bytes'])})"),
        ("objective", objective_text(slo)),
    ]  # fmt: skip


def _hardware(d: Mapping[str, Any]) -> str:
    """Replicas, their GPUs, and what is between them."""
    each = f"of {d['tp']} x {d['names']['gpu']}"
    if not d.get("prefill_replicas"):
        router = f", router {d['router']}" if d["replicas"] > 1 else ""
        return f"{d['replicas']} replica{'s' if d['replicas'] > 1 else ''} {each}{router}"
    link = d["kv_link"]
    return (
        f"disaggregated: {d['prefill_replicas']} prefill and {d['decode_replicas']} decode replica"
        f"{'s' if d['decode_replicas'] > 1 else ''} {each}, router {d['router']}; caches sent at "
        f"{link['bytes_per_s'] / 1e9:.3g} GB/s a GPU after {link['latency_s'] * 1e3:.3g} ms"
    )


def objective_text(slo: Mapping[str, Any]) -> str:
    """`TTFT <= 1000 ms, TPOT <= 50 ms, for 95%`; time to the last token only where it is asked for."""
    end = "" if slo.get("e2e_s") is None else f", E2E {_limit(slo['e2e_s'])}"
    return f"TTFT {_limit(slo['ttft_s'])}, TPOT {_limit(slo['tpot_s'])}{end}, for {percent(slo['share'])}"


def _limit(seconds: float | None) -> str:
    return "any" if seconds is None else f"<= {seconds * 1e3:g} ms"


def profile_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where costs and acceptance come from, and how sure they are."""
    p = result["profile"]
    a = p["acceptance"]
    lengths = ", ".join(f"{length:.2f} at k={k}" for k, length in a["mean_acceptance_length_by_k"].items())
    covers = p["covers"]
    how = {
        "analytic": "analytic: datasheet figures and efficiency factors, nothing was measured",
        "transferred": f"transferred: measured on {covers.get('measured_on', 'another GPU')} and carried over",
    }.get(p["kind"], p["kind"])
    return [
        ("profile", f"{p['name']} ({how}; a step is good to ±{p['relative_error']:.0%})"),
        ("holds for", ", ".join(f"{k} {v}" for k, v in covers.items() if k in ("attention_backend", "engine", "date"))),
        ("acceptance", f"{lengths} (±{a['relative_error']:.0%})"
         + ("" if a["proposal_rate"] >= 1 else f"; proposes in {a['proposal_rate']:.0%} of rounds")),
        *(("", line) for line in _sources(a)),
    ]  # fmt: skip


def _sources(acceptance: Mapping[str, Any]) -> list[str]:
    """Where acceptance is from, a line for each content class where they are told apart."""
    if not acceptance["by_task"]:
        return [acceptance["source"]]
    lines = ["by the log's tasks:"]
    for part in acceptance["by_task"]:
        lengths = ", ".join(f"{length:.2f} at k={k}" for k, length in part["mean_acceptance_length_by_k"].items())
        unknown = "" if part["known"] else ", no figures for it, so the default"
        lines.append(f"{part['task']} ({part['share']:.0%} of output tokens{unknown}): {lengths}; {part['source']}")
    return lines


def rank(policy: str) -> tuple[int, int]:
    """Off, static policies by k, the schedule, adaptive."""
    if policy == "off":
        return 0, 0
    if policy.startswith("k="):
        return 0, int(policy[2:].split()[0])
    return (1, 0) if policy.startswith("schedule") else (2, 0)


def from_to(span: Sequence[float] | None) -> str:
    """A range of loads, or `-`."""
    if span is None:
        return "-"
    return f"{span[0]:.3g}" if span[0] == span[1] else f"{span[0]:.3g}..{span[1]:.3g}"


def batch_text(batch: int | None) -> str:
    """A batch from which on it no longer pays: `all` pays up to the last that fits, `none` not even alone."""
    return "all" if batch is None else "none" if batch == 1 else str(batch)


def turn_text(c: Mapping[str, Any]) -> str:
    """That batch, and in brackets the same one sigma worse and better."""
    at, low, high = batch_text(c["batch"]), batch_text(c["low"]), batch_text(c["high"])
    return at if at == low == high else f"{at} ({low}..{high})"


def change_text(change: float) -> str:
    """A shift of acceptance in words."""
    return f"{change * 100:+.0f} points" if change else "as assumed"


def schedule_text(rows: Sequence[Sequence[int]]) -> str:
    """Rows [first, last, k] as `5 to 18, then 3`."""
    head = ", ".join(f"{k} to {last}" for _, last, k in rows[:-1])
    return head + (", then " if head else "") + str(rows[-1][2])
