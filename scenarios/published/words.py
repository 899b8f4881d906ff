"""What the names in a published table mean: targets, GPUs, methods, number formats, engines, data sets.

Models: the spellings of `words.toml` beside those of the catalogue; sizes in a name (`30B-A3B`) when the name is
unknown. A word that is not understood raises, with the cell; nothing is guessed without saying so.
Leaves out: prose; trees, loads and units, which have their own modules. Numbers: none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from scenarios.hardware import known_gpu, load_gpus
from scenarios.lookup import check_keys, name_key, one_line, packaged_toml
from scenarios.models import known_model, load_models
from specsim.drafters import all_drafters, method_names
from specsim.errors import CatalogueError, ScenarioError
from specsim.shapes import ModelShape

__all__ = ["dataset_words", "dtype_words", "engine_words", "fallback", "gpu_words", "method_words", "plain_words",
           "release_of", "target_dtype", "target_words"]  # fmt: skip

_COUNT = re.compile(
    r"^\s*(\d{1,4})\s*[x×*]\s*(?=\D)|(?<![A-Za-z])[x×*]\s*(\d{1,4})\s*$|^\s*(\d{1,4})\s+(?=[A-Za-z])", re.IGNORECASE
)
_ENDINGS = re.compile(r"[-_ ](instruct|chat|it|base|hf|dense|moe|thinking|text)\b", re.IGNORECASE)
_PARENTHESES = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_DTYPES: tuple[tuple[str, str], ...] = (
    (r"nv[-_ ]?fp4", "nvfp4"),
    (r"mx[-_ ]?fp4", "mxfp4"),
    (r"fp4", "nvfp4"),
    (r"fp8|e4m3|w8a8[-_ ]?fp8|f8", "fp8"),
    (r"int8|w8a8|w8a16|q8_0|8[- ]?bit", "int8"),
    (r"int4|w4a16|awq|gptq|q4_k_m|q4_0|q4|4[- ]?bit|marlin", "int4"),
    (r"bf16|bfloat16|fp16|float16|half|f16|w16a16", "bf16"),
    (r"fp32|float32|f32", "fp32"),
)
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s*([bBtT])(?![A-Za-z0-9])")
_ACTIVE = re.compile(r"(?<![A-Za-z])[aA](\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")
_NEAR = {False: 1.6, True: 3.0}
"""Ratio of parameters up to which a catalogue model may stand in for an unknown one: dense, mixture of experts."""


@cache
def _words() -> Mapping[str, Any]:
    return packaged_toml("words.toml", folder="published")


def fallback() -> Mapping[str, Any]:
    """What is assumed where neither row nor data set says anything."""
    found: Mapping[str, Any] = _words()["fallback"]
    return found


@cache
def _index(kind: str) -> Mapping[str, tuple[str, str]]:
    """Spelling without punctuation -> (name, why it is the same)."""
    found: dict[str, tuple[str, str]] = {}
    for entry in _words()[kind]:
        check_keys(entry, ("name", "words", "same"), f"words.toml, {kind} {entry.get('name')}")
        for word in entry["words"]:
            owner = found.setdefault(name_key(word), (entry["name"], entry.get("same", "")))
            if owner[0] != entry["name"]:
                raise CatalogueError(f"words.toml: '{word}' names both {owner[0]} and {entry['name']}")
    return found


def gpu_words(text: str) -> tuple[str, int | None]:
    """(catalogue name, how many the words count) of `8x H100 80GB`, `H200 x 8`, `NVIDIA A100-SXM4-80GB`, ...

    Raises:
        CatalogueError: the catalogue has no such GPU.
    """
    count = None
    bare = _PARENTHESES.sub(" ", text)
    found = _COUNT.search(bare)
    if found:
        count = int(next(group for group in found.groups() if group))
        bare = bare[: found.start()] + " " + bare[found.end() :]
    bare = re.sub(r"\b(nvidia|amd|tesla|geforce|instinct|gpus?|node|server|hgx|dgx)\b", " ", bare, flags=re.IGNORECASE)
    known = _index("gpu")
    for spelling in (text, bare, re.sub(r"\s*\d+\s*(gb|gib|g)\b", " ", bare, flags=re.IGNORECASE)):
        hit = known.get(name_key(spelling))
        if hit is not None:
            return hit[0], count
        gpu = known_gpu(spelling)
        if gpu is not None:
            return gpu.name, count
    raise CatalogueError(
        f"gpu '{one_line(text)}' is not among the {len(load_gpus())} of the catalogue (`specsim hardware list`)"
    )


def target_words(text: str, params_b: float | None = None, *, stand_in: bool = True) -> tuple[str, str]:
    """(catalogue name, what is assumed, "" for nothing) of a target or draft model.

    An unknown name gets the catalogue model nearest in total and active parameters, within a factor of 1.6 (of 3 for a
    mixture of experts, of which there are few), unless `stand_in` is False.

    Raises:
        CatalogueError: neither the name nor a similar size is in the catalogue.
    """
    total, active = _size(text, params_b)
    for spelling in _spellings(text):
        hit = _index("target").get(name_key(spelling))
        shape = _shape_of(hit[0] if hit else spelling)
        if shape is None:
            continue
        # without punctuation "Qwen 27B" and "Qwen2-7B" are one word: the size decides
        said = _size(text, None)[0]
        if said and not 1 / 2 < shape.total_parameters / 1e9 / said < 2:
            continue
        return shape.name, f"{one_line(text)} is taken as {shape.name} ({hit[1]})" if hit else ""
    if not total or not stand_in:
        raise CatalogueError(
            f"model '{one_line(text)}' is not in the catalogue and its size is not stated; add target_params_b, or "
            f"see `specsim model list`"
        )
    family = re.match(r"[A-Za-z]*", text.rsplit("/", 1)[-1].strip())
    name = _nearest_size(total, active, family.group(0).lower() if family else "")
    if name is None:
        raise CatalogueError(
            f"model '{one_line(text)}' is not in the catalogue, and no model of it is near {total:g}B parameters"
        )
    shown = f"{total:g}B" + (f" with {active:g}B active" if active else "")
    return name, f"{one_line(text)} is not in the catalogue: {name} stands in for its {shown}"


def _shape_of(name: str) -> ModelShape | None:
    """The model, None for one that is unknown or whose file cannot be read."""
    try:
        return known_model(name)
    except CatalogueError:
        return None


def _spellings(text: str) -> list[str]:
    """The cell, and the cell without what tables add to a model's name."""
    bare = " ".join(_PARENTHESES.sub(" ", text).split())
    found = [bare, bare.rsplit("/", 1)[-1]]
    plain = found[-1]
    for pattern, _ in _DTYPES:
        plain = re.sub(rf"[-_ ]({pattern})(?:[-_ ]dynamic)?\b", " ", plain, flags=re.IGNORECASE)
    found.append(" ".join(plain.split()))
    found.append(
        re.sub(r"[-_ ](instruct|chat|it|base|hf|dense|moe|thinking|text)\b", "", found[-1], flags=re.IGNORECASE)
    )
    joined = [spelling.replace(" ", "-") for spelling in found]
    return [
        spelling
        for spelling in dict.fromkeys((*found, *joined))
        if spelling and not spelling.startswith((".", "/", "~"))
    ]


def _size(text: str, params_b: float | None) -> tuple[float | None, float | None]:
    """(total, active) parameters in billions."""
    active = _ACTIVE.search(text)
    total = params_b
    if total is None:
        found = _SIZE.search(_ACTIVE.sub(" ", text).replace("-", " ").replace("_", " "))
        if found:
            total = float(found.group(1)) * (1000.0 if found.group(2) in "tT" else 1.0)
    return total, None if active is None else float(active.group(1))


def _nearest_size(total: float, active: float | None, family: str) -> str | None:
    """The name nearest in size; of those about as near, one of the family, and of those the latest version."""
    found = []
    for name, shape in load_models().items():
        if shape.kind != "model" or (active is not None) != bool(shape.moe_layers):
            continue
        distance = abs(math.log(shape.total_parameters / 1e9 / total))
        if active is not None:
            distance = max(distance, abs(math.log(shape.active_parameters / 1e9 / active)))
        if distance <= math.log(_NEAR[active is not None]):
            stranger = not (family and name.startswith(family))
            found.append((round(distance + 0.2 * stranger, 1), name))
    if not found:
        return None
    best = min(found)[0]
    return max(name for distance, name in found if distance == best)


def dtype_words(text: str) -> str | None:
    """Weight dtype that the words name (`FP8`, `W4A16 AWQ`, `bfloat16`), or None when they name none.

    Raises:
        ScenarioError: the words are there but not understood.
    """
    found = _dtype_in(text)
    if found is None and text.strip():
        raise ScenarioError(f"dtype '{one_line(text)}' is not understood; write bf16, fp8, int8, int4, mxfp4 or nvfp4")
    return found


def _dtype_in(text: str) -> str | None:
    for pattern, dtype in _DTYPES:
        if re.search(rf"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])", text, flags=re.IGNORECASE):
            return dtype
    return None


def target_dtype(text: str) -> str | None:
    """Weight dtype inside a model's name, such as `Gemma-4-31B (FP8)`."""
    return _dtype_in(re.sub(r"[-_/]", " ", text))


def method_words(text: str, draft: str = "") -> str:
    """Canonical method of `EAGLE-3`, `n-gram (prompt lookup)`, `MTP`, `draft model`, ...; the draft cell helps.

    SGLang runs MTP layers under its EAGLE worker, so that a row that names both is MTP.

    Raises:
        ScenarioError: not understood.
    """
    for cell in (text, draft):
        hits = _methods_in(cell)
        if hits:
            name = max(hits)[2]
            also = {hit[2] for hit in (*hits, *_methods_in(draft))}
            return "mtp" if name.startswith("eagle") and "mtp" in also else name
    raise ScenarioError(f"method '{one_line(text)}' is not understood; known are {', '.join(method_names())}")


def _methods_in(cell: str) -> list[tuple[bool, int, str]]:
    """(not a word for speculation in general, length of the word, drafter) of every word in a cell."""
    key = f" {plain_words(cell)} "
    return [(name != "draft_model", len(word), name) for word, name in _method_index() if f" {word} " in key]


@cache
def _method_index() -> list[tuple[str, str]]:
    """(word, drafter) of every spelling that is known."""
    known = [(word, name) for name, drafter in all_drafters().items() for word in (name, *drafter.aliases)]
    known += [(word, entry["name"]) for entry in _words()["method"] for word in entry["words"]]
    return [(plain_words(word), name) for word, name in known]


def plain_words(text: str) -> str:
    """Lower case, words apart by one space, letters and digits of one word together (`EAGLE-3` is `eagle 3`)."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text.lower()).split())


def engine_words(text: str) -> tuple[str, str]:
    """(engine, version or "") of `vLLM v0.10.1`, `SGLang (Mar 2025)`, ...; ("", "") for one that we do not know."""
    lowered = text.lower()
    for entry in _words()["engine"]:
        for word in entry["words"]:
            at = lowered.find(word)
            if at >= 0:
                version = re.search(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})", lowered[at + len(word) :])
                return entry["name"], version.group(1) if version else ""
    return "", ""


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PARTS = {"early": "02", "mid": "07", "late": "11"}


def release_of(engine: str, text: str) -> str:
    """Version that was current in the month that the words name (`Mar 2025`, `mid 2025`, `2025-03`); "" without one."""
    plain = plain_words(text)
    found = re.search(r"\b(20\d\d) (0[1-9]|1[0-2])\b", plain)
    month = f"{found.group(1)}-{found.group(2)}" if found else ""
    named = re.search(rf"\b({'|'.join((*_MONTHS, *_PARTS))})[a-z]* (20\d\d)\b", plain)
    if named and not month:
        word = named.group(1)
        month = f"{named.group(2)}-{_PARTS.get(word) or f'{_MONTHS.index(word) + 1:02}'}"
    if not month:
        return ""
    entry: Mapping[str, Any] = next((e for e in _words()["engine"] if e["name"] == engine), {})
    before = [version for version, since in entry.get("releases", ()) if since <= month]
    return before[-1] if before else ""


def dataset_words(text: str) -> Mapping[str, Any] | None:
    """Lengths and task of a data set that the words name, None when they name none we know."""
    plain = f" {plain_words(text)} "
    for entry in _words()["dataset"]:
        if any(f" {plain_words(word)} " in plain for word in entry["words"]):
            found: Mapping[str, Any] = entry
            return found
    return None
