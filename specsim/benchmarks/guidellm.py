"""`benchmarks.json` of guidellm: one file a report, one benchmark a load.

guidellm 0.8 (report version 2) and earlier ones: `config.strategy`, before it `args.strategy`, says the load; `metrics`
has distributions by outcome; `requests.successful` has each request unless they were left out. What it calls
`time_per_output_token_ms` counts the first token in; our TPOT is its `inter_token_latency_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specsim.benchmarks.fields import LEAST_TOKENS_PER_S, LONGEST_TOKENS, Fields, from_quantiles, of_mean
from specsim.benchmarks.model import Benchmark
from specsim.errors import ScenarioError

__all__ = ["is_guidellm", "read_guidellm"]

_METRICS = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms"}
_QUANTILES = {"p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
              "p95": 0.95, "p99": 0.99, "p999": 0.999}  # fmt: skip


def is_guidellm(data: Mapping[str, Any]) -> bool:
    """Whether an object looks like a report of guidellm."""
    benchmarks = data.get("benchmarks")
    return isinstance(benchmarks, list) and any(
        isinstance(item, Mapping) and "metrics" in item and ("config" in item or "args" in item) for item in benchmarks
    )


def read_guidellm(data: Mapping[str, Any], place: str) -> Iterator[Benchmark]:
    """Its benchmarks, one a load.

    Raises:
        ScenarioError: field and value, or a load that cannot be simulated.
    """
    for number, item in enumerate(data["benchmarks"], start=1):
        yield _one(Fields(item, place if len(data["benchmarks"]) == 1 else f"{place}: benchmark {number}"))


def _one(found: Fields) -> Benchmark:
    metrics = found.object("metrics")
    config = found.object("config") or found.object("args")
    if metrics is None or config is None:
        raise ScenarioError(f"{found.place}: has no metrics or no config, so it is no benchmark of guidellm")
    totals = metrics.object("request_totals")
    count = None if totals is None else totals.count("successful")
    if not count:
        raise ScenarioError(f"{found.place}: no request of this run succeeded, so there is nothing to compare")
    load = _load(config)
    each = _each(found)
    notes = []
    if each is None:
        prompts, outputs = (_lengths(metrics, name, count, n)
                            for n, name in enumerate(("prompt_token_count", "output_token_count")))  # fmt: skip
        notes.append("Each request's lengths are not in this file: drawn along its quantiles.")
    else:
        prompts, outputs = each
    assert totals is not None
    lost = {name: totals.whole(name) for name in ("incomplete", "errored") if totals.whole(name)}
    if lost:
        said = " and ".join(f"{n} {name}" for name, n in lost.items())
        notes.append(f"{said} requests are not simulated.")
    backend = config.object("backend")
    return Benchmark(
        client="guidellm",
        source=found.place,
        prompt_tokens=prompts,
        output_tokens=outputs,
        figures=_figures(metrics),
        model=None if backend is None else backend.text("model"),
        notes=tuple(notes),
        **load,
    )


def _load(config: Fields) -> dict[str, Any]:
    strategy = config.object("strategy")
    kind = None if strategy is None else strategy.text("type_")
    if strategy is None or kind is None:
        raise ScenarioError(f"{config.place}: has no strategy, so that the load is not known")
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent":
        streams = strategy.whole("streams", low=1)
        return {"concurrency": 1 if streams is None else streams}
    if kind == "throughput":
        return {"concurrency": strategy.whole("max_concurrency")}
    if kind in ("constant", "poisson"):
        return {"rate_per_s": strategy.needed("rate", low=1e-6), "concurrency": strategy.whole("max_concurrency"),
                "arrival_cv": 0.0 if kind == "constant" else 1.0}  # fmt: skip
    raise ScenarioError(f"{config.place}: load of strategy {kind} is not simulated; measure synchronous, concurrent, "
                        f"throughput, constant or poisson")  # fmt: skip


def _each(found: Fields) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Lengths of each request that succeeded; None where they were left out, or only some were kept."""
    requests = found.object("requests")
    rows = [] if requests is None else requests.array("successful")
    totals = Fields(found.data["metrics"], found.place).object("request_totals")
    if totals is None or not rows or len(rows) != totals.whole("successful"):
        return None
    prompts, outputs = [], []
    for number, item in enumerate(rows, start=1):
        row = Fields(item, f"{found.place}: request {number}")
        prompt, output = (row.whole(name, high=LONGEST_TOKENS) for name in ("prompt_tokens", "output_tokens"))
        if not prompt or not output:
            return None
        prompts.append(prompt)
        outputs.append(output)
    return tuple(prompts), tuple(outputs)


def _lengths(metrics: Fields, name: str, count: int, stream: int) -> tuple[int, ...]:
    metric = _successful(metrics, name)
    mean = None if metric is None else metric.number("mean", high=LONGEST_TOKENS)
    if metric is None or not mean:
        raise ScenarioError(f"{metrics.place}: has no {name} of successful requests, so the run cannot be simulated")
    percentiles = metric.object("percentiles") or Fields({}, metric.place)
    quantiles = ((share, percentiles.number(key, high=LONGEST_TOKENS)) for key, share in _QUANTILES.items())
    known = [(share, value) for share, value in quantiles if value is not None]
    if len(known) < 2:
        return of_mean(mean, count)
    # lengths of prompt and output in orders of their own; the same file gives the same requests
    return from_quantiles(known, mean, count, np.random.default_rng((20260131, stream)).permutation(count))


def _successful(metrics: Fields, name: str) -> Fields | None:
    metric = metrics.object(name)
    return None if metric is None else metric.object("successful")


def _figures(metrics: Fields) -> dict[str, float]:
    throughput = metrics.object("output_tokens_per_second")
    # tokens of requests that were cut off at the end were generated too
    whole = None if throughput is None else throughput.object("total") or throughput.object("successful")
    if whole is None:
        raise ScenarioError(f"{metrics.place}: has no output_tokens_per_second, so the run cannot be compared")
    figures = {"output_tokens_per_s": whole.needed("mean", low=LEAST_TOKENS_PER_S)}
    for ours, theirs in _METRICS.items():
        metric = _successful(metrics, theirs)
        if metric is None or not metric.number("mean"):
            continue
        figures[f"{ours}_mean_s"] = metric.needed("mean") / 1e3
        percentiles = metric.object("percentiles") or Fields({}, metric.place)
        for name in ("p50", "p95", "p99"):
            value = percentiles.number(name)
            if value is not None:
                figures[f"{ours}_{name}_s"] = value / 1e3
    return figures
