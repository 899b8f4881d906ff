"""The answer of `specsim validate published` as one JSON-able dict: rows, what could not be predicted, how it came out.

Models nothing by itself. Errors are predicted over measured speed-up, less 1; a sign counts where the measured speed-up
differs from 1 by more than 5 %, since less is noise between two measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specsim.planner.published import Case, Prediction

__all__ = ["PROTOCOLS", "SCHEMA_VERSION", "TARGETS", "published_result"]

SCHEMA_VERSION = 1
PROTOCOLS: Mapping[str, str] = {
    "given": "acceptance as the row states it",
    "anchored": "acceptance solved at the lowest load of a sweep, the other loads predicted",
    "catalogue": "acceptance from the catalogue, since the row states none",
    "loaded": "k = 0: speculation loaded, nothing drafted",
}
"""Protocols that predict, in the order of reports."""
TARGETS: Mapping[str, Mapping[str, float]] = {
    "given": {"median_error": 0.08},
    "anchored": {"median_error": 0.06, "sign_right_share": 0.97},
}
"""What is aimed at."""
_NOISE = 0.05
_LOADS = ((1, 1, "1"), (2, 15, "2 to 15"), (16, 63, "16 to 63"), (64, 65536, "64 and more"))
_RATE = "requests/s"


def published_result(
    cases: Sequence[Case],
    predictions: Sequence[Prediction],
    unpredictable: Sequence[tuple[str, str, str]],
    *,
    rows_from: str,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that the reports print. `unpredictable`: (id, source, reason)."""
    by_case: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_case.setdefault(prediction.case.id, []).append(prediction)
    return {
        "schema_version": SCHEMA_VERSION,
        "rows_from": rows_from,
        "rows": [_row(case, by_case.get(case.id, [])) for case in cases],
        "unpredictable": [{"id": id, "source": source, "reason": reason} for id, source, reason in unpredictable],
        "summary": _summary(predictions),
        "targets": {name: dict(target) for name, target in TARGETS.items()},
        "protocols": dict(PROTOCOLS),
        "settings": dict(settings),
    }


def _row(case: Case, predictions: Sequence[Prediction]) -> dict[str, Any]:
    deployment, settings = case.question.deployment, case.settings
    return {
        "id": case.id,
        "source": case.source,
        "target": case.target,
        "draft": case.question.names["draft"],
        "gpu": case.gpu,
        "tp": deployment.tp,
        "weight_dtype": case.question.on.profile.covers.get("weight_dtype"),
        "kv_dtype": deployment.kv_dtype,
        "method": case.method,
        "k": settings.num_spec_tokens,
        "tree_nodes": case.question.tree_nodes(settings.num_spec_tokens),
        "isl": settings.prompt.mean,
        "osl": settings.output.mean,
        "concurrency": case.settings.concurrency[0] if case.rate_per_s is None else None,
        "rate_per_s": case.rate_per_s,
        "metric": case.metric,
        "unit": case.unit,
        "measured": case.measured,
        "measured_off": case.baseline,
        "measured_on": case.speculative,
        "acceptance_from_row": case.acceptance_said or None,
        "assumed": list(case.assumed),
        "incomplete": list(case.incomplete),
        "sets": case.sets or None,
        "sweep": case.sweep,
        "predictions": [_prediction(prediction) for prediction in predictions],
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    case = prediction.case
    return {
        "protocol": prediction.protocol,
        "speedup": _finite(prediction.speedup),
        "interval": {"low": _finite(prediction.low), "high": _finite(prediction.high)},
        "error": _finite(prediction.error),
        "null": _finite(prediction.null),
        "null_model": case.null.name,
        "null_error": _finite(prediction.null_error),
        "acceptance_length": prediction.length,
        "null_acceptance_length": prediction.null_length,
        "off": _finite(prediction.baseline),
        "off_error": _off(prediction.baseline, case.baseline),
        "on": _finite(prediction.speculative),
        "on_error": _off(prediction.speculative, case.speculative),
        "warning": prediction.warning or None,
    }


def _off(predicted: float, measured: float | None) -> float | None:
    return None if measured is None else _finite(predicted / measured - 1.0)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _summary(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """One entry a protocol and group: all complete rows, those with an essential condition assumed, those
    by which a factor was set, and parts of the complete ones by source, method and load."""
    found = []
    for protocol in PROTOCOLS:
        mine = [p for p in predictions if p.protocol == protocol and math.isfinite(p.speedup)]
        setting = [p for p in mine if p.case.sets]
        complete = [p for p in mine if not p.case.incomplete and not p.case.sets]
        lacking = [p for p in mine if p.case.incomplete and not p.case.sets]
        found += [_group(protocol, "all", "complete", complete)] if complete else []
        found += [_group(protocol, "incomplete", "incomplete", lacking)] if lacking else []
        found += [_group(protocol, "sets", "sets a factor", setting)] if setting else []
        by: tuple[tuple[str, Callable[[Prediction], str]], ...] = (
            ("source", lambda p: p.case.source),
            ("method", lambda p: p.case.method),
            ("load", _load),
        )
        for kind, name_of in by:
            names = list(dict.fromkeys(map(name_of, complete)))
            if kind == "load":
                names = [name for name in (*(name for _, _, name in _LOADS), _RATE) if name in names]
            for name in names:
                found.append(_group(protocol, kind, name, [p for p in complete if name_of(p) == name]))
    return found


def _load(prediction: Prediction) -> str:
    case = prediction.case
    if case.rate_per_s is not None:
        return _RATE
    return next(name for low, high, name in _LOADS if low <= case.load <= high)


def _group(protocol: str, kind: str, name: str, members: Sequence[Prediction]) -> dict[str, Any]:
    clear = [p for p in members if abs(p.case.measured - 1.0) > _NOISE]
    return {
        "protocol": protocol,
        "group": kind,
        "name": name,
        "points": len(members),
        "sign_points": len(clear),
        **_figures("", [p.error for p in members], [(p.speedup > 1.0) == (p.case.measured > 1.0) for p in clear]),
        **_figures(
            "null_", [p.null_error for p in members], [(p.null > 1.0) == (p.case.measured > 1.0) for p in clear]
        ),
    }


def _agree(predicted: float, measured: float) -> bool:
    return (predicted > 1.0) == (measured > 1.0)


def _figures(prefix: str, errors: Sequence[float], signs: Sequence[bool]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    return {
        f"{prefix}sign_right_share": sum(signs) / len(signs) if signs else None,
        f"{prefix}median_error": statistics.median(sizes),
        f"{prefix}p90_error": float(np.quantile(sizes, 0.9)),
        f"{prefix}mean_signed_error": statistics.fmean(errors),
    }
