"""Measured points: what was timed, how often, how long it took, and on what; kept in a file as they are measured.

The file is JSON lines. The first line is the setup: model, device, number formats, versions. Every further line is one
finished point, forced to the disk before the next is begun, so that a killed run goes on where it stopped and repeats
nothing. A last line that was cut off is dropped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from specsim.errors import ProfileError, nearest
from specsim.shapes import ModelShape

__all__ = [
    "POINTS_VERSION",
    "Kind",
    "Point",
    "PointFile",
    "Role",
    "Setup",
    "read_points",
    "read_reference",
    "reference_words",
]

POINTS_VERSION = 1

Kind = Literal[
    "body", "eager", "head", "sample", "accept", "draft_round", "host", "whole", "reference", "copy", "matrix"
]  # fmt: skip
"""What a point timed.

body         all layers of one model over `parts`, without output head
eager        a body launched kernel by kernel, where bodies run as captured graphs
head         output head over `rows` rows of hidden states
sample       drawing a token from each of `rows` rows of logits
accept       accepting or rejecting the drafts of `parts` (drafts, 0) requests
draft_round  a whole round of a drafter: `drafts` drafts for each of `parts`
host         a decode step of the reference engine without its passes: `parts` verified, up to `drafts` drafted for each
whole        body and head of a model that fits, to check a composition from layers, or of `drafts` heads at once
reference    the point that is measured again and again, so that drift of the machine shows
copy         bytes moved by a copy, `bytes`
matrix       one large matrix product, `operations`
"""
Role = Literal["target", "draft", "engine", "device"]


_WRITTEN_AS: Mapping[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
"""Type of a field's default -> types that a file may have there."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point.

    Raises:
        ProfileError: a time that is not finite and positive.
    """

    kind: Kind
    role: Role
    parts: tuple[tuple[int, int], ...] = ()
    """(tokens computed, tokens cached before them) of each request."""
    rows: int = 0
    """Rows of logits; of several heads at once, of each."""
    drafts: int = 0
    """Drafts made a request; of heads, as many run at once."""
    method: str = ""
    """How a host point drafts; empty: not at all."""
    amount: float = 0.0
    """Bytes or operations of a ceiling."""
    is_prefill: bool = False
    """Whether the parts are chunks of prompts."""
    is_holdout: bool = False
    """Whether the fit must not see it."""
    again: int = 0
    """How often the same had been measured before, at other times of the run."""
    layers: int = 0
    """Layers that ran, where only some of the model's were built; 0: all."""
    seconds: float = math.nan
    """Median of the repeats, as timed."""
    low_s: float = math.nan
    high_s: float = math.nan
    """95 % interval of the median."""
    repeats: int = 0
    reference_s: float = 0.0
    """The reference point, timed between the repeats; 0: not timed."""
    reference: str = ""
    """Its parts and layers (`reference_words`); empty: not told."""
    roofline: float = math.nan
    """Share of the roofline: least seconds by measured ceilings, over `seconds`. nan: no ceiling was measured."""
    launch: str = ""
    """graph (captured, replayed as one launch) or eager (kernel by kernel) for passes; empty: not told."""
    utc: str = ""
    state: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Clocks, power and temperature of the device just after, as far as it tells."""

    def __post_init__(self) -> None:
        for name in ("seconds", "low_s", "high_s"):
            value = getattr(self, name)
            if not math.isnan(value) and not (math.isfinite(value) and value > 0):
                raise ProfileError(f"point {self.key}: {name} must be finite and > 0, got {value!r}")
        for name in ("rows", "drafts", "layers", "again", "repeats", "reference_s"):
            count = getattr(self, name)
            if count < 0:
                raise ProfileError(f"point {self.key}: {name} must be >= 0, got {count!r}")

    @property
    def key(self) -> str:
        """What was measured, without the result: the same key, the same point."""
        words = [self.kind, self.role, self.method, self.parts_words]
        words += [
            f"{name}={getattr(self, name)}" for name in ("rows", "drafts", "layers", "again") if getattr(self, name)
        ]
        words += ["prefill"] if self.is_prefill else []
        return " ".join(word for word in words if word)

    @property
    def parts_words(self) -> str:
        """`2@48 2@80`: tokens behind cached tokens of each request."""
        return " ".join(f"{n}@{context}" for n, context in self.parts)

    @property
    def label(self) -> str:
        """The same for people: `16 x 4 @ 128..384`."""
        if not self.parts:
            return f"{self.kind} {self.rows or ''}".strip()
        tokens = [n for n, _ in self.parts]
        contexts = [context for _, context in self.parts]
        width = f"{min(tokens)}" if min(tokens) == max(tokens) else f"{min(tokens)}..{max(tokens)}"
        cached = f"{min(contexts)}" if min(contexts) == max(contexts) else f"{min(contexts)}..{max(contexts)}"
        what = "prefill" if self.is_prefill else "draft" if self.role == "draft" else "verify"
        if self.kind == "host":
            return f"host {self.method or 'without speculation'}, {len(self.parts)} requests"
        drafts = f", {self.drafts} drafts" if self.drafts else ""
        named = "" if self.kind == "body" else f"{self.kind} "
        return f"{named}{what} {len(self.parts)} x {width} @ {cached}{drafts}"

    @property
    def noise(self) -> float:
        """Half width of the interval, relative to the median; nan for an unmeasured point."""
        return (self.high_s - self.low_s) / 2 / self.seconds

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return sum(n for n, _ in self.parts)

    @property
    def cached_tokens(self) -> int:
        """Tokens read from the cache."""
        return sum(context for _, context in self.parts)

    @property
    def pairs(self) -> int:
        """(query, key) pairs under causal attention."""
        return sum(n * context + n * (n + 1) // 2 for n, context in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form without what is at its default."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            default = f.default if f.name != "state" else {}
            if value == default or (isinstance(value, float) and math.isnan(value)):
                continue
            out[f.name] = dict(value) if f.name == "state" else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], place: str) -> Point:
        """Read what `to_dict` wrote; unknown keys are refused with `place`."""
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise ProfileError(f"{place}: unknown key '{key}'{nearest(key, known)}")
        values = dict(data)
        for f in fields(cls):
            if f.name in values and f.name not in ("kind", "role", "parts"):
                value, wanted = values[f.name], (Mapping,) if f.name == "state" else _WRITTEN_AS[type(f.default)]
                if not isinstance(value, wanted) or (type(value) is bool and bool not in wanted):
                    raise ProfileError(
                        f"{place}: point {f.name} cannot be {value!r}; remove the line to measure it again"
                    )
        for name, options in (("kind", get_args(Kind)), ("role", get_args(Role))):
            if values.get(name) not in options:
                raise ProfileError(f"{place}: point {name} '{values.get(name)}' is unknown"
                                   f"{nearest(str(values.get(name)), options)}")  # fmt: skip
        try:
            values["parts"] = tuple((int(n), int(context)) for n, context in values.get("parts", ()))
            point = cls(**values)
        except ProfileError as error:  # a point knows no place
            raise ProfileError(f"{place}: {error}") from None
        except (TypeError, ValueError) as error:
            raise ProfileError(f"{place}: not a measured point: {error}") from None
        if math.isnan(point.seconds):
            raise ProfileError(f"{place}: point {point.key} has no seconds; remove the line, and it is measured again")
        return point


def reference_words(point: Point) -> str:
    """Which point a reference is, as `specsim.evidence.Evidence.reference_parts` has it."""
    return point.parts_words + (f" layers={point.layers}" if point.layers else "")


def read_reference(words: str) -> Point:
    """The point behind `reference_words`.

    Raises:
        ProfileError: not such words.
    """
    parts, layers = [], 0
    for word in words.split():
        first, mark, second = word.replace("layers=", "layers@").partition("@")
        if not (mark and second.isdecimal() and (first.isdecimal() or first == "layers")):
            raise ProfileError(f"reference point '{words}' is not of the form '2@48 2@80 layers=8'; measure again")
        if first == "layers":
            layers = int(second)
        else:
            parts.append((int(first), int(second)))
    return Point("reference", "target", tuple(parts), layers=layers)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a points file is about; every point in it was measured so."""

    target: str
    device: str
    """Name of the device, as it calls itself."""
    backend: str
    """cuda, rocm, mps or cpu."""
    clock: str
    """wall, device (events on the GPU) or cpu (processor time of the process)."""
    dtype: str
    attention_backend: str
    engine: str
    """What ran the passes."""
    methods: tuple[str, ...] = ()
    draft: str = ""
    tp: int = 1
    threads: int = 0
    """Threads of the CPU backend; 0: not a CPU."""
    num_layers: int = 0
    measured_layers: int = 0
    """Layers that were built; fewer than `num_layers` when a model is measured by layer."""
    draft_layers: int = 0
    temperature: float = 0.0
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """target, draft -> sizes of `specsim.shapes.ModelShape`, from which bytes and operations follow."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Driver, versions, limits: recorded, not compared when a run is resumed."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], place: str) -> Setup:
        """Read what `to_dict` wrote."""
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise ProfileError(f"{place}: unknown key '{key}' of a setup{nearest(key, known)}")
        sizes = {f.name for f in fields(ModelShape)}
        for role, shape in data.get("shapes", {}).items():
            for key in shape:
                if key not in sizes:
                    raise ProfileError(f"{place}: unknown size '{key}' of the {role}{nearest(key, sizes)}")
        try:
            return cls(**{**data, "methods": tuple(data.get("methods", ()))})
        except TypeError as error:
            raise ProfileError(f"{place}: not a setup: {error}") from None

    @property
    def is_by_layer(self) -> bool:
        """Whether only some of the target's layers ran."""
        return 0 < self.measured_layers < self.num_layers

    def differs_from(self, other: Setup) -> str:
        """The first field in which two setups differ, facts apart; empty when they agree."""
        for f in fields(self):
            if f.name != "facts" and _plain(getattr(self, f.name)) != _plain(getattr(other, f.name)):
                return f"{f.name} {getattr(other, f.name)!r}, here {getattr(self, f.name)!r}"
        return ""


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


class PointFile:
    """A points file that grows. Opened with the setup of the run; a file of another setup is refused.

    Raises:
        ProfileError: not a points file, or one of another setup.
    """

    def __init__(self, path: str | Path, setup: Setup) -> None:
        self.path = Path(path)
        self.setup = setup
        self.points: list[Point] = []
        whole = 0
        if self.path.exists() and self.path.stat().st_size:
            found, self.points, whole = _read(self.path)
            difference = setup.differs_from(found)
            if difference:
                raise ProfileError(
                    f"{self.path}: holds points of another setup ({difference}); give another --points, or remove it"
                )
        try:
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.truncate(whole)
            self._file.seek(whole)
        except OSError as error:
            raise ProfileError(f"{self.path}: cannot be written: {error.strerror}") from None
        if not whole:
            self._write({"points_version": POINTS_VERSION, "setup": setup.to_dict()})

    def add(self, point: Point) -> None:
        """Keep a point; when this returns it is on the disk."""
        self._write(point.to_dict())
        self.points.append(point)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> PointFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(data, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_points(path: str | Path) -> tuple[Setup, list[Point], str]:
    """Setup, points and content hash of a points file.

    Raises:
        ProfileError: the file, the line, and what is wrong with it.
    """
    path = Path(path)
    setup, points, _ = _read(path)
    return setup, points, points_sha256(setup, points)


def points_sha256(setup: Setup, points: Iterable[Point]) -> str:
    """Hash of a setup and its points in order."""
    digest = hashlib.sha256(json.dumps(setup.to_dict(), sort_keys=True).encode())
    for point in points:
        digest.update(json.dumps(point.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()


def _read(path: Path) -> tuple[Setup, list[Point], int]:
    """(setup, points, bytes of whole lines); a last line without its end is left out."""
    if path.exists() and not path.is_file():  # reading a pipe could wait for ever
        raise ProfileError(f"{path}: is a folder, a pipe or a device; give a points file on the disk")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    lines = data.split(b"\n")
    tail = lines.pop()
    whole = len(data) - len(tail)
    if not lines:
        raise ProfileError(f"{path}: holds no setup; it is not a points file")
    rows = []
    for number, line in enumerate(lines, start=1):
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ProfileError(f"{place}: not a line of JSON; is this a points file?") from None
        if not isinstance(row, dict):
            raise ProfileError(f"{place}: expected an object, got {type(row).__name__}")
        rows.append((place, row))
    place, first = rows[0]
    if first.get("points_version") != POINTS_VERSION or not isinstance(first.get("setup"), dict):
        raise ProfileError(
            f"{place}: points_version is {first.get('points_version')!r}, this specsim reads {POINTS_VERSION}"
        )
    setup = Setup.from_dict(first["setup"], place)
    return setup, [Point.from_dict(row, place) for place, row in rows[1:]], whole
