"""What a published row was measured on: engine of its time, GPUs, number formats.

Models: words of the cells, and for an engine without a version the release of the month that the row names.
Leaves out: flags of the engine. Numbers: release months in `words.toml`.
"""

from __future__ import annotations

import re

from scenarios.lookup import one_line
from scenarios.models import model as find_model
from scenarios.published.rows import PublishedRow
from scenarios.published.units import LoadKind
from scenarios.published.words import (
    dtype_words,
    engine_words,
    fallback,
    gpu_words,
    release_of,
    target_dtype,
    target_words,
)
from specsim.config import Deployment
from specsim.errors import ScenarioError

__all__ = ["Filled", "deployment_of"]

_ESSENTIAL = ("target", "hardware", "method", "k")
"""Conditions without which a prediction says little: rows that lack one are reported apart."""
_SEQUENCES = 48
"""What every engine admits by default, also with speculation; llama.cpp has a few slots."""


class Filled:
    """Collects what was assumed for a row, and which of it matters most."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.essential: list[str] = []

    def add(self, column: str, said: str) -> None:
        """Note a sentence for a column; an empty one notes nothing."""
        if said:
            self.said.append(said)
            if column in _ESSENTIAL:
                self.essential.append(column)


def deployment_of(row: PublishedRow, kind: LoadKind, concurrency: int, filled: Filled) -> Deployment:
    """Target, GPUs and engine; `tp` 1 where the row does not count GPUs.

    Raises:
        ScenarioError: target blank, or a figure out of range.
        CatalogueError: a target or GPU that the catalogue does not have, nor anything like it.
    """
    if not row.target:
        raise ScenarioError("target is blank")
    target, said = target_words(row.target, row.target_params_b)
    filled.add("target" if "stands in" in said else "name", said)
    if row.hardware:
        gpu, counted = gpu_words(row.hardware)
    else:
        gpu, counted = fallback()["gpu"], None
        filled.add("hardware", f"gpu {gpu} ({fallback()['source']})")
    weight_dtype, kv_dtype = _dtypes(row, filled)
    if weight_dtype is None and find_model(target).native_weight_dtype == "bf16":
        weight_dtype = target_dtype(row.target)
        if weight_dtype is None and re.search(r"quanti[sz]ed", row.target, re.IGNORECASE):
            weight_dtype = "int4"
            filled.add("dtype", "weights int4 (assumed for 'quantized')")
    words = row.load_kind.lower()
    fixed = kind == "closed" and (concurrency > _SEQUENCES or engine_words(row.engine)[0] == "llamacpp")
    batch = fixed and any(word in words for word in ("batch", "slot", "seqs", "parallel"))
    values = {
        "target": target,
        "gpu": gpu,
        "tp": row.n_gpus or counted or 1,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype or "bf16",
        # a batch is what ran at once, whatever the engine admits by default
        "max_num_seqs": concurrency if batch else None,
    }
    return _with_engine(row, values, filled)


def _with_engine(row: PublishedRow, values: dict[str, object], filled: Filled) -> Deployment:
    """The deployment under the row's engine, or under vLLM where that engine is not modelled or not named."""
    engine, version = engine_words(row.engine)
    if engine and not version:
        version = release_of(engine, row.engine)
        if version:
            filled.add("engine", f"{engine} {version} (its release of the month in '{one_line(row.engine)}')")
    if engine:
        given = {"engine": engine} | ({"engine_version": version} if version else {})
        if not version:
            filled.add("engine", f"{engine}, a current version")
        try:
            return Deployment(**values, **given)  # type: ignore[arg-type]
        except ScenarioError as refusal:
            if "engine" not in str(refusal):
                raise
    name = one_line(row.engine) or "no engine is named"
    filled.add("engine", f"vLLM assumed ({name})")
    return Deployment(**values)  # type: ignore[arg-type]


def _dtypes(row: PublishedRow, filled: Filled) -> tuple[str | None, str | None]:
    """Weights and KV cache: `FP8`, `bf16, fp8 KV cache`."""
    weights: str | None = None
    cache: str | None = None
    for piece in re.split(r"[,;+/]| with ", row.dtype):
        if not piece.strip():
            continue
        try:
            found = dtype_words(piece)
        except ScenarioError as refusal:
            filled.add("dtype", f"{refusal}: as the checkpoint stores it")
            continue
        if re.search(r"\bkv\b|cache", piece, re.IGNORECASE):
            cache = found
        else:
            weights = weights or found
    if not row.dtype:
        filled.add("dtype", "dtype as the checkpoint stores it")
    return weights, cache
