"""A real run simulated again with its own step times and rounds: the same steps, and the same figures."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from builders import make_limits, make_profile, make_trace

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from served import DRAFTERS, prompts_of, target  # noqa: E402

from calibrate.engine import ModelRunner, VirtualClock, serve  # noqa: E402
from calibrate.engine.real import serve_real  # noqa: E402
from calibrate.engine.replay import MeasuredSteps, recorded_rounds  # noqa: E402
from specsim.config import PolicySpec, ReplicaLimits  # noqa: E402
from specsim.engine.simulator import simulate  # noqa: E402
from specsim.latency import StepCost, StepWork  # noqa: E402
from specsim.metrics import summarise  # noqa: E402
from specsim.policies import parse_policy  # noqa: E402
from specsim.traces.model import Trace  # noqa: E402
from specsim.workload import Workload  # noqa: E402

LIMITS = make_limits(max_num_seqs=4, max_num_batched_tokens=24, num_kv_blocks=44, block_size_tokens=2)
POLICIES = [
    PolicySpec("static", 3),
    PolicySpec("off_above", 3, batch_limit=2),
    parse_policy("budget:4"),
    PolicySpec("off"),
]


def trace(gap_s: float, n: int = 16) -> Trace:
    rng = np.random.default_rng(1)
    return make_trace(
        arrival_s=np.cumsum(rng.exponential(gap_s, n)).tolist(),
        prompt_tokens=rng.integers(4, 25, n).tolist(),
        output_tokens=rng.integers(2, 25, n).tolist(),
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_a_run_in_virtual_time_is_simulated_exactly(drafter: str, policy: PolicySpec) -> None:
    """The rounds are those of a real model, and the simulator goes through the same steps with them."""
    requests, cost = trace(0.01), StepCost(make_profile())
    workload = Workload(requests, None, seed=0)
    runner = ModelRunner(
        target(), prompts_of(workload.prompt_tokens), workload, LIMITS, drafter=DRAFTERS[drafter](),
        num_spec_tokens=policy.num_spec_tokens,
    )  # fmt: skip
    served = serve(workload, runner, VirtualClock(cost), limits=LIMITS, policy=policy, cost=cost)
    assert served.result.requests.preemptions.sum() > 0
    steps = MeasuredSteps(served, make_profile())
    again = simulate(Workload(requests, recorded_rounds(served, workload), seed=0), steps, limits=LIMITS, policy=policy)
    assert steps.unmatched == 0
    totals, expected = asdict(again.totals), asdict(served.result.totals)
    assert totals.pop("k_steps") == expected.pop("k_steps")
    assert totals == pytest.approx(expected, abs=1e-6)
    for name, column in asdict(served.result.requests).items():
        np.testing.assert_allclose(asdict(again.requests)[name], column, rtol=0, atol=1e-9, err_msg=name)


class Restless:
    """A clock as on a busy machine, but the same every time: steps of 1 to 11 ms, and looking at it takes 20 us."""

    def __init__(self) -> None:
        self._now = 0.0
        self._rng = np.random.default_rng(3)

    def now(self) -> float:
        self._now += 2e-5
        return self._now

    def wait_until(self, time_s: float) -> None:
        self._now = max(self._now, time_s) + 1e-4

    def carried_out(self, work: StepWork) -> None:
        self._now += float(self._rng.uniform(0.001, 0.011))


FIGURES = ("output_tokens_per_s", *(f"{m}_{q}_s" for m in ("ttft", "tpot") for q in ("mean", "p50", "p95", "p99")))


def test_a_run_on_a_restless_machine_is_simulated_within_3_percent() -> None:
    """Throughput, TTFT and TPOT at the mean, the median and in the tails, over steps that no profile would predict."""
    policy = PolicySpec("static", 3)
    requests = trace(0.012, 60)
    workload = Workload(requests, None, seed=0)
    runner = ModelRunner(
        target(), prompts_of(workload.prompt_tokens), workload, LIMITS, drafter=DRAFTERS["ngram"](), num_spec_tokens=3
    )
    served = serve(workload, runner, Restless(), limits=LIMITS, policy=policy)
    steps = MeasuredSteps(served, make_profile())
    again = simulate(Workload(requests, recorded_rounds(served, workload), seed=0), steps, limits=LIMITS, policy=policy)
    real, simulated = summarise(served.result), summarise(again)
    assert steps.unmatched == 0
    for name in FIGURES:
        assert getattr(simulated, name) == pytest.approx(getattr(real, name), rel=0.03), name


def test_a_run_in_real_time_is_simulated_step_by_step() -> None:
    """Whatever this machine does meanwhile; one pause between two steps moves a tail, but not what was decided."""
    policy = PolicySpec("static", 3)
    requests = trace(0.012, 30)
    workload = Workload(requests, None, seed=0)
    served, _ = serve_real(
        target(),
        prompts_of(workload.prompt_tokens),
        workload,
        limits=LIMITS,
        policy=policy,
        drafter=DRAFTERS["ngram"](),
    )
    steps = MeasuredSteps(served, make_profile())
    again = simulate(Workload(requests, recorded_rounds(served, workload), seed=0), steps, limits=LIMITS, policy=policy)
    assert steps.unmatched == 0
    ours, theirs = served.result, again
    for name in ("steps", "rounds", "drafted_tokens", "accepted_tokens", "prefill_tokens", "preemptions", "k_steps"):
        assert getattr(ours.totals, name) == getattr(theirs.totals, name), name
    assert ours.requests.preemptions.tolist() == theirs.requests.preemptions.tolist()
    assert theirs.end_s == pytest.approx(ours.end_s, rel=1e-6)
    # a token is out when its step has ended; the simulator has no books to keep behind it
    late = max(step.after_s for step in served.steps)
    for name in ("first_token_s", "finish_s"):
        behind = getattr(theirs.requests, name) - getattr(ours.requests, name)
        assert np.all((behind >= -1e-6) & (behind <= late + 1e-6)), name


def test_work_that_did_not_occur_costs_what_the_most_similar_did() -> None:
    requests, cost = trace(0.01), StepCost(make_profile())
    workload = Workload(requests, None, seed=0)
    served, _ = _plain(workload, LIMITS, cost)
    steps = MeasuredSteps(served, make_profile())
    with_more = simulate(Workload(requests, None, seed=0), steps, limits=make_limits(), policy=PolicySpec("off"))
    assert steps.unmatched > 0
    assert with_more.totals.busy_s > 0


def _plain(workload: Workload, limits: ReplicaLimits, cost: StepCost):  # type: ignore[no-untyped-def]
    runner = ModelRunner(target(), prompts_of(workload.prompt_tokens), workload, limits)
    return serve(workload, runner, VirtualClock(cost), limits=limits, policy=PolicySpec("off"), cost=cost), runner
