"""The wheel, installed elsewhere: its contents, and a command that works beside a foreign `db/`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("specsim", "scenarios", "db", "calibrate")

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False
    )


def clean_environment() -> dict[str, str]:
    """Without anything that would lead back to the checkout or to a database of the user."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPECSIM_DB")
    return {key: value for key, value in os.environ.items() if key not in left_out} | {"COLUMNS": "100"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the build leaves nothing in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", "."]
    if importlib.util.find_spec("setuptools") is not None:
        command += ["--no-build-isolation", "--no-index"]  # needs no network then
    done = call(*command, cwd=source, env=clean_environment())
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("specsim-*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    """A fresh environment with the wheel, and a folder full of names that could get in its way."""

    bin: Path
    folder: Path

    def specsim(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return call(self.bin / "specsim", *arguments, cwd=self.folder, env=clean_environment())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    done = call(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel,
        cwd=home, env=clean_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The libraries come from the environment that runs the tests. A .pth adds a folder and follows no .pth in it, so
    # that an editable install of specsim there stays out of reach.
    (site,) = (home / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(str(Path(np.__file__).resolve().parents[1]) + "\n", encoding="utf-8")
    folder = tmp_path_factory.mktemp("work")
    (folder / "db").mkdir()
    (folder / "db" / "__init__.py").write_text("raise SystemExit('the foreign db was imported')\n", encoding="utf-8")
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "notes.txt").write_text("data, no package\n", encoding="utf-8")
    rows = [{"timestamp": 400 * i, "input_length": 200 + i % 7, "output_length": 20 + i % 5} for i in range(60)]
    (folder / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Installed(home / "bin", folder)


def test_the_wheel_holds_the_packages_and_their_data_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    packed = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".toml", ".csv", ".typed", ".css", ".json", ".jsonl")
    }
    assert packed == wanted


def test_help_and_catalogues(installed: Installed) -> None:
    done = installed.specsim("--help")
    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout
    done = installed.specsim("hardware", "list")
    assert done.returncode == 0, done.stderr
    assert "H100" in done.stdout


def test_what_runs_is_the_wheel(installed: Installed) -> None:
    program = "import db, specsim, scenarios; print(db.__file__, specsim.__file__, scenarios.__file__, sep='\\n')"
    done = call(installed.bin / "python", "-P", "-c", program, cwd=installed.folder, env=clean_environment())
    assert done.returncode == 0, done.stderr
    for line in done.stdout.split():
        assert installed.bin.parent.resolve() in Path(line).resolve().parents


def test_plan_works_and_stores_beside_a_foreign_db(installed: Installed) -> None:
    done = installed.specsim(
        "plan", "--trace", "tiny.jsonl", "--k", "3", "--loads", "2", "--replications", "2", "--max-requests", "60",
        "--jobs", "1", "--db", "results.db", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trace"]["rows_kept"] == 60
    done = installed.specsim("runs", "list", "--db", "results.db")
    assert done.returncode == 0, done.stderr
    assert result["plan_id"] in done.stdout


def test_a_ready_scenario_is_found(installed: Installed) -> None:
    done = installed.specsim("simulate", "chat-ngram", "--no-store", "--json")
    assert done.returncode == 0, done.stderr


def test_started_as_a_module_it_names_the_folder_in_its_way(installed: Installed) -> None:
    """`python -m` puts the working directory first, where a foreign `db` lies: one line, not a strange traceback."""
    done = call(
        installed.bin / "python", "-m", "specsim", "hardware", "list", cwd=installed.folder, env=clean_environment()
    )
    assert done.returncode != 0
    assert "another 'db' hides ours" in done.stderr
    assert str(installed.folder) in done.stderr
    assert "Traceback" not in done.stderr
