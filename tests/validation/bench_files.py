"""Small results with the fields that benchmark clients write, around given figures in seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "aiperf_export", "guidellm_report", "sglang_line", "vllm_result", "write"]

FIGURES: Mapping[str, float] = {
    "output_tokens_per_s": 1500.0, "ttft_mean_s": 0.05, "ttft_p50_s": 0.04, "ttft_p95_s": 0.09, "ttft_p99_s": 0.12,
    "tpot_mean_s": 0.010, "tpot_p50_s": 0.0099, "tpot_p95_s": 0.013, "tpot_p99_s": 0.015,
    "itl_chunk_p50_s": 0.02, "itl_chunk_p95_s": 0.03, "itl_chunk_p99_s": 0.04,
}  # fmt: skip
PROMPTS, OUTPUTS = (100, 200, 300, 400), (20, 40, 60, 80)


def _milliseconds(figures: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    return {theirs: 1e3 * figures[ours] for theirs, ours in names.items() if ours in figures}


def _flat(figures: Mapping[str, float], *, gaps: str) -> dict[str, float]:
    names = {f"{word}_{metric}_ms": f"{metric}_{what}_s" for metric in ("ttft", "tpot")
             for word, what in (("mean", "mean"), ("median", "p50"), ("p95", "p95"), ("p99", "p99"))}  # fmt: skip
    names |= {
        f"{word}_itl_ms": f"{gaps}_{what}_s" for word, what in (("median", "p50"), ("p95", "p95"), ("p99", "p99"))
    }
    names["mean_itl_ms"] = f"{gaps}_p50_s"
    return _milliseconds(figures, names)


def vllm_result(
    figures: Mapping[str, float] = FIGURES,
    *,
    prompts: Sequence[int] = PROMPTS,
    outputs: Sequence[int] = OUTPUTS,
    detailed: bool = True,
    marginals: Sequence[float] = (),
    **changes: Any,
) -> dict[str, Any]:
    """As `vllm bench serve --save-result` writes it (0.33)."""
    count, total = len(prompts), sum(outputs)
    seconds = total / figures["output_tokens_per_s"]
    result: dict[str, Any] = {
        "date": "20260131-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
        "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": count, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": seconds,
        "completed": count, "failed": 0, "total_input_tokens": sum(prompts), "total_output_tokens": total,
        "request_throughput": count / seconds, "request_goodput": None,
        "output_throughput": figures["output_tokens_per_s"], "total_token_throughput": (sum(prompts) + total) / seconds,
        "max_output_tokens_per_s": 2000.0, "max_concurrent_requests": 2, "rtfx": 0.0,
        **_flat(figures, gaps="itl_chunk"), "std_ttft_ms": 1.0, "std_tpot_ms": 1.0, "std_itl_ms": 1.0,
    }  # fmt: skip
    if marginals:
        result |= {
            "spec_decode_acceptance_rate": 100 * sum(marginals) / len(marginals),
            "spec_decode_acceptance_length": 1 + sum(marginals), "spec_decode_num_drafts": 1000,
            "spec_decode_draft_tokens": 1000 * len(marginals),
            "spec_decode_accepted_tokens": round(1000 * sum(marginals)),
            "spec_decode_per_position_acceptance_rates": list(marginals),
        }  # fmt: skip
    if detailed:
        result |= {
            "input_lens": list(prompts), "output_lens": list(outputs), "start_times": [100.0 + n for n in range(count)],
            "ttfts": [0.1] * count, "itls": [[0.02] * (n - 1) for n in outputs], "generated_texts": [""] * count,
            "errors": [""] * count,
        }  # fmt: skip
    return result | changes


def sglang_line(
    figures: Mapping[str, float] = FIGURES,
    *,
    prompts: Sequence[int] = PROMPTS,
    outputs: Sequence[int] = OUTPUTS,
    detailed: bool = True,
    server: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """As `bench_serving` appends it (0.5.23)."""
    count, total = len(prompts), sum(outputs)
    seconds = total / figures["output_tokens_per_s"]
    details = {} if not detailed else {
        "input_lens": list(prompts), "output_lens": list(outputs), "ttfts": [0.1] * count,
        "itls": [[0.02] * (n - 1) for n in outputs], "generated_texts": [""] * count, "errors": [""] * count,
    }  # fmt: skip
    return {
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 2,
        "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 1024, "random_range_ratio": 0.0,
        "server_info": server, "duration": seconds, "completed": count, "total_input_tokens": sum(prompts),
        "total_input_text_tokens": sum(prompts), "total_input_vision_tokens": 0, "total_output_tokens": total,
        "total_output_tokens_retokenized": total, "request_throughput": count / seconds,
        "input_throughput": sum(prompts) / seconds, "output_throughput": figures["output_tokens_per_s"],
        "mean_e2e_latency_ms": 500.0, "median_e2e_latency_ms": 500.0, **_flat(figures, gaps="itl_chunk"),
        "concurrency": 2.0, "accept_length": None, "max_output_tokens_per_s": 2000.0, "max_concurrent_requests": 2,
    } | details | changes  # fmt: skip


def _metric(unit: str, mean: float, **rest: float) -> dict[str, Any]:
    return {"unit": unit, "avg": mean, **rest}


def aiperf_export(
    figures: Mapping[str, float] = FIGURES,
    *,
    prompts: Sequence[int] = PROMPTS,
    outputs: Sequence[int] = OUTPUTS,
    load: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """As aiperf 0.13 exports it (schema 1.4)."""

    def seconds(metric: str) -> dict[str, Any]:
        rest = {p: 1e3 * figures[f"{metric}_{p}_s"] for p in ("p50", "p95", "p99")}
        return _metric("ms", 1e3 * figures.get(f"{metric}_mean_s", figures[f"{metric}_p50_s"]), **rest)

    def lengths(values: Sequence[int]) -> dict[str, Any]:
        return _metric("tokens", sum(values) / len(values), min=min(values), p50=sorted(values)[len(values) // 2],
                       max=max(values), count=len(values))  # fmt: skip

    return {
        "schema_version": "1.4", "aiperf_version": "0.13.0", "benchmark_id": "b",
        "request_throughput": _metric("requests/sec", 1.0), "request_count": _metric("requests", float(len(prompts))),
        "time_to_first_token": seconds("ttft"), "inter_token_latency": seconds("tpot"),
        "inter_chunk_latency": seconds("itl_chunk"),
        "output_token_throughput": _metric("tokens/sec", figures["output_tokens_per_s"]),
        "output_sequence_length": lengths(outputs), "input_sequence_length": lengths(prompts),
        "input_config": {
            "models": {"items": [{"name": "meta-llama/Llama-3.1-8B-Instruct"}]},
            "phases": [{"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 1},
                       {"name": "profiling", "kind": "profiling", **(load or {"type": "concurrency",
                                                                              "concurrency": 2})}],
        },
        "was_cancelled": False, "error_summary": [],
    } | changes  # fmt: skip


def guidellm_report(
    figures: Mapping[str, float] = FIGURES,
    *,
    prompts: Sequence[int] = PROMPTS,
    outputs: Sequence[int] = OUTPUTS,
    strategies: Sequence[Mapping[str, Any]] = ({"type_": "concurrent", "streams": 2},),
    each: bool = True,
    of_old: bool = False,
) -> dict[str, Any]:
    """As guidellm 0.8 writes `benchmarks.json`; `of_old`: as before 0.4, where `config` was `args`."""

    def summary(mean: float, **percentiles: float) -> dict[str, Any]:
        return {"mean": mean, "median": mean, "count": len(prompts), "percentiles": percentiles}

    def figure(name: str) -> dict[str, Any]:
        rest = {p: 1e3 * figures[f"{name}_{p}_s"] for p in ("p50", "p95", "p99")}
        return {"successful": summary(1e3 * figures[f"{name}_mean_s"], **rest)}

    def lengths(values: Sequence[int]) -> dict[str, Any]:
        own = sorted(values)
        return {"successful": summary(sum(own) / len(own), p01=own[0], p50=own[len(own) // 2], p999=own[-1])}

    metrics = {
        "request_totals": {"successful": len(prompts), "incomplete": 1, "errored": 0, "total": len(prompts) + 1},
        "prompt_token_count": lengths(prompts), "output_token_count": lengths(outputs),
        "time_to_first_token_ms": figure("ttft"), "inter_token_latency_ms": figure("tpot"),
        "time_per_output_token_ms": {"successful": summary(999.0, p50=999.0, p95=999.0, p99=999.0)},
        "output_tokens_per_second": {"successful": summary(0.9 * figures["output_tokens_per_s"]),
                                     "total": summary(figures["output_tokens_per_s"])},
    }  # fmt: skip
    rows = [{"prompt_tokens": p, "output_tokens": o} for p, o in zip(prompts, outputs, strict=True)] if each else []
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                ("args" if of_old else "config"): {
                    "strategy": strategy, "backend": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
                },
                "metrics": metrics, "requests": {"successful": rows, "incomplete": [], "errored": []},
            }
            for strategy in strategies
        ],
    }  # fmt: skip


def write(path: Path, *objects: Any, lines: bool = False) -> str:
    """JSON of one object, or of several, a line each or one right after another; the path as text."""
    text = ("\n" if lines else "").join(json.dumps(item) for item in objects)
    path.write_text(text, encoding="utf-8")
    return str(path)
