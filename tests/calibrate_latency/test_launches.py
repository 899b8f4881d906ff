"""Captured graphs and passes kernel by kernel: which ran is kept with every point, and said by the profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from machines import make_points, make_setup, measured, true_profile

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.fit.assemble import fit_profile
from calibrate.fit.launches import captured_terms, launch_words
from calibrate.latency.device import Device, find_device
from calibrate.latency.grid import Grid
from calibrate.latency.job import Job, Model, measure
from calibrate.latency.passes import Passes
from calibrate.latency.timing import Repeats
from calibrate.models import load_model
from calibrate.points import Point
from scenarios.models import model
from specsim.latency import StepCost, StepWork

GRID = Grid(16, 4, 256, 64)
CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256,
}  # fmt: skip


@dataclass(frozen=True)
class Capturing(Device):
    """A device that captures work of up to some calls, and fails on the rest, as torch does."""

    fails: bool = False

    @property
    def captures(self) -> bool:
        return True

    def captured(self, work: Callable[[], object]) -> Callable[[], object] | None:
        return None if self.fails else lambda: work()


def capturing(*, fails: bool = False) -> Capturing:
    cpu = find_device("cpu", clock="wall")
    return Capturing(**{name: getattr(cpu, name) for name in Device.__dataclass_fields__}, fails=fails)


@pytest.mark.parametrize(
    ("fails", "graphs", "launch"), [(False, True, "graph"), (True, True, "eager"), (False, False, "eager")]
)
def test_what_cannot_be_captured_runs_and_says_so(fails: bool, graphs: bool, launch: str) -> None:
    passes = Passes(load_model(CONFIG), capturing(fails=fails), slots=4, slot_tokens=80, graphs=graphs)
    decode, prefill = Grid(4, 2, 32, 16).decode(2, 2, 16), Grid(4, 2, 32, 16).prefill(8, 0)
    for point, expected in ((decode, launch), (prefill, "eager"), (replace(decode, kind="eager"), "eager"),
                            (Point("head", "target", rows=2), launch)):  # fmt: skip
        passes.work(point)()
        assert passes.launch_of(point) == expected, point.label
    assert passes.launch_of(Point("sample", "target", rows=2)) == ""


def both_ways(slower_s: float) -> list[Point]:
    """Points of a machine with graphs, three of them kernel by kernel as well."""
    points = measured(make_points(GRID), true_profile(), noise=0.001)
    points = [replace(p, launch="eager" if p.is_prefill else "graph") if p.kind == "body" else p for p in points]
    decode = sorted((p for p in points if p.launch == "graph"), key=lambda p: p.tokens)
    again = [replace(p, kind="eager", launch="eager", seconds=p.seconds + slower_s, low_s=p.low_s + slower_s,
                     high_s=p.high_s + slower_s) for p in (decode[0], decode[-1])]  # fmt: skip
    return points + again


def test_a_device_with_graphs_has_a_staircase_and_a_price_beyond_it() -> None:
    points = both_ways(0.02)
    profile = fit_profile(make_setup(), points, method="ngram", name="graphs").profile
    assert profile.covers["launch"] == "graph"
    assert profile.captured_tokens_max == GRID.requests * GRID.width
    assert profile.uncaptured_s == pytest.approx(0.02)
    cost = StepCost(profile)

    def step_s(requests: int) -> float:
        return cost.step_s(StepWork(decode_requests=requests, kv_tokens=0))

    assert step_s(9) > step_s(8) * 1.01, "nine are padded to sixteen"
    assert step_s(9) - step_s(16) == pytest.approx(
        0, abs=8 * (profile.target.request_s + profile.target.head_row_s * 2)
    )
    assert step_s(65) - step_s(64) > 0.02


def test_passes_of_which_some_could_not_be_captured_are_counted() -> None:
    points = both_ways(0.02)
    mixed = [replace(p, launch="eager") if p.launch == "graph" and p.tokens < 3 else p for p in points]
    found = launch_words(mixed)
    assert found.startswith("graph, ")
    assert found.endswith("decode passes eager")


def test_a_device_without_graphs_pads_nothing() -> None:
    points = [replace(p, launch="eager") if p.kind == "body" else p for p in both_ways(0.02)]
    assert captured_terms(points) == {}
    assert launch_words(points) == "eager"
    unsaid = [replace(p, launch="") for p in points]
    assert launch_words(unsaid) == ""
    assert captured_terms(unsaid) == {}


def test_a_job_on_a_device_with_graphs_measures_both(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    shape = asdict(model(str(tmp_path / "config.json")))
    device = capturing()
    job = Job(
        Model("tiny", CONFIG, shape), ("ngram",), device, tmp_path / "p.jsonl", grid=Grid(4, 2, 32, 16), budget_s=2.0,
        repeats=Repeats(least=3, most=3), host=False,
    )  # fmt: skip
    setup, points = measure(job)
    eager = [p for p in points if p.kind == "eager"]
    assert eager, "the guard"
    assert {len(p.parts) for p in eager} <= {1, 4}
    assert launch_words(points) == "graph"
    graphs = [p.tokens for p in points if p.kind == "body" and p.launch == "graph"]
    assert captured_terms(points)["captured_tokens_max"] == max(graphs)
    assert setup.engine == "specsim's reference engine"
