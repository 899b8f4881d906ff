"""Results of `vllm bench serve` and of SGLang's `bench_serving`: one flat object a run, of common descent.

vLLM 0.33: `--save-result` (`--save-detailed` adds each request's lengths, times and gaps; `--append-result` puts
several objects into one file); spec_decode_* where the server exposes its counters. SGLang 0.5.23: a JSON line a run
(`--output-details` adds each request's); `accept_length` where the server speculates; newer ones keep `server_info`.
Gaps: vLLM's are between chunks, as ours; SGLang spreads a chunk over its tokens, which is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specsim.benchmarks.fields import LEAST_TOKENS_PER_S, Fields, of_mean
from specsim.benchmarks.model import MOST_LENGTH, Acceptance, Benchmark
from specsim.errors import ScenarioError

__all__ = ["is_sglang", "is_vllm", "read_sglang", "read_vllm"]

_COMMON = {"backend", "request_rate", "duration", "completed", "output_throughput", "total_input_tokens"}
_PERCENTS = {"p50": 50, "p95": 95, "p99": 99}
_AGREE = 0.02
"""Relative difference of 1 + the sum of marginals from the length at which they are at odds."""


def is_vllm(data: Mapping[str, Any]) -> bool:
    """Whether an object looks like a result of `vllm bench serve`."""
    return set(data) >= _COMMON and "model_id" in data


def is_sglang(data: Mapping[str, Any]) -> bool:
    """Whether an object looks like a result of `bench_serving`."""
    return set(data) >= _COMMON and "dataset_name" in data and "model_id" not in data


def read_vllm(data: Mapping[str, Any], place: str) -> Benchmark:
    """One run.

    Raises:
        ScenarioError: field and value.
    """
    found = Fields(data, place)
    rate, concurrency = _rate(found), _concurrency(found)
    kept, requests = _requests(found)
    times = [] if kept is None else found.numbers("start_times", len(found.array("output_lens")))
    if data.get("ramp_up_strategy") is not None and not times:
        raise ScenarioError(f"{place}: its rate was ramped up, and only --save-detailed keeps when requests were sent")
    starts: tuple[float, ...] = ()
    if concurrency is None and kept is not None and times:
        first = min(times[n] for n in kept)
        starts = tuple(times[n] - first for n in kept)
        requests = requests.in_order(starts)
        starts = tuple(sorted(starts))
    burstiness = found.data.get("burstiness")
    shape = found.number("burstiness", low=1e-3) if burstiness not in (None, math.inf) else 1.0
    return Benchmark(
        client="vllm bench serve",
        source=place,
        prompt_tokens=requests.prompts,
        output_tokens=requests.outputs,
        figures=_figures(found, requests, chunk_gaps=True),
        model=found.text("model_id"),
        backend=found.text("backend"),
        concurrency=concurrency,
        rate_per_s=rate,
        arrival_cv=0.0 if burstiness == math.inf else 1 / math.sqrt(shape or 1.0),
        starts_s=starts,
        acceptance=_vllm_acceptance(found),
        speculates=True if _length(found, "spec_decode_acceptance_length") else None,
        notes=tuple(_notes(found, requests)),
    )


def read_sglang(data: Mapping[str, Any], place: str) -> Benchmark:
    """One run.

    Raises:
        ScenarioError: field and value, or a replay of times that the file does not have.
    """
    found = Fields(data, place)
    if data["request_rate"] == "trace":
        raise ScenarioError(f"{place}: requests were sent at the times of a trace, which the file does not have; "
                            f"measure at a rate or at a concurrency")  # fmt: skip
    _, requests = _requests(found)
    length = _length(found, "accept_length")
    server = found.object("server_info")
    says = {} if server is None else _server_says(server)
    k = int(says["num_spec_tokens"]) if says.get("num_spec_tokens") else None
    return Benchmark(
        client="sglang bench_serving",
        source=place,
        prompt_tokens=requests.prompts,
        output_tokens=requests.outputs,
        figures=_figures(found, requests, chunk_gaps=False),
        model=None if server is None else server.text("model_path"),
        backend=found.text("backend"),
        concurrency=_concurrency(found),
        rate_per_s=_rate(found),
        acceptance=Acceptance(length, num_spec_tokens=k) if length and length > 1 else None,
        speculates=True if length and length > 1 else (bool(says.get("method")) if server is not None else None),
        says=says,
        notes=tuple(_notes(found, requests)),
    )


@dataclass(frozen=True, slots=True)
class _Requests:
    """Lengths of the requests that succeeded, and what is known of each."""

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    each: bool
    """Whether the lengths are those of single requests."""
    ttfts: Sequence[float] = ()
    tpots: Sequence[float] = ()
    gaps: Sequence[float] = ()
    """Seconds; empty: not in the file."""

    def in_order(self, starts: Sequence[float]) -> _Requests:
        """Lengths sorted by when they were sent."""
        if not starts:
            return self
        order = np.argsort(np.array(starts), kind="stable").tolist()
        prompts, outputs = (tuple(column[n] for n in order) for column in (self.prompts, self.outputs))
        return replace(self, prompts=prompts, outputs=outputs)


def _requests(found: Fields) -> tuple[list[int] | None, _Requests]:
    """(numbers of the kept requests where each is known, the requests)."""
    completed = found.count("completed")
    if not completed:
        raise ScenarioError(f"{found.place}: no request of this run succeeded, so there is nothing to compare")
    prompts = found.lengths("input_lens")
    told = found.data.get("input_lens") is not None or found.data.get("output_lens") is not None
    outputs = found.lengths("output_lens", len(prompts) if told else None)
    if not told:
        means = [found.needed(f"total_{which}_tokens", low=1) / completed for which in ("input", "output")]
        return None, _Requests(of_mean(means[0], completed), of_mean(means[1], completed), False)
    kept = [n for n, tokens in enumerate(outputs) if tokens >= 1]
    if len(kept) != completed:
        raise ScenarioError(f"{found.place}: {completed} requests completed, and output_lens has {len(kept)} of at "
                            f"least one token")  # fmt: skip
    lengths = [tuple(column[n] for n in kept) for column in (prompts, outputs)]
    return kept, _Requests(lengths[0], lengths[1], True, *_times(found, outputs, kept))


def _times(
    found: Fields, outputs: Sequence[float], kept: Sequence[int]
) -> tuple[list[float], list[float], list[float]]:
    """Seconds: first token of each request, per further token of each, and all gaps."""
    ttfts = found.numbers("ttfts", len(outputs))
    rows = found.array("itls")
    if found.data.get("itls") is not None and len(rows) != len(outputs):
        raise ScenarioError(f"{found.place}: itls has {len(rows)} entries for {len(outputs)} requests")
    gaps = [Fields({"itls": row}, f"{found.place}: request {n + 1}").numbers("itls") for n, row in enumerate(rows)]
    if not ttfts or not gaps:
        return [], [], []
    latencies = found.numbers("latencies", len(outputs))
    if not latencies:
        latencies = [first + sum(own) for first, own in zip(ttfts, gaps, strict=True)]
    tpots = [(latencies[n] - ttfts[n]) / (outputs[n] - 1) for n in kept if outputs[n] > 1]
    return [ttfts[n] for n in kept], tpots, [gap for n in kept for gap in gaps[n]]


def _figures(found: Fields, requests: _Requests, *, chunk_gaps: bool) -> dict[str, float]:
    """Seconds and tokens a second; a mean of 0 is how these clients say that nothing was streamed."""
    figures = {"output_tokens_per_s": found.needed("output_throughput", low=LEAST_TOKENS_PER_S)}
    for metric, each in (("ttft", requests.ttfts), ("tpot", requests.tpots)):
        if not found.number(f"mean_{metric}_ms"):
            continue
        figures[f"{metric}_mean_s"] = found.needed(f"mean_{metric}_ms") / 1e3
        figures |= {f"{metric}_{name}_s": value for name, value in _percentiles(found, metric, each).items()}
    if chunk_gaps and found.number("mean_itl_ms"):
        figures |= {f"itl_chunk_{name}_s": value for name, value in _percentiles(found, "itl", requests.gaps).items()}
    return figures


def _percentiles(found: Fields, metric: str, each: Sequence[float]) -> dict[str, float]:
    """Those of the file; those that it lacks from each request's."""
    result = {}
    for name, percent in _PERCENTS.items():
        value = found.number(f"median_{metric}_ms" if percent == 50 else f"{name}_{metric}_ms")
        if value is not None:
            result[name] = value / 1e3
        elif len(each):
            result[name] = float(np.percentile(each, percent))
    return result


def _rate(found: Fields) -> float | None:
    if found.data["request_rate"] in ("inf", math.inf):
        return None
    return found.needed("request_rate", low=1e-6)


def _concurrency(found: Fields) -> int | None:
    most = found.whole("max_concurrency")
    if most == 0:
        raise ScenarioError(f"{found.place}: max_concurrency must be at least 1, is 0")
    return most


def _notes(found: Fields, requests: _Requests) -> list[str]:
    notes = []
    failed = found.whole("failed")
    if failed:
        notes.append(f"{failed} requests failed; they are not simulated.")
    if not requests.each:
        how = "--save-detailed" if "model_id" in found.data else "--output-details"
        notes.append(f"Only mean lengths are in the file: all requests are as long as the mean; {how} keeps each.")
    return notes


def _length(found: Fields, name: str) -> float | None:
    """Mean acceptance length; 0 or None: nothing was drafted.

    Raises:
        ScenarioError: below 1, which counts no bonus token, or more than a round can draft.
    """
    return found.number(name, low=1, high=MOST_LENGTH) if found.number(name) else None


def _vllm_acceptance(found: Fields) -> Acceptance | None:
    length = _length(found, "spec_decode_acceptance_length")
    if not length:
        return None
    name = "spec_decode_per_position_acceptance_rates"
    marginals, before = found.numbers(name), 1.0
    for position, marginal in enumerate(marginals, start=1):
        if marginal > before:
            raise ScenarioError(f"{found.place}: {name} must lie in 0..1 and not rise, since a draft is accepted only "
                                f"behind accepted ones; entry {position} is {marginal:g} after {before:g}; correct it, "
                                f"or leave the field out")  # fmt: skip
        before = marginal
    # counters of data-parallel ranks that were summed wrongly do not add up to the length
    if not marginals or abs(1 + sum(marginals) - length) > _AGREE * length:
        return Acceptance(length, num_spec_tokens=len(marginals) or None)
    return Acceptance.of_marginals(marginals, length)


def _server_says(server: Fields) -> dict[str, str]:
    """What SGLang's server tells of itself, by field of a deployment or a speculation."""
    says = {}
    tp = server.whole("tp_size", low=1)
    if tp is not None:
        says["tp"] = str(tp)
    method = server.text("speculative_algorithm")
    if method and method.upper() != "NONE":
        says["method"] = "draft_model" if method.upper() == "STANDALONE" else method
        drafts = server.whole("speculative_num_draft_tokens", low=2, high=65)
        if drafts is not None and (server.whole("speculative_eagle_topk") or 1) == 1:
            says["num_spec_tokens"] = str(drafts - 1)  # the root of the draft counts there
    return says
