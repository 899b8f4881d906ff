"""One session on a GPU that is there for minutes: several models measured one after another.

Every part is a `specsim` command in a process of its own, with its share of the time: a part that fails, hangs or runs
out of memory costs the others nothing. Points are on the disk as they are measured; a session that is given again goes
on with what is missing. All weights are random, at the shapes of the catalogue, so that nothing is fetched. At its end
a profile is held against real serving, with acceptance that is forced, since random weights accept nothing.
Leaves out: what the parts do (`calibrate.latency`, `calibrate.validation`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.points import read_points
from specsim.errors import ProfileError

__all__ = ["CHECKS", "PARTS", "Check", "Part", "Sizes", "plan_of", "run_session", "summary_of"]

MEASURED_SHARE = 0.55
"""Of a part's time, what `--budget` is; the rest is starting, loading, host times and the fit."""
_RESCUE_S = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """One command of a session."""

    name: str
    """Of its files."""
    share: float
    """Of the session's time."""
    target: str
    methods: tuple[str, ...] = ("ngram",)
    draft: str | None = None
    words: tuple[str, ...] = ()
    """Further flags."""
    tiny_words: tuple[str, ...] | None = None
    """Those of a dry run, where they differ."""
    target_points_of: str | None = None
    """Part whose points of the target are taken over."""

    def profiles(self, folder: Path) -> dict[str, Path]:
        """Method -> profile file that the part writes."""
        if len(self.methods) == 1:
            return {self.methods[0]: folder / f"{self.name}.json"}
        return {method: folder / f"{self.name}-{method}.json" for method in self.methods}

    def points(self, folder: Path) -> Path:
        """Its points file."""
        return folder / f"{self.name}.points.jsonl"

    def is_done(self, folder: Path) -> bool:
        """Whether everything that it writes is there."""
        return all(path.exists() for path in self.profiles(folder).values())


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a session runs at: on the device, or shrunken for a dry run."""

    grid: tuple[str, ...]
    """Flags of the measured range."""
    device: tuple[str, ...]
    models: Mapping[str, str]
    """Catalogue name -> config file that stands in; empty: the catalogue itself."""

    def model(self, name: str) -> str:
        """What a part is given for a catalogue name."""
        return self.models.get(name, name)


@dataclass(frozen=True, slots=True)
class Check:
    """A profile of a part, held against real serving by `specsim validate serve`."""

    name: str
    share: float
    """Of the session's time."""
    of: str
    """Part whose profile is held."""
    words: tuple[str, ...]
    """What is served."""
    tiny_words: tuple[str, ...]
    """The same in a dry run."""

    def result(self, folder: Path) -> Path:
        """File that the outcome is written to, one JSON object in one line."""
        return folder / f"{self.name}.jsonl"

    def is_done(self, folder: Path) -> bool:
        """Whether it is there."""
        return self.result(folder).exists()


PARTS: tuple[Part, ...] = (
    Part("llama-3.1-8b-pair", 0.27, "llama-3.1-8b", ("draft_model", "ngram"), "llama-3.2-1b"),
    Part("llama-3.1-8b-eagle3", 0.11, "llama-3.1-8b", ("eagle3",), target_points_of="llama-3.1-8b-pair"),
    Part("qwen3-30b-a3b", 0.18, "qwen3-30b-a3b"),
    Part("llama-3.1-70b-tp4", 0.16, "llama-3.1-70b", words=("--tp", "4", "--layers", "8"),
         tiny_words=("--tp", "4", "--layers", "2")),
    Part("llama-3.1-8b-eager", 0.16, "llama-3.1-8b", ("draft_model",), "llama-3.2-1b", ("--eager",)),
)  # fmt: skip
"""Graphs are what engines run and what planning wants; the reference engine captures nothing, so that a profile of its
own is measured, to be held against it."""
CHECKS: tuple[Check, ...] = (
    Check("llama-3.1-8b-served", 0.12, "llama-3.1-8b-eager",
          ("--k", "3", "--forced-acceptance", "0.7", "--isl", "lognormal:256:512", "--osl", "48", "--requests", "40",
           "--concurrency", "6,20", "--repeats", "2"),
          ("--k", "2", "--forced-acceptance", "0.7", "--isl", "12", "--osl", "6", "--requests", "6",
           "--concurrency", "2,6", "--repeats", "2")),
)  # fmt: skip
"""Batches that the fit has seen by chance are allowed, and the result names them."""
_TIME_TO_LOAD_S = 20.0
"""Of a check's time, at most this is left for loading models; the rest is for runs."""

DEVICE_SIZES = Sizes(
    grid=("--k-max", "5", "--max-batch", "64", "--max-context", "4096", "--max-chunk", "2048"),
    device=("--device", "cuda"),
    models={},
)


def command(part: Part, folder: Path, sizes: Sizes, budget_s: float, link_gpu: str) -> list[str]:
    """The words behind `specsim` of a part."""
    tiny = bool(sizes.models) and part.tiny_words is not None
    words = list(part.tiny_words or ()) if tiny else list(part.words)
    target = ["--target", sizes.model(part.target)]
    draft = [] if part.draft is None else ["--draft", sizes.model(part.draft)]
    if "--tp" in words:
        words += ["--link-gpu", link_gpu]
    if part.target_points_of is not None:
        source = next(p for p in PARTS if p.name == part.target_points_of)
        words += ["--target-points", str(source.points(folder))]
    methods = [word for method in part.methods for word in ("--method", method)]
    return [
        "calibrate", "latency", *target, *draft, *methods, *sizes.grid, *sizes.device, *words,
        "--budget", f"{max(1.0, budget_s * MEASURED_SHARE):.0f}s", "-o", str(folder / f"{part.name}.json"), "--force",
    ]  # fmt: skip


def check_command(check: Check, folder: Path, sizes: Sizes, budget_s: float) -> list[str]:
    """The words behind `specsim` of a check."""
    part = next(part for part in PARTS if part.name == check.of)
    draft = [] if part.draft is None else ["--draft", sizes.model(part.draft)]
    runs_s = max(1.0, budget_s - min(_TIME_TO_LOAD_S, budget_s / 2))
    return [
        "validate", "serve", "--profile", str(folder / f"{part.name}.json"), "--target", sizes.model(part.target),
        *draft, *sizes.device, *(check.tiny_words if sizes.models else check.words), "--fitted-batches", "--no-store",
        "--budget", f"{runs_s:.0f}s", "--append-to", str(check.result(folder)),
    ]  # fmt: skip


def plan_of(wanted: Sequence[Part | Check], folder: Path, budget_s: float) -> list[str]:
    """A line for each part and check: what it takes of the time, if none before it is early."""
    left = [part for part in wanted if not part.is_done(folder)]
    total = sum(part.share for part in left) or 1.0
    lines, at = [], 0.0
    for part in wanted:
        if part.is_done(folder):
            lines.append(f"{part.name}: done already")
            continue
        seconds = budget_s * part.share / total
        lines.append(f"{part.name}: {at:.0f} s to {at + seconds:.0f} s of {budget_s:.0f} s")
        at += seconds
    return lines


def run_session(
    folder: Path,
    sizes: Sizes,
    budget_s: float,
    *,
    link_gpu: str,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Carry out the parts that are not done yet; what became of each, also kept in `folder`/summary.json.

    Args:
        budget_s: of the whole session. A part may use what parts before it left, and is stopped then.
        only: names of parts and checks; empty: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    everything: tuple[Part | Check, ...] = (*PARTS, *CHECKS)
    wanted = [part for part in everything if not only or part.name in only]
    ends, shares = now() + budget_s, sum(part.share for part in wanted if not part.is_done(folder)) or 1.0
    outcomes: dict[str, dict[str, Any]] = {}
    for line in plan_of(wanted, folder, budget_s):
        say(f"plan: {line}")
    for part in wanted:
        if part.is_done(folder):
            outcomes[part.name] = {"status": "was done already"}
        elif isinstance(part, Check) and not (folder / f"{part.of}.json").exists():
            outcomes[part.name] = {"status": f"needs the profile of {part.of}"}
        elif _left_s(ends, now) <= 1.0:
            outcomes[part.name] = {"status": "no time left"}
        else:
            left = _left_s(ends, now)
            share_s = left * part.share / shares
            say(f"{part.name}: {share_s:.0f} s of {left:.0f} s that are left")
            words = (
                check_command(part, folder, sizes, share_s)
                if isinstance(part, Check)
                else command(part, folder, sizes, share_s, link_gpu)
            )
            outcomes[part.name] = _carried_out(part, words, folder, share_s, now)
            shares -= part.share
        say(f"{part.name}: {outcomes[part.name]['status']}")
    for part in wanted:
        if isinstance(part, Part) and not part.is_done(folder) and part.points(folder).exists():
            _rescue(part, folder, link_gpu, outcomes[part.name])
    summary = summary_of(folder, outcomes)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def _left_s(ends: float, now: Callable[[], float]) -> float:
    return ends - now()


def _carried_out(
    part: Part | Check, words: Sequence[str], folder: Path, share_s: float, now: Callable[[], float]
) -> dict[str, Any]:
    began = now()
    code = _run(words, folder / f"{part.name}.log", share_s)
    status = "done" if part.is_done(folder) else "stopped at the end of its time" if code is None else "failed"
    found: dict[str, Any] = {
        "status": status,
        "seconds": round(now() - began, 1),
        "command": "specsim " + " ".join(words),
    }
    if status != "done":
        found["last_line"] = _last_line(folder / f"{part.name}.log")
    return found


def _rescue(part: Part, folder: Path, link_gpu: str, outcome: dict[str, Any]) -> None:
    """Profiles out of what an unfinished part has measured, of every method for which that suffices; the fit needs no
    device, and comes when all parts have had it."""
    for method, path in part.profiles(folder).items():
        if path.exists():
            continue
        link = ["--link-gpu", link_gpu] if "--tp" in part.words else []
        partial = folder / f"{path.stem}.partial.json"
        fit = ["calibrate", "fit", str(part.points(folder)), "--method", method, *link, "-o", str(partial), "--force"]
        if _run(fit, folder / f"{part.name}.fit.log", _RESCUE_S) == 0:
            outcome.setdefault("partial_profiles", []).append(partial.name)


def _run(words: Sequence[str], log: Path, seconds: float) -> int | None:
    """Exit code of a command, None when it was stopped; what it says goes to `log`."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as file:
        try:
            return subprocess.run(
                [sys.executable, "-m", "specsim", *words], stdout=file, stderr=file, env=env, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def summary_of(folder: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a session left in its folder, part by part, and the machine: versions, driver, clocks, power."""
    parts: list[dict[str, Any]] = []
    machine: dict[str, str] = {}
    states: dict[str, list[float]] = {}
    for part in PARTS:
        if part.name not in outcomes:
            continue
        row: dict[str, Any] = {"part": part.name, **outcomes[part.name], "points": 0, "profiles": {}}
        try:
            setup, points, _ = read_points(part.points(folder))
            row |= {"points": len(points), "attention_backend": setup.attention_backend, "launches": _launches(points)}
            machine = {"device": setup.device, "dtype": setup.dtype, "clock": setup.clock, **setup.facts}
            for point in points:
                for name, value in point.state.items():
                    states.setdefault(name, []).append(value)
        except ProfileError:
            pass
        for method, path in part.profiles(folder).items():
            if _is_json(path):
                evidence = json.loads(path.read_text(encoding="utf-8"))["evidence"]
                row["profiles"][method] = {
                    "file": path.name, "holdout_points": evidence["holdout_points"],
                    "holdout_median": evidence["holdout_median"], "holdout_p95": evidence["holdout_p95"],
                    "noise": evidence["noise"],
                }  # fmt: skip
        parts.append(row)
    machine.pop("weights", None)
    return {
        "schema_version": 1,
        "machine": machine,
        "states": {name: [min(values), max(values)] for name, values in sorted(states.items())},
        "parts": parts,
        "checks": [_checked(check, folder, outcomes[check.name]) for check in CHECKS if check.name in outcomes],
    }


def _checked(check: Check, folder: Path, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a check: its verdict and speed-ups, where there is a result."""
    found: dict[str, Any] = {"check": check.name, **outcome}
    if check.is_done(folder):
        result = json.loads(check.result(folder).read_text(encoding="utf-8").splitlines()[-1])
        found |= {name: result[name] for name in ("runs", "runs_asked", "verdict", "speedups", "checks")}
        found["errors"] = [
            {"load": row["load"], "policy": row["policy"], "noise": row["figures"]["tpot_mean_s"]["noise"],
             **{name: row["figures"][name]["error"] for name in ("output_tokens_per_s", "tpot_mean_s")}}
            for row in result["rows"]
        ]  # fmt: skip
    return found


def _launches(points: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for point in points:
        if point.launch and point.kind == "body" and not point.is_prefill:
            found[point.launch] = found.get(point.launch, 0) + 1
    return found
