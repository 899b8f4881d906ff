"""Compiled loops without a place for their cache, and tables that Python and loops share."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_cost
from hypothesis import given
from hypothesis import strategies as st
from numba.core import caching

from specsim.compiled import kernel
from specsim.engine import decode_kernels
from specsim.engine.recorder import Recorder
from specsim.engine.step_terms import StepTerms
from specsim.records import GapHistogram, RequestColumns


def test_where_nothing_can_be_cached_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])  # no folder can be written

    @kernel
    def twice(n):  # type: ignore[no-untyped-def]
        return 2 * n

    assert twice(21) == 42


@given(st.floats(1e-9, 1e5), st.integers(1, 1000))
def test_gaps_are_counted_as_python_counts_them(gap_s: float, count: int) -> None:
    rows = RequestColumns.empty(np.zeros(0), np.zeros(0), np.zeros(0))
    compiled, python = Recorder(rows), Recorder(rows)
    decode_kernels._add_gaps(compiled.record, gap_s, count)
    python.gap(gap_s, count)
    np.testing.assert_array_equal(compiled.record, python.record)
    assert sum(python.gaps().counts) == count
    assert len(python.gaps().counts) == GapHistogram.SIZE


def test_the_table_of_terms_grows_and_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from specsim.engine import step_terms

    monkeypatch.setattr(step_terms, "_MOST", 1 << 11)
    cost = make_cost()
    table = StepTerms(cost, machinery=True)
    keys = [(n, 3 * n, 3 * n, k) for n in range(1, 900) for k in (0, 3)]
    for key in keys:
        place = decode_kernels.find_terms(table.terms, *key)
        if not table.terms[place, decode_kernels.USED]:
            table.learn(key)
            place = decode_kernels.find_terms(table.terms, *key)
        assert tuple(table.terms[place, decode_kernels.USED + 1 :]) == cost.terms(*key, True)
    assert len(table.terms) <= 1 << 11
