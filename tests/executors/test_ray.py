"""A Ray cluster gives the same bytes as local processes, and replaces workers that die. Starts a real one, here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from plan_cli import QUICK, write_log
from squares import tries

from specsim.cli import cli
from specsim.errors import ScenarioError
from specsim.executors.base import TRIES
from specsim.executors.ray_cluster import RayCluster

pytest.importorskip("ray")
HERE = Path(__file__).parent
JOBS = [13, 7, 5, *range(20, 26)]


def environment() -> dict[str, str]:
    """Loopback only, no token, no reports of usage; workers import the jobs of these tests."""
    roots = os.pathsep.join(map(str, (HERE.parents[1], HERE, HERE.parent)))
    return {
        **os.environ,
        "PYTHONPATH": roots,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    head = subprocess.Popen(
        [sys.executable, str(HERE / "ray_head.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert head.stdin is not None
    assert head.stdout is not None
    said = head.stdout.readline().strip()
    assert said.startswith("127.0.0.1:"), head.communicate()
    yield said
    head.communicate()


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_an_address_where_nothing_listens_is_told_at_once(form: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(ScenarioError, match=f"--address {address}: no Ray cluster lets us in there") as error:
            _ = RayCluster(address).count
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """A sweep and a plan; a what-if gives its points to the same crews as a plan."""
    folder = tmp_path_factory.mktemp("asked")
    log = str(write_log(folder / "log.csv"))
    ready = "llama-70b-h100x4-eagle3"
    return [
        ["sweep", ready, "--grid", "k=0,1,3", "--grid", "load=0.5..2/2", "--grid", "workload.requests=40", "--seeds",
         "2", "--against", "k=0", "--no-store", "--json"],
        ["plan", "--trace", log, *QUICK[:-2], "--no-store", "--json"],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def on_ray(address: str, commands: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("notes")
    asked = {"address": address, "commands": commands, "folder": str(folder), "jobs": JOBS}
    done = subprocess.run(
        [sys.executable, str(HERE / "ray_driver.py"), json.dumps(asked)],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_every_command_prints_the_same_bytes_as_on_local_processes(
    on_ray: tuple[dict, Path], commands: list[list[str]]
) -> None:
    for command, (code, out, err) in zip(commands, on_ray[0]["outputs"], strict=True):
        local = CliRunner().invoke(cli, [*command, "--jobs", "1"])
        assert (code, local.exit_code) == (0, 0), (err, local.stderr)
        assert out == local.stdout, command
        assert err.endswith(" on 2 Ray workers\n")


def test_a_worker_that_dies_is_replaced_and_its_job_is_tried_again(on_ray: tuple[dict, Path]) -> None:
    found, folder = on_ray
    jobs = {int(number): pair for number, pair in found["jobs"].items()}
    assert set(jobs) == set(JOBS)
    assert jobs[5] == [None, "five is refused"]
    assert jobs[13][1].startswith(f"its Ray worker died {TRIES} times")
    assert {n: jobs[n] for n in JOBS[3:]} == {n: [n * n, None] for n in JOBS[3:]}
    assert jobs[7] == [49, None]
    assert [len(set(tries(folder, n))) for n in (13, 7, 5)] == [TRIES, 2, 1]


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in commands:
        refused = CliRunner().invoke(cli, [*command, "--executor", "ray"])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == (
            "Error: --executor ray needs Ray: run pip install '.[ray]' in the folder of specsim, or leave it out\n"
        )
