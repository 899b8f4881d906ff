"""Whether a real run and a simulated one are the same, step by step and request by request."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from strategies import Watch, World, run

from calibrate.engine import Served

__all__ = ["EXACT_S", "assert_simulated_exactly"]

EXACT_S = 1e-9
SAME = ("waiting", "running", "used_blocks", "finished")
SAME_WORK = ("decode_requests", "draft_tokens", "prefill_tokens", "prefill_rows", "kv_tokens")


def assert_simulated_exactly(real: Served, world: World) -> None:
    """Simulate the world, and compare every step, every request and all totals."""
    watch = Watch()
    simulated = run(world, plain=False, watch=watch)
    assert len(real.steps) == len(watch.steps)
    for ours, theirs in zip(real.steps, watch.steps, strict=True):
        assert {n: getattr(ours, n) for n in SAME} == {n: getattr(theirs, n) for n in SAME}
        assert {n: getattr(ours.work, n) for n in SAME_WORK} == {n: getattr(theirs, n) for n in SAME_WORK}
        assert ours.work.next_num_spec_tokens == theirs.next_k
        assert ours.began_s == pytest.approx(theirs.began_s, abs=EXACT_S)
        assert ours.ended_s == pytest.approx(theirs.ended_s, abs=EXACT_S)
    rows = asdict(real.result.requests)
    for name, column in asdict(simulated.requests).items():
        if name.endswith("_s"):
            np.testing.assert_allclose(rows[name], column, rtol=0, atol=EXACT_S, err_msg=name)
        else:
            np.testing.assert_array_equal(rows[name], column, err_msg=name)
    totals, expected = asdict(real.result.totals), asdict(simulated.totals)
    assert totals.pop("k_steps") == expected.pop("k_steps")
    assert totals == pytest.approx(expected, abs=1e-6)
    assert np.bincount([i for step in real.steps for i in step.preempted], minlength=len(world.trace)).tolist() == (
        simulated.requests.preemptions.tolist()
    )
