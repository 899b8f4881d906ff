"""What measured requests were measured on, as each row of their file says it under `measured`.

Format: `target` (`name`, and `layers` and `hidden_size`, which tell models apart whose folders have any name),
`drafters` (per drafter of the row `method`, `options`, `tree`, and `model` like `target` where weights of its own
draft), `temperature`, `top_k`, `top_p`, `draft_sampling`, `dtype`, `seed`, and of the whole measurement `prompts`,
`date` and `specsim`. Each may be missing; what is there must be the same in all rows, but for the last four, so that
files of one kind may be put together and rows be taken out.
Leaves out: whether that is what a scenario asks about (`scenarios.acceptance_match`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from specsim.errors import ProfileError, nearest

__all__ = ["MEASURED_KEY", "MeasuredModel", "MeasuredOn", "joined", "read_measured_on"]

MEASURED_KEY = "measured"
_KEYS = (
    "target", "drafters", "temperature", "top_k", "top_p", "draft_sampling", "dtype", "seed", "prompts", "date",
    "specsim",
)  # fmt: skip
_OF_DRAFTER = ("method", "options", "tree", "model")
_OF_MODEL = ("name", "layers", "hidden_size")
_OF_RUN = ("seed", "prompts", "date", "specsim")
"""What may differ between the rows of a file."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model by the name of its folder, file or repository, and by two of its sizes where they are known."""

    name: str
    layers: int | None = None
    hidden_size: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """What one drafter of a file was measured on; None: the file does not say."""

    target: MeasuredModel | None = None
    method: str | None = None
    options: tuple[tuple[str, float], ...] = ()
    """Of the method, every one with its value."""
    tree: str | None = None
    """Shape of the drafts as it was asked for."""
    drafter: MeasuredModel | None = None
    """What drafts, where it has weights of its own."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    draft_sampling: str | None = None
    dtype: str | None = None
    seed: int | None = None
    prompts: int | None = None
    """Of the whole measurement, however many of them are left in the file."""
    date: str | None = None
    specsim: str | None = None
    """Version that measured."""

    @property
    def sentence(self) -> str:
        """`on SmolLM2-135M by ngram (min_tokens 2), greedy, bf16, 40 prompts, seed 0, 2026-11-30, specsim 0.1.0`."""
        first = f"on {'an unnamed target' if self.target is None else self.target}"
        if self.method is not None:
            options = [f"{name} {value:g}" for name, value in self.options if value]
            options += [] if self.tree is None else [f"tree {self.tree}"]
            first += f" by {self.method}" + (f" ({', '.join(options)})" if options else "")
        if self.drafter is not None:
            first += f" with drafter {self.drafter}"
        more = (
            None if self.temperature is None else self._sampling,
            self.dtype,
            None if self.prompts is None else f"{self.prompts:,} prompts",
            None if self.seed is None else f"seed {self.seed}",
            self.date,
            None if self.specsim is None else f"specsim {self.specsim}",
        )
        return ", ".join([first, *(part for part in more if part is not None)])

    @property
    def _sampling(self) -> str:
        if self.temperature == 0:
            return "greedy"
        cut = [f"top-k {self.top_k}"] if self.top_k is not None else []
        cut += [f"top-p {self.top_p:g}"] if self.top_p not in (None, 1.0) else []
        cut += [f"{self.draft_sampling} drafts"] if self.draft_sampling is not None else []
        return " ".join([f"temperature {self.temperature:g}", *([f"({', '.join(cut)})"] if cut else [])])


def read_measured_on(given: Any, drafter: str, where: str) -> MeasuredOn:
    """What the `measured` of a row says of one drafter.

    Raises:
        ProfileError: with the place, an unknown key or a value that makes no sense.
    """
    row = _object(given, MEASURED_KEY, _KEYS, where)
    drafters = row.get("drafters")
    drafters = {} if drafters is None else _object(drafters, f"{MEASURED_KEY}.drafters", None, where)
    place = f"{MEASURED_KEY}.drafters.{drafter}"
    own = _object(drafters.get(drafter, {}), place, _OF_DRAFTER, where)
    options = own.get("options")
    options = {} if options is None else _object(options, f"{place}.options", None, where)
    for name, value in options.items():
        if _number(value, f"{place}.options.{name}", None, None, where) is None:
            raise ProfileError(f"{where}: '{place}.options.{name}' must be a finite number, got None")
    date = _text(row.get("date"), f"{MEASURED_KEY}.date", where)
    if date is not None and not _DATE.fullmatch(date):
        raise ProfileError(f"{where}: '{MEASURED_KEY}.date' must be a day such as 2026-11-30, got {date!r:.40}")
    return MeasuredOn(
        target=_model(row.get("target"), f"{MEASURED_KEY}.target", where),
        method=_text(own.get("method"), f"{place}.method", where),
        options=tuple(sorted((name, float(value)) for name, value in options.items())),
        tree=_text(own.get("tree"), f"{place}.tree", where),
        drafter=_model(own.get("model"), f"{place}.model", where),
        temperature=_number(row.get("temperature"), f"{MEASURED_KEY}.temperature", 0, None, where),
        top_k=_whole(row.get("top_k"), f"{MEASURED_KEY}.top_k", 1, where),
        top_p=_number(row.get("top_p"), f"{MEASURED_KEY}.top_p", 0, 1, where),
        draft_sampling=_text(row.get("draft_sampling"), f"{MEASURED_KEY}.draft_sampling", where),
        dtype=_text(row.get("dtype"), f"{MEASURED_KEY}.dtype", where),
        seed=_whole(row.get("seed"), f"{MEASURED_KEY}.seed", 0, where),
        prompts=_whole(row.get("prompts"), f"{MEASURED_KEY}.prompts", 1, where),
        date=date,
        specsim=_text(row.get("specsim"), f"{MEASURED_KEY}.specsim", where),
    )


def joined(before: MeasuredOn | None, own: MeasuredOn | None, where: str) -> MeasuredOn | None:
    """What the rows so far and the next one say together.

    Raises:
        ProfileError: only one of them says anything, or they are of different measurements.
    """
    if before is None and own is None:
        return None
    if before is None or own is None:
        raise ProfileError(f"{where}: '{MEASURED_KEY}' is there in some requests only; give it in all or in none")
    if before == own:
        return before
    merged: dict[str, None] = {}
    for part in fields(MeasuredOn):
        first, second = getattr(before, part.name), getattr(own, part.name)
        if first == second:
            continue
        if part.name not in _OF_RUN:
            raise ProfileError(
                f"{where}: '{MEASURED_KEY}' says {part.name} {_shown(second)}, and a request before it "
                f"{_shown(first)}; keep requests of different measurements in different files"
            )
        merged[part.name] = None
    return replace(before, **merged)  # type: ignore[arg-type]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{name} {number:g}" for name, number in value) or "none"
    return "none" if value is None else f"{value}"


def _object(given: Any, key: str, known: tuple[str, ...] | None, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ProfileError(f"{where}: '{key}' must be an object, got {given!r:.40}")
    for name in given:
        if known is not None and name not in known:
            raise ProfileError(
                f"{where}: '{key}' has the key {name!r:.40}{nearest(name, known)}; its keys are {', '.join(known)}"
            )
    return given


def _model(given: Any, key: str, where: str) -> MeasuredModel | None:
    if given is None:
        return None
    row = _object(given, key, _OF_MODEL, where)
    name = _text(row.get("name"), f"{key}.name", where)
    if name is None:
        raise ProfileError(f"{where}: '{key}' has no name; give it, or leave the whole out")
    return MeasuredModel(name, *(_whole(row.get(size), f"{key}.{size}", 1, where) for size in _OF_MODEL[1:]))


def _text(given: Any, key: str, where: str) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given.strip() or len(given) > 200 or not given.isprintable():
        raise ProfileError(f"{where}: '{key}' must be a word or a short text, got {given!r:.40}")
    return given


def _whole(given: Any, key: str, low: int, where: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < low:
        raise ProfileError(f"{where}: '{key}' must be a whole number >= {low}, got {given!r:.40}")
    return given


def _number(given: Any, key: str, low: float | None, high: float | None, where: str) -> float | None:
    if given is None:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e18
    if not is_number or (low is not None and given < low) or (high is not None and given > high):
        bounds = "" if low is None else f" >= {low:g}" if high is None else f" in {low:g}..{high:g}"
        raise ProfileError(f"{where}: '{key}' must be a finite number{bounds}, got {given!r:.40}")
    return float(given)
