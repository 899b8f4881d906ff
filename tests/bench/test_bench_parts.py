"""What stands before and after a run: reading a log, dealing luck, writing to the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ruler import EXAMPLE, Unwritten, draw_s, event_s, example, in_units

from db.canonical import run_key
from db.store import Store
from scenarios.resolve import resolve
from specsim.config import Deployment, Slo, Speculation
from specsim.records import RequestColumns
from specsim.traces import ReadOptions, read_trace


def test_reading_a_log(benchmark) -> None:  # type: ignore[no-untyped-def]
    events, took = in_units(benchmark, event_s, lambda: read_trace(EXAMPLE, ReadOptions()), rounds=5)
    n = len(example())
    benchmark.extra_info["summary"] = f"{events / n:.1f} SimPy events a row ({n / took:,.0f} rows/s)"


@pytest.mark.parametrize("method", ["eagle", "ngram", "eagle3"])
def test_dealing_luck(benchmark, method: str) -> None:  # type: ignore[no-untyped-def]
    question = resolve(Deployment("llama-3.1-8b", "h100-sxm"), Speculation(method, num_spec_tokens=(3,)), Slo())
    outputs = example().output_tokens[:1024].astype(np.int64)
    draws, took = in_units(benchmark, draw_s, lambda: question.acceptance.luck(0, 0, outputs), rounds=9)
    positions = int(outputs.sum())
    benchmark.extra_info["summary"] = (
        f"{draws / positions:.1f} numpy draws an output position, whatever k ({type(question.acceptance).__name__}; "
        f"{len(outputs) / took:,.0f} requests/s)"
    )


def test_writing_runs(benchmark, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Runs with their metrics alone, and one with a row for each of its requests."""
    metrics = {f"metric_{n}": n / 7 for n in range(60)}
    trace, profile = "a" * 64, "b" * 64
    columns = RequestColumns.empty(
        *(getattr(example(), name) for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    )
    columns.freeze()
    seeds = iter(range(10**6))

    def save(store: Store, requests: RequestColumns | None) -> None:
        seed = next(seeds)
        key = run_key(
            trace_sha256=trace, trace_slice={}, profile_sha256=profile, limits={}, policy={}, acceptance=[], load=1.0,
            seed=seed, code_version="bench",
        )  # fmt: skip
        store.save_run(
            key, metrics=metrics, policy={"kind": "off"}, policy_label="off", seed=seed, code_version="bench",
            specsim_version="0", load_per_s=1.0, trace_sha256=trace, profile_sha256=profile, requests=requests,
        )  # fmt: skip

    with Store.open(f"sqlite:///{tmp_path / 'bench.db'}") as store:
        store.save_trace(trace, source="bench", format="azure", rows=1, span_s=1.0, stats={})
        store.save_profile(profile, name="bench", kind="analytic", body={})
        run, took = in_units(benchmark, event_s, lambda: [save(store, None) for _ in range(100)], rounds=3)
        rows, _ = in_units(Unwritten(), event_s, lambda: save(store, columns), rounds=3)
    benchmark.extra_info["summary"] = (
        f"{run / 100:,.0f} SimPy events a run ({100 / took:,.0f} runs/s), {rows / len(example()):.1f} a request where "
        f"requests are kept"
    )
