"""Measured requests: the file format, read and checked.

Format: JSON lines, plain or gzip, one object a request: `request`, `task`, `prompt_tokens`, `output_tokens` and, per
drafter, a list with one number for each output position: the tokens that a round starting there would emit with as
many drafts as were measured (bonus included, so 1 = nothing matched). Optionally `<drafter>_drafts`, a list as long:
how many drafts a lookup had to propose there.
`prompt_tokens` and `output_tokens` are for readers: outputs of two drafters may end at different places, so that each
list has its own length. Optionally `k_max`: as many drafts as were measured at each position; without it the longest
run counts as that.

A drafter whose rounds depend on those before them has `<drafter>_rounds` instead: `{"k": [tokens of each round], ...}`
for each k that was run, and optionally `<drafter>_rounds_drafts`, drafts proposed alike. Runs are then taken from the
rounds at the largest k, and are what is left of a round at the positions inside it: exact at that k, and at a smaller
k as far as what is cut off a run is found again.

`<drafter>_tree`, the same word in every request, says that drafts were trees, and of what shape: k then counts levels.
`measured` says what all was measured on (`specsim.acceptance.measured_on`).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, request_offsets, round_starts
from specsim.acceptance.measured_on import MEASURED_KEY, MeasuredOn, joined, read_measured_on
from specsim.errors import ProfileError, nearest

__all__ = ["DRAFTS_SUFFIX", "ROUNDS_SUFFIX", "TREE_SUFFIX", "Measured", "drafters_in", "lengths_by_k", "read_measured"]

DRAFTS_SUFFIX = "_drafts"
ROUNDS_SUFFIX = "_rounds"
TREE_SUFFIX = "_tree"
_KEYS = ("request", "task", "prompt_tokens", "output_tokens", "k_max", MEASURED_KEY)


@dataclass(frozen=True, eq=False)
class Measured:
    """Requests of one drafter, in the order of the file."""

    runs: tuple[np.ndarray, ...]
    """int8 arrays, one a request: drafts that would match at each position."""
    drafts: tuple[np.ndarray, ...] | None
    """int8 arrays alike: drafts proposed at each position, where the file says so."""
    tasks: tuple[str, ...]
    """Content class of each request, empty where the file gives none."""
    name: str
    rounds: dict[int, tuple[np.ndarray, ...]] | None = None
    """k -> int8 arrays, one a request: tokens of each round, where the file has rounds instead of positions."""
    round_drafts: dict[int, tuple[np.ndarray, ...]] | None = None
    """Drafts of each round, alike."""
    k_max: int | None = None
    """Most drafts of a round that were measured, where the file says so."""
    tree: str = ""
    """Shape of the trees that were verified; empty: chains."""
    on: MeasuredOn | None = None
    """What it was measured on, where the file says so."""

    @property
    def max_spec_tokens(self) -> int:
        """Most drafts of a round that were measured; else the longest run that was seen."""
        return self.k_max or max(1, max(int(run.max()) for run in self.runs))

    @property
    def match_rate(self) -> float:
        """Share of positions at which at least one draft would match."""
        return float(np.mean(np.concatenate(self.runs) > 0))

    def lengths(self) -> list[float]:
        """Mean acceptance length at k = 1, 2, ...: tokens over rounds of all requests together."""
        return lengths_by_k(self.runs, self.max_spec_tokens)

    def spread(self, num_spec_tokens: int) -> float:
        """Standard deviation between requests of their mean acceptance length at k, sampling noise taken out."""
        means, noise = [], []
        for run in self.runs:
            starts = round_starts(run, np.array([0, len(run)]), num_spec_tokens)
            gain = np.minimum(run[starts], num_spec_tokens) + 1.0
            means.append(float(gain.mean()))
            noise.append(float(gain.var()) / len(gain))
        return math.sqrt(max(0.0, float(np.var(means)) - float(np.mean(noise))))

    def of_task(self, task: str) -> Measured:
        """Only the requests of one content class.

        Raises:
            ProfileError: when there is none.
        """
        kept = [i for i, own in enumerate(self.tasks) if own == task]
        if not kept:
            there = sorted(set(self.tasks) - {""})
            raise ProfileError(
                f"{self.name}: no measured request of task '{task}'; tasks there: {', '.join(there) or '-'}"
            )
        return dataclasses.replace(self.of_requests(kept), name=f"{self.name}, {task}")

    def of_requests(self, kept: Sequence[int]) -> Measured:
        """Only the requests at these places, in their order."""

        def some(rounds: dict[int, tuple[np.ndarray, ...]] | None) -> dict[int, tuple[np.ndarray, ...]] | None:
            return None if rounds is None else {k: tuple(values[i] for i in kept) for k, values in rounds.items()}

        return Measured(
            tuple(self.runs[i] for i in kept),
            None if self.drafts is None else tuple(self.drafts[i] for i in kept),
            tuple(self.tasks[i] for i in kept),
            self.name,
            some(self.rounds),
            some(self.round_drafts),
            self.k_max,
            self.tree,
            self.on,
        )


def lengths_by_k(runs: Sequence[np.ndarray], most: int) -> list[float]:
    """Tokens over rounds of all requests together, last rounds not cut, at k = 1..most."""
    run = np.concatenate(runs)
    offsets = request_offsets(np.array([len(own) for own in runs]))
    return [1.0 + float(np.minimum(run[round_starts(run, offsets, k)], k).mean()) for k in range(1, most + 1)]


def read_measured(path: str | Path, *, drafter: str, task: str | None = None) -> Measured:
    """Read measured requests of one drafter (and task) from a file in the format of this module.

    Raises:
        ProfileError: with file and line, when the file cannot be read or a line is malformed.
    """
    place = Path(path)
    runs: list[np.ndarray] = []
    drafts: list[np.ndarray] = []
    tasks: list[str] = []
    rounds: list[dict[int, np.ndarray]] = []
    round_drafts: list[dict[int, np.ndarray]] = []
    most: list[int] = []
    trees: list[str] = []
    on: MeasuredOn | None = None
    if drafter in _KEYS or drafter.endswith((DRAFTS_SUFFIX, ROUNDS_SUFFIX, TREE_SUFFIX)):
        raise ProfileError(
            f"drafter '{drafter}' is a key of the file format; those there: {_names(drafters_in(place))}"
        )
    for where, row in _rows(place):
        _check_counts(row, where)
        own_on = read_measured_on(row[MEASURED_KEY], drafter, where) if MEASURED_KEY in row else None
        on = joined(on, own_on, where) if tasks else own_on
        tasks.append(_task(row, where))
        trees.append(_tree(row, drafter, where))
        if trees[-1] != trees[0]:
            raise ProfileError(
                f"{where}: '{drafter}{TREE_SUFFIX}' must be the same in every request, got {trees[-1]!r:.40} behind "
                f"{trees[0]!r:.40}; measure one shape a file"
            )
        if drafter not in row and drafter + ROUNDS_SUFFIX in row:
            rounds.append(_rounds(row, drafter, where))
            run, own = rounds[-1][max(rounds[-1])], None
            if drafter + ROUNDS_SUFFIX + DRAFTS_SUFFIX in row:
                round_drafts.append(_round_drafts(row, drafter, rounds[-1], where))
                own = round_drafts[-1][max(rounds[-1])]
            runs.append(_within(run - 1, run))
            if own is not None:
                drafts.append(_within(own, run))
        else:
            runs.append(_run(row, drafter, where))
            if drafter + DRAFTS_SUFFIX in row:
                drafts.append(_drafts(row, drafter, runs[-1], where))
            if "k_max" in row:
                most.append(_most(row, drafter, runs[-1], where))
        if len(rounds) not in (0, len(runs)) or (rounds and rounds[0].keys() != rounds[-1].keys()):
            raise ProfileError(
                f"{where}: '{drafter}{ROUNDS_SUFFIX}' must have the same values of k in every request, or be in none"
            )
        if len(drafts) not in (0, len(runs)):
            raise ProfileError(
                f"{where}: '{drafter}{DRAFTS_SUFFIX}' is there in some requests only; give it in all or in none"
            )
    if not runs:
        raise ProfileError(f"{place}: no measured request; the file is empty")
    found = Measured(
        tuple(runs),
        tuple(drafts) or None,
        tuple(tasks),
        f"measured {drafter} in {place.name}",
        _by_k(rounds),
        _by_k(round_drafts),
        max(rounds[0]) if rounds else max(most) if len(most) == len(runs) else None,
        trees[0],
        on,
    )
    return found if task is None else found.of_task(task)


def drafters_in(path: str | Path) -> tuple[str, ...]:
    """Drafters that the first request of a file has figures of.

    Raises:
        ProfileError: when the file cannot be read, or is empty.
    """
    place = Path(path)
    for _, row in _rows(place):
        return _drafters(row)
    raise ProfileError(f"{place}: no measured request; the file is empty")


def _text(place: Path) -> str:
    if place.exists() and not place.is_file():  # reading a pipe could wait for ever
        raise ProfileError(f"{place}: is a folder, a pipe or a device; give a file on the disk")
    try:
        raw = place.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ProfileError(f"{place}: cannot be read as measured acceptance ({reason})") from error


def _rows(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place in words, object) of every line that is not blank. Only a line feed ends a line: JSON texts may hold the
    other separators of Unicode."""
    for number, line in enumerate(_text(place).split("\n"), start=1):
        if line.strip():
            where = f"{place}: line {number}"
            yield where, _row(line, where)


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=lambda pairs: _once(pairs, where))
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{where}: not a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise ProfileError(f"{where}: expected an object, got {type(row).__name__}")
    return row


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """An object whose keys all differ; the second of two would hide the first without a word."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ProfileError(f"{where}: key {key!r} stands there twice; keep one")
        found[key] = value
    return found


def _drafters(row: dict[str, Any]) -> tuple[str, ...]:
    names = (key for key in row if key not in _KEYS and not key.endswith((DRAFTS_SUFFIX, TREE_SUFFIX)))
    return tuple(dict.fromkeys(name.removesuffix(ROUNDS_SUFFIX) for name in names))


def _names(drafters: Sequence[str]) -> str:
    return ", ".join(drafters) or "-"


def _check_counts(row: dict[str, Any], where: str) -> None:
    """Refuse what is no count, though nothing is made of it: the line is not what it says."""
    for key in ("prompt_tokens", "output_tokens"):
        value = row.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ProfileError(f"{where}: '{key}' must be a whole number >= 0, got {value!r:.40}")


def _task(row: dict[str, Any], where: str) -> str:
    task = row.get("task")
    if task is not None and not isinstance(task, str):
        raise ProfileError(f"{where}: 'task' must be a word, got {task!r}")
    return task or ""


def _tree(row: dict[str, Any], drafter: str, where: str) -> str:
    shape = row.get(drafter + TREE_SUFFIX, "")
    if not isinstance(shape, str):
        raise ProfileError(f"{where}: '{drafter}{TREE_SUFFIX}' must be a word such as '4,8,8', got {shape!r:.40}")
    return shape


def _run(row: dict[str, Any], drafter: str, where: str) -> np.ndarray:
    if drafter not in row:
        there = _drafters(row)
        raise ProfileError(f"{where}: no drafter '{drafter}'{nearest(drafter, there)}; those there: {_names(there)}")
    values = _whole(row[drafter], drafter, 1, MAX_SPEC_TOKENS + 1, "tokens of a round, bonus included", where)
    return np.asarray(values, dtype=np.int8) - np.int8(1)


def _drafts(row: dict[str, Any], drafter: str, run: np.ndarray, where: str) -> np.ndarray:
    key = drafter + DRAFTS_SUFFIX
    found = np.asarray(_whole(row[key], key, 0, MAX_SPEC_TOKENS, "drafts proposed", where), dtype=np.int8)
    if len(found) != len(run):
        raise ProfileError(f"{where}: '{key}' has {len(found)} positions and '{drafter}' {len(run)}; they must agree")
    short = np.flatnonzero(found < run)
    if len(short):
        at = int(short[0])
        raise ProfileError(
            f"{where}: '{key}' position {at} is {found[at]}, but {run[at]} drafts match there; no more match than are "
            f"proposed"
        )
    return found


def _most(row: dict[str, Any], drafter: str, run: np.ndarray, where: str) -> int:
    value = row["k_max"]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SPEC_TOKENS:
        raise ProfileError(f"{where}: 'k_max' must be a whole number 1..{MAX_SPEC_TOKENS}, got {value!r:.40}")
    if value < run.max():
        raise ProfileError(f"{where}: 'k_max' is {value}, but '{drafter}' has {run.max()} drafts that match")
    return value


def _rounds(row: dict[str, Any], drafter: str, where: str) -> dict[int, np.ndarray]:
    """k -> tokens of each round."""
    key = drafter + ROUNDS_SUFFIX
    given = row[key]
    if not isinstance(given, dict) or not given:
        raise ProfileError(f"{where}: '{key}' must be an object with the rounds of each k, got {given!r:.40}")
    found = {}
    for word, values in given.items():
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= MAX_SPEC_TOKENS):
            raise ProfileError(f"{where}: '{key}' has the k {word!r}; give whole numbers 1..{MAX_SPEC_TOKENS}")
        most = int(word) + 1
        tokens = _whole(values, f"{key} {word}", 1, most, "tokens of a round, bonus included", where)
        found[int(word)] = np.asarray(tokens, dtype=np.int8)
    return found


def _round_drafts(
    row: dict[str, Any], drafter: str, rounds: dict[int, np.ndarray], where: str
) -> dict[int, np.ndarray]:
    key = drafter + ROUNDS_SUFFIX + DRAFTS_SUFFIX
    given = row[key]
    if not isinstance(given, dict) or {str(k) for k in rounds} != set(given):
        raise ProfileError(f"{where}: '{key}' must have the values of k that '{drafter}{ROUNDS_SUFFIX}' has")
    found = {}
    for k, tokens in rounds.items():
        values = _whole(given[str(k)], f"{key} {k}", 0, k, "drafts of a round", where)
        if len(values) != len(tokens):
            raise ProfileError(f"{where}: '{key}' has {len(values)} rounds at k={k}, and there are {len(tokens)}")
        found[k] = np.asarray(values, dtype=np.int8)
        if np.any(found[k] < tokens - 1):
            raise ProfileError(f"{where}: '{key}' has a round at k={k} with fewer drafts than were accepted")
    return found


def _within(values: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """What is left at each position of a round of what there was at its start, one value less with each token."""
    inside = np.arange(int(tokens.sum(dtype=np.int64))) - np.repeat(np.cumsum(tokens, dtype=np.int64) - tokens, tokens)
    return np.maximum(np.repeat(values, tokens) - inside, 0).astype(np.int8)


def _by_k(requests: Sequence[dict[int, np.ndarray]]) -> dict[int, tuple[np.ndarray, ...]] | None:
    return {k: tuple(rounds[k] for rounds in requests) for k in sorted(requests[0])} if requests else None


def _whole(values: Any, key: str, low: int, high: int, what: str, where: str) -> list[int]:
    if not isinstance(values, list) or not values:
        raise ProfileError(f"{where}: '{key}' must be a list with one number per output position, got {values!r:.40}")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ProfileError(
                f"{where}: '{key}' position {position} must be a whole number {low}..{high} ({what}), got {value!r}"
            )
    return values
