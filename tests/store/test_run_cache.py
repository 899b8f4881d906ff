"""The planner on the store: what is finished is kept when a plan is stopped, and not simulated again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_limits, make_profile, make_trace

from db.store import Store
from specsim.acceptance.vector import PerPosition
from specsim.cli.run_cache import StoredRuns
from specsim.code_version import code_version
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.planner.point_runner import Key, run_batches
from specsim.planner.points import Batch, Stretch, Worker
from specsim.planner.question import PlanSettings, Question, Side

SETTINGS = PlanSettings(replications=2, jobs=1)
TRACE = make_trace(arrival_s=np.arange(40) * 0.05, prompt_tokens=100, output_tokens=20)
BATCHES = [
    Batch(policy, Stretch(i, 0, 40, i), (10.0, 20.0), (40, 40))
    for i in range(2)
    for policy in (PolicySpec("off"), PolicySpec("static", 3))
]


def make_question(**changes: object) -> Question:
    question = Question(
        deployment=Deployment(),
        speculation=Speculation(),
        slo=Slo(),
        off=Side(make_profile(lookup=True), make_limits()),
        on=Side(make_profile(), make_limits()),
        acceptance=PerPosition((0.7,)),
        acceptance_source="test",
        acceptance_error=0.1,
    )
    return replace(question, **changes)  # type: ignore[arg-type]


class Counting:
    """Counts simulated batches; after `stop_after` of them the user presses Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self.stop_after: int | None = None
        real = Worker.run

        def run(worker: Worker, batch: Batch) -> list[dict]:
            if self.stop_after is not None and len(self.batches) >= self.stop_after:
                raise KeyboardInterrupt
            self.batches.append(batch)
            return real(worker, batch)

        monkeypatch.setattr(Worker, "run", run)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def plan(store: Store, question: Question | None = None, settings: PlanSettings = SETTINGS) -> dict[Key, dict]:
    question = question or make_question()
    cache = StoredRuns(store, question, TRACE, settings, scenario={"name": "test"})
    points = run_batches(BATCHES, question, TRACE, settings, cache=cache)
    assert len(cache.keys) == len(set(cache.keys)) == 8
    store.save_plan(
        {"seed": settings.seed}, {"points": len(points)}, status="complete", schema_version=1,
        code_version=cache.code_version, specsim_version="0", run_keys=cache.keys, trace_sha256=cache.trace_sha256,
        profile_sha256=cache.profile_sha256, scenario_sha256=cache.scenario_sha256,
    )  # fmt: skip
    return points


def test_a_second_plan_simulates_nothing_and_says_the_same(store: Store, count: Counting) -> None:
    first = plan(store)
    assert len(count.batches) == 4
    assert plan(store) == first
    assert repr(plan(store)) == repr(first)
    assert len(count.batches) == 4
    assert store.count() == {"plans": 1, "runs": 8}
    run = store.list_runs()[0]
    assert run["ttft_p95_s"] > 0
    assert run["rate_scale"] == pytest.approx(run["load_per_s"] / 20)


def test_a_stopped_plan_goes_on_where_it_was(store: Store, count: Counting) -> None:
    count.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        plan(store)
    assert store.count() == {"plans": 0, "runs": 6}
    count.stop_after = None
    resumed = plan(store)
    assert len(count.batches) == 4
    assert store.count() == {"plans": 1, "runs": 8}
    with Store.open("sqlite://") as fresh:
        assert plan(fresh) == resumed


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"acceptance_source": "other words"}, 0),
        ({"acceptance": PerPosition((0.6,))}, 2),  # runs without speculation are shared
        ({"slo": Slo(ttft_s=0.5)}, 4),
        ({"deployment": Deployment(replicas=2)}, 4),
        ({"deployment": Deployment(router="round_robin")}, 4),
        ({"on": Side(make_profile(host_s=2e-3), make_limits())}, 2),
        ({"off": Side(make_profile(lookup=True), make_limits(max_num_seqs=4))}, 2),
    ],
)
def test_only_what_could_change_a_run_makes_it_run_again(
    store: Store, count: Counting, changes: dict[str, object], again: int
) -> None:
    plan(store)
    plan(store, make_question(**changes))
    assert len(count.batches) == 4 + again


def test_other_settings_run_again(store: Store, count: Counting) -> None:
    plan(store)
    plan(store, settings=replace(SETTINGS, warmup_share=0.2))
    assert len(count.batches) == 8
    plan(store, settings=replace(SETTINGS, jobs=2))
    assert len(count.batches) == 8


def test_the_code_version_is_stable_and_names_the_release() -> None:
    import specsim

    assert code_version() == code_version()
    assert code_version().startswith(f"{specsim.__version__}+")
