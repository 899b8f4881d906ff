"""Small stored worlds with keyword defaults."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from db.canonical import run_key
from db.store import Store
from specsim.records import RequestColumns

__all__ = [
    "PROFILE",
    "TRACE",
    "as_nobody",
    "file_hash",
    "make_key",
    "make_requests",
    "open_folder",
    "save_plan",
    "save_run",
]

TRACE = "a" * 64
PROFILE = "b" * 64


def make_key(*, seed: int = 0, policy: str = "off", load: float = 1.0, code_version: str = "c1") -> str:
    return run_key(
        trace_sha256=TRACE,
        trace_slice={},
        profile_sha256=PROFILE,
        limits={"num_kv_blocks": 10},
        policy={"kind": policy},
        acceptance=[0.7, 0.6],
        load=load,
        seed=seed,
        code_version=code_version,
    )


def save_run(
    store: Store, *, seed: int = 0, policy: str = "off", load: float = 1.0, code_version: str = "c1", **changed: Any
) -> str:
    """Store one run with the trace and profile that it needs; its key."""
    store.save_trace(TRACE, source="prod.jsonl", format="mooncake", rows=10, span_s=3.5, stats={"dropped": 0})
    store.save_profile(PROFILE, name="h100 analytic", kind="analytic", body={"profile_version": 1})
    key = make_key(seed=seed, policy=policy, load=load, code_version=code_version)
    values: dict[str, Any] = {
        "metrics": {"ttft_p95_s": 0.5, "tpot_p50_s": 0.02, "output_tokens_per_s": 100.0, "rounds": 7},
        "policy": {"kind": policy},
        "policy_label": policy,
        "load_per_s": load,
        "seed": seed,
        "code_version": code_version,
        "specsim_version": "0.1.0",
        "trace_sha256": TRACE,
        "profile_sha256": PROFILE,
        **changed,
    }
    store.save_run(key, **values)
    return key


def save_plan(store: Store, inputs: dict[str, Any], result: dict[str, Any] | None = None, **changed: Any) -> str:
    values: dict[str, Any] = {
        "status": "complete",
        "schema_version": 1,
        "code_version": "c1",
        "specsim_version": "0.1.0",
        **changed,
    }
    return store.save_plan(inputs, result or {"recommendation": "off"}, **values)


def make_requests(n: int) -> RequestColumns:
    """`n` finished requests, the last one rejected (its times are nan)."""
    arrival_s = np.arange(n, dtype=float)
    served = np.arange(n) < n - 1
    return RequestColumns(
        arrival_s=arrival_s,
        first_scheduled_s=np.where(served, arrival_s + 0.1, np.nan),
        first_token_s=np.where(served, arrival_s + 0.2, np.nan),
        finish_s=np.where(served, arrival_s + 1.0, np.nan),
        prompt_tokens=np.full(n, 100),
        output_tokens=np.full(n, 20),
        cached_tokens=np.zeros(n, dtype=int),
        preemptions=np.zeros(n, dtype=int),
        rejected=~served,
        replica=np.where(served, 0, -1),
    )


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def open_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that every user can enter (pytest's own is closed to others)."""
    folder = tempfile.TemporaryDirectory()
    os.chmod(folder.name, 0o777)
    return folder


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` returns as a user bound by file permissions; root is not, so it runs in a child of another user."""
    if os.geteuid() != 0:
        return work()
    Store.open("sqlite://").close()  # load every driver module while they can surely be read
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__} escaped: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
