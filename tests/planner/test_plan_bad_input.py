"""Wrong input of every kind: one line on standard error, exit code 2, nothing on standard output, no harm done."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from plan_cli import QUICK, plan, write_log

ROWS = [{"timestamp": 100 * i, "input_length": 100 + i, "output_length": 10, "hash_ids": [i]} for i in range(30)]


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def changed(**values: object) -> bytes:
    return jsonl([{**row, **values} for row in ROWS])


def csv(text: str) -> bytes:
    return ("arrived_at,num_prefill_tokens,num_decode_tokens\n" + text).encode()


LOGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ""),
    "only a header": (csv(""), ""),
    "blank lines": (b"\n\n\n", ""),
    "truncated gzip": (gzip.compress(jsonl(ROWS * 50))[:200], ""),
    "truncated json": (jsonl(ROWS)[:40], ""),
    "not text": (bytes(range(256)) * 40, ""),
    "a picture": (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, ""),
    "utf-16 without rows": ("arrived_at,num_prefill_tokens,num_decode_tokens\r\n".encode("utf-16"), ""),
    "all times equal": (changed(timestamp=5), "at the same time"),
    "all prompts zero": (changed(input_length=0), ""),
    "all outputs negative": (changed(output_length=-3), ""),
    "NaN lengths": (jsonl(ROWS).replace(b'"output_length": 10', b'"output_length": NaN'), ""),
    "lengths are words": (changed(input_length="many"), ""),
    "no arrival times": (jsonl([{k: v for k, v in row.items() if k != "timestamp"} for row in ROWS]), ""),
    "one request": (jsonl(ROWS[:1]), "rate"),
    "a huge line": (b'{"timestamp": 0, "x": "' + b"a" * (2 << 20) + b'"}\n', ""),
    "prose": (b"It was a dark and stormy night.\n" * 20, ""),
    "every request too long": (changed(input_length=500_000), "longer than"),
}

FLAGS: dict[str, tuple[list[str], str]] = {
    "unknown GPU": (["--gpu", "h100-smx"], "did you mean 'H100 SXM'"),
    "unknown model": (["--target", "lama-3.1-8b"], "did you mean 'llama-3.1-8b'"),
    "unknown method": (["--method", "eagel"], "eagle"),
    "unknown drafter": (["--draft", "eagle-lama-3.1-8b"], "did you mean"),
    "a drafter for n-gram": (["--method", "ngram", "--draft", "llama-3.2-1b"], "ngram"),
    "unknown weight dtype": (["--weight-dtype", "fp9"], "fp8"),
    "unknown router": (["--router", "random"], "round_robin"),
    "k 0": (["--k", "0"], "at least 1"),
    "k negative": (["--k", "-3"], "at least 1"),
    "k a word": (["--k", "three"], "whole numbers"),
    "k huge": (["--k", "65"], "64"),
    "k fraction": (["--k", "2.5"], "whole numbers"),
    "TTFT 0": (["--ttft", "0"], "> 0"),
    "TPOT negative": (["--tpot", "-5"], "> 0"),
    "TPOT NaN": (["--tpot", "nan"], "finite"),
    "SLO share 0": (["--slo-share", "0"], "> 0"),
    "SLO share 95": (["--slo-share", "95"], "<= 1"),
    "load 0": (["--loads", "0"], "> 0"),
    "load NaN": (["--loads", "1,nan"], "finite"),
    "load negative": (["--loads", "-1"], "> 0"),
    "load a word": (["--loads", "all"], "finite numbers"),
    "one replication": (["--replications", "1"], "in 2..1000"),
    "no replication": (["--replications", "0"], "in 2..1000"),
    "one request": (["--max-requests", "1"], "in 2..10000000"),
    "negative seed": (["--seed", "-1"], "seed"),
    "negative jobs": (["--jobs", "-1"], "jobs"),
    "tp does not divide": (["--tp", "3"], "tp"),
    "tp 0": (["--tp", "0"], "tp"),
    "no replica": (["--replicas", "0"], "replicas"),
    "does not fit": (["--target", "llama-3.1-70b"], "GB"),
    "memory share above 1": (["--gpu-memory-utilization", "1.5"], "<= 1"),
    "acceptance above 1": (["--acceptance", "1.2"], "0..1"),
    "acceptance NaN": (["--acceptance", "nan"], "finite"),
    "acceptance length below 1": (["--acceptance-length", "0.5", "--k", "3"], "at least 1"),
    "acceptance length above k + 1": (["--acceptance-length", "7", "--k", "3"], "4"),
    "acceptance length of which k": (["--acceptance-length", "2", "--k", "1,3"], "--acceptance-length-k"),
    "both acceptances": (["--acceptance", "0.7", "--acceptance-length", "2", "--k", "3"], "exclude"),
    "unknown task": (["--task", "poetry-slam"], ""),
    "window past the end": (["--window", "100h:200h"], "window"),
    "rate scale 0": (["--rate-scale", "0"], "rate"),
    "limit 0": (["--limit", "0"], "limit"),
    "unknown format": (["--trace-format", "mooncakes"], "did you mean"),
    "unknown time unit": (["--time-unit", "fortnight"], ""),
    "unknown scenario": (["--scenario", "no-such-scenario"], ""),
    "unknown flag": (["--replica", "2"], ""),
    "flag without a value": (["--replications"], ""),
    "whole number expected": (["--replications", "three"], "three"),
}


def refused(*arguments: object, database: Path | None = None) -> str:
    """The one line of a refusal."""
    before = digest(database)
    result = plan(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line.strip()]) == 1, result.stderr
    assert lines[-1].startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert digest(database) == before
    return lines[-1]


def digest(database: Path | None) -> str | None:
    if database is None or not database.is_file():
        return None
    return hashlib.sha256(database.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv", requests=30, output=5)


@pytest.mark.parametrize("name", LOGS)
def test_logs(tmp_path: Path, name: str) -> None:
    content, says = LOGS[name]
    path = tmp_path / "bad.log"
    path.write_bytes(content)
    database = tmp_path / "new.db"
    line = refused("--trace", path, *QUICK, "--db", database)
    assert "bad.log" in line
    assert says in line
    assert not database.exists(), "what cannot be planned leaves no database behind"


@pytest.mark.parametrize("name", FLAGS)
def test_flags(log: Path, tmp_path: Path, name: str) -> None:
    flags, says = FLAGS[name]
    assert says in refused("--trace", log, *flags, "--db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_requests_that_really_come_at_once_have_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "burst.jsonl"
    path.write_bytes(changed(timestamp=0))
    assert "no arrival rate" in refused("--trace", path, *QUICK, "--time-unit", "s", "--no-store")


def test_rows_out_of_order_are_sorted_and_doubled_ids_are_two_requests(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(jsonl([{**row, "request_id": "same"} for row in reversed(ROWS)]))
    result = plan("--trace", path, *QUICK, "--no-store", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["trace"]["rows_kept"] == len(ROWS)


def test_no_log_at_all() -> None:
    assert "--trace" in refused()


@pytest.mark.parametrize("make", [lambda p: p / "missing.jsonl", lambda p: p])
def test_a_log_that_is_not_there(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    refused("--trace", make(tmp_path), "--no-store")


@pytest.mark.parametrize("bom", ["utf-16", "utf-8-sig"])
def test_a_log_in_another_unicode_is_read_or_refused(tmp_path: Path, bom: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(write_log(tmp_path / "plain.csv", requests=20, output=3).read_text(), encoding=bom)
    result = plan("--trace", path, *QUICK, "--no-store", "--json")
    assert result.exit_code in (0, 2)
    assert result.exit_code == 2 or json.loads(result.stdout)["trace"]["rows_kept"] == 20


DATABASES: dict[str, Callable[[Path], object]] = {
    "text": lambda p: p.write_text("this is no database\n" * 100),
    "truncated": lambda p: p.write_bytes(b"SQLite format 3\0" + b"\x10\0\x01\x01"),
    "foreign": lambda p: run_sql(p, "create table letters (id integer primary key, body text)"),
    "directory": lambda p: p.mkdir(),
}


def run_sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("name", DATABASES)
def test_databases_that_are_none(log: Path, tmp_path: Path, name: str) -> None:
    database = tmp_path / "results.db"
    DATABASES[name](database)
    assert "results.db" in refused("--trace", log, *QUICK, "--db", database, database=database)


@pytest.mark.parametrize(
    "url", ["mysql://nowhere/x", "sqlite:////no/such/folder/x.db", "postgresql://127.0.0.1:1/x", "://"]
)
def test_urls_that_lead_nowhere(log: Path, url: str) -> None:
    refused("--trace", log, *QUICK, "--db", url)


def test_a_database_that_another_process_locks(log: Path, tmp_path: Path) -> None:
    database = tmp_path / "results.db"
    assert plan("--trace", log, *QUICK, "--db", database).exit_code == 0
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("begin exclusive")
        line = refused("--trace", log, *QUICK, "--seed", 1, "--db", f"sqlite:///{database}?timeout=0.2")
        other.execute("rollback")
    assert "locked" in line
    assert plan("latest", "--db", database, command="report").exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "frozen"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        refused("--trace", log, *QUICK, "--db", folder / "results.db")
    finally:
        folder.chmod(0o700)


def test_reports_of_nothing(tmp_path: Path, log: Path) -> None:
    for arguments in (["latest", "--db", tmp_path / "missing.db"], ["plan-zzz", "--db", tmp_path / "missing.db"]):
        result = plan(*arguments, command="report")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "missing.db").exists()
