"""`profile_export_aiperf.json` of aiperf, and of GenAI-Perf before it: one object a run, each metric one with a unit.

aiperf 0.13, export schema 1.4; the load is in `input_config`, as phases in newer and as `loadgen` in older ones.
`inter_token_latency` is a request's time from first to last token over its further tokens, which is our TPOT;
`inter_chunk_latency` are the gaps. Each request's lengths are in another file: here they are quantiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from specsim.benchmarks.fields import LEAST_TOKENS_PER_S, LONGEST_TOKENS, Fields, from_quantiles, of_mean
from specsim.benchmarks.model import MOST_LENGTH, Acceptance, Benchmark
from specsim.errors import ScenarioError

__all__ = ["is_aiperf", "read_aiperf"]

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_METRICS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl_chunk": "inter_chunk_latency"}
_STATISTICS = {"mean": "avg", "p50": "p50", "p95": "p95", "p99": "p99"}
_QUANTILES = {"min": 0.0, "p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
              "p95": 0.95, "p99": 0.99, "max": 1.0}  # fmt: skip
_RATE_CV = {"poisson": 1.0, "constant": 0.0, "gamma": 1.0}
_AS_SLOTS_FREE = "concurrency_burst"
"""Arrival pattern without a rate: the next request is sent when one ends."""
_MOST_DRAFTS = MOST_LENGTH - 1


def is_aiperf(data: Mapping[str, Any]) -> bool:
    """Whether an object looks like an export of aiperf."""
    throughput = data.get("output_token_throughput")
    return isinstance(throughput, Mapping) and "unit" in throughput


def read_aiperf(data: Mapping[str, Any], place: str) -> Benchmark:
    """One run.

    Raises:
        ScenarioError: field and value, or a load that cannot be simulated.
    """
    found = Fields(data, place)
    count = _count(found)
    config = found.object("input_config") or Fields({}, place)
    model, load = _model(config), _load(config)
    notes = ["Each request's lengths are not in this file: drawn along its quantiles."]
    failed = found.object("error_request_count")
    if failed is not None and failed.number("avg"):
        notes.append(f"{failed.number('avg'):g} requests failed; they are not simulated.")
    if data.get("was_cancelled") is True or data.get("is_complete") is False:
        notes.append("The run was stopped before its end.")
    acceptance = _acceptance(found)
    return Benchmark(
        client="aiperf",
        source=place,
        prompt_tokens=_lengths(found, "input_sequence_length", count, 0),
        output_tokens=_lengths(found, "output_sequence_length", count, 1),
        figures=_figures(found),
        model=model,
        acceptance=acceptance,
        speculates=None if acceptance is None else True,
        notes=tuple(notes),
        **load,
    )


def _count(found: Fields) -> int:
    requests = found.object("request_count")
    count = None if requests is None else requests.count("avg")
    if not count:
        raise ScenarioError(f"{found.place}: no request of this run succeeded, or request_count is missing")
    return count


def _lengths(found: Fields, name: str, count: int, stream: int) -> tuple[int, ...]:
    metric = found.object(name)
    mean = None if metric is None else metric.number("avg", low=1, high=LONGEST_TOKENS)
    if metric is None or mean is None:
        raise ScenarioError(f"{found.place}: has no {name}, so the run cannot be simulated")
    quantiles = ((share, metric.number(key, high=LONGEST_TOKENS)) for key, share in _QUANTILES.items())
    known = [(share, value) for share, value in quantiles if value is not None]
    if len(known) < 2:
        return of_mean(mean, count)
    # lengths of prompt and output in orders of their own; the same file gives the same requests
    order = np.random.default_rng((20260131, stream)).permutation(count)
    return from_quantiles(known, mean, count, order)


def _figures(found: Fields) -> dict[str, float]:
    throughput = found.object("output_token_throughput")
    assert throughput is not None
    figures = {"output_tokens_per_s": throughput.needed("avg", low=LEAST_TOKENS_PER_S)}
    for ours, theirs in _METRICS.items():
        metric = found.object(theirs)
        if metric is None:
            continue
        factor = _SECONDS.get(metric.text("unit") or "")
        if factor is None:
            raise ScenarioError(f"{metric.place}: unit must be one of {', '.join(_SECONDS)}, is "
                                f"{metric.data.get('unit')!r}")  # fmt: skip
        for name, key in _STATISTICS.items():
            value = metric.number(key)
            if value is not None and not (ours == "itl_chunk" and name == "mean"):
                figures[f"{ours}_{name}_s"] = value * factor
    return figures


def _model(config: Fields) -> str | None:
    models, endpoint = config.object("models"), config.object("endpoint")
    if models is not None:
        place = f"{models.place}: items"
        found = [Fields(item, place).text("name") for item in models.array("items")]
    elif endpoint is not None:
        found = [Fields({"model_names": name}, endpoint.place).text("model_names")
                 for name in endpoint.array("model_names")]  # fmt: skip
    else:
        return None
    names = list(dict.fromkeys(name for name in found if name is not None))
    if len(names) > 1:
        raise ScenarioError(f"{config.place}: measured with the models {', '.join(names)} in turn; measure one")
    return names[0] if names else None


def _load(config: Fields) -> dict[str, Any]:
    phases = config.data.get("phases")
    if isinstance(phases, list):
        return _of_phase(phases, config.place)
    loadgen = config.object("loadgen")
    if loadgen is None:
        raise ScenarioError(f"{config.place}: does not say at which load it was measured; input_config with phases or "
                            f"loadgen does")  # fmt: skip
    rate, concurrency = loadgen.number("request_rate"), loadgen.whole("concurrency")
    mode = loadgen.text("arrival_pattern") or loadgen.text("request_rate_mode") or "poisson"
    if mode not in _RATE_CV and not (mode == _AS_SLOTS_FREE and rate is None):
        raise ScenarioError(f"{loadgen.place}: arrivals of pattern '{mode}' are not simulated; measure with "
                            f"{', '.join(_RATE_CV)}, or at a concurrency")  # fmt: skip
    if rate is None and concurrency is None:
        concurrency = 1  # what these clients do when nothing is said
    return {"concurrency": concurrency, "rate_per_s": rate, "arrival_cv": _RATE_CV.get(mode, 1.0)}


def _of_phase(phases: list[Any], place: str) -> dict[str, Any]:
    measured = [
        own for phase in phases
        if "warmup" not in ((own := Fields(phase, f"{place}: phases")).data.get("kind"), own.data.get("name"))
    ]  # fmt: skip
    if len(measured) != 1:
        raise ScenarioError(f"{place}: {len(measured)} measured phases; one load can be compared at a time")
    phase = measured[0]
    kind = phase.text("type")
    if kind == "concurrency":
        most = phase.whole("concurrency", low=1)
        return {"concurrency": 1 if most is None else most}
    if kind in _RATE_CV:
        cv = _RATE_CV[kind]
        smoothness = phase.number("smoothness", low=1e-3)
        if kind == "gamma" and smoothness is not None:
            cv = float(smoothness**-0.5)
        rate, most = phase.needed("rate", low=1e-6), phase.whole("concurrency", low=1)
        return {"rate_per_s": rate, "concurrency": most, "arrival_cv": cv}
    raise ScenarioError(f"{place}: load of type {kind!r} is not simulated; measure at a concurrency, or at a constant, "
                        f"poisson or gamma rate")  # fmt: skip


def _acceptance(found: Fields) -> Acceptance | None:
    histogram = found.object("pooled_spec_decode_acceptance_histogram")
    if histogram is not None:
        for key in histogram.data:
            if not re.fullmatch("[0-9]{1,2}", key) or int(key) > _MOST_DRAFTS:
                raise ScenarioError(f"{histogram.place}: a key is a number of accepted drafts in 0..{_MOST_DRAFTS}, is "
                                    f"'{' '.join(key.split())[:60]}'")  # fmt: skip
        steps = {int(key): histogram.number(key) or 0.0 for key in histogram.data}
        total = sum(steps.values())
        if total > 0:
            most = max(steps)
            marginals = [sum(n for j, n in steps.items() if j >= i) / total for i in range(1, most + 1)]
            return Acceptance.of_marginals(marginals)
    for name in ("spec_decode_token_weighted_acceptance_length", "spec_decode_acceptance_length"):
        metric = found.object(name)
        length = None if metric is None else metric.number("avg", low=1, high=MOST_LENGTH)
        if length is not None:
            return Acceptance(length)
    return None
