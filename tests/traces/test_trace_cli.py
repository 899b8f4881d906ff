"""`specsim trace ...`: tables that fit, JSON that is one object, errors that propagate."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from specsim.cli.trace import load_trace_from_options, trace, trace_options
from specsim.errors import InputError, SpecsimError, TraceError

EXAMPLES = Path(__file__).parents[2] / "examples"
FIXTURES = Path(__file__).parent / "fixtures"
MOONCAKE = str(EXAMPLES / "mooncake_conversation_first30min.jsonl.gz")


def run(*args: str, **more):
    return CliRunner().invoke(trace, [str(arg) for arg in args], **more)


def test_inspect_prints_a_table_that_fits_100_columns():
    result = run("inspect", MOONCAKE)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    for words in ("mooncake", "ms (Mooncake", "5,719 read, 5,719 kept", "prefix reuse", "3 s grid", "p95 41,793"):
        assert words in " ".join(result.stdout.split())


def test_inspect_explains_what_it_did_not_use():
    result = run("inspect", FIXTURES / "litellm.jsonl")
    text = " ".join(result.stdout.split())
    assert "11 read, 8 kept, 3 not used" in text
    assert "1 x embedding call (line 2)" in text


def test_inspect_json_is_one_object_with_stable_keys():
    result = run("inspect", MOONCAKE, "--json", "--window", "5m:10m", "--rate-scale", "2", "--limit", "500")
    data = json.loads(result.stdout)
    assert set(data) == {"schema_version", "meta", "stats", "hash_block_tokens", "fingerprint"}
    assert data["schema_version"] == 1
    assert data["stats"]["rows"] == 500
    assert data["meta"]["rows_kept"] == 5719
    assert len([note for note in data["meta"]["notes"] if "window" in note or "times as fast" in note]) == 2
    assert run("inspect", MOONCAKE, "--json").stdout == run("inspect", MOONCAKE, "--json").stdout


def test_errors_propagate_to_the_main_command():
    result = run("inspect", FIXTURES / "weka.jsonl")
    assert isinstance(result.exception, TraceError)
    assert result.exception.exit_code == 2
    assert run("inspect", FIXTURES / "weka.jsonl", "--session-rate", "0.1").exit_code == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--window", "5m"],
        ["--busiest", "soon"],
        ["--arrivals", "poisson:-1"],
        ["--time-unit", "fortnight"],
        ["--column", "arival=x"],
        ["--bytes-per-token", "none"],
        ["--max-line", "0"],
        ["--limit", "0"],
    ],
)
def test_bad_flags_end_in_one_line(flags):
    result = run("inspect", FIXTURES / "vidur.csv", *flags)
    assert isinstance(result.exception, SpecsimError)
    assert "\n" not in str(result.exception)


def test_convert_and_read_again(tmp_path):
    out = tmp_path / "out.jsonl.gz"
    result = run("convert", FIXTURES / "litellm.csv", "-o", out)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "8 requests" in result.stderr
    again = json.loads(run("inspect", out, "--json").stdout)
    assert again["meta"]["format"] == "specsim"
    assert again["stats"]["rows"] == 8
    assert isinstance(run("convert", FIXTURES / "litellm.csv", "-o", out).exception, InputError)
    assert run("convert", FIXTURES / "litellm.csv", "-o", out, "--force", "--json").exit_code == 0


def test_convert_to_standard_output_is_mooncake_rows():
    result = run("convert", FIXTURES / "azure_2023.csv")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["input_length"] for row in rows][:2] == [374, 396]
    assert set(rows[1]) == {"timestamp", "input_length", "output_length"}
    assert rows[1]["timestamp"] == 4314.579
    assert run("convert", FIXTURES / "azure_2023.csv", "--to", "csv").stdout.startswith("arrival_s,prompt_tokens")


def test_synth_follows_the_flags(tmp_path):
    out = tmp_path / "load.csv"
    flags = ["--arrivals", "gamma:8:2", "--duration", "5m", "--isl", "lognormal:1200:4000", "--osl", "200"]
    result = run("synth", *flags, "--prefix-pool", "4:1024:0.8", "-o", out, "--json")
    data = json.loads(result.stdout)
    assert data["output"] == str(out)
    assert data["stats"]["prefix_reuse"] > 0
    assert out.read_text().startswith("arrival_s,prompt_tokens,output_tokens,hash_block_tokens,hash_ids\n")
    first = run("synth", "--requests", "5", "--lengths-from", FIXTURES / "vidur.csv").stdout
    assert len(first.splitlines()) == 5
    assert first == run("synth", "--requests", "5", "--lengths-from", FIXTURES / "vidur.csv").stdout
    assert first != run("synth", "--requests", "5", "--lengths-from", FIXTURES / "vidur.csv", "--seed", "1").stdout
    assert isinstance(run("synth", "--isl", "5").exception, TraceError)


def test_standard_input_is_a_trace():
    data = (FIXTURES / "mooncake.jsonl").read_bytes()
    result = run("inspect", "-", "--json", input=data)
    assert json.loads(result.stdout)["meta"]["rows_kept"] == 8


def test_other_commands_can_reuse_the_flags():
    @click.command()
    @click.option("--trace", "path")
    @trace_options
    @click.option("--seed", type=int, default=0)
    def plan(path, **values):
        item = load_trace_from_options(path, values)
        click.echo(f"{len(item)} {sorted(values)}")

    result = CliRunner().invoke(plan, ["--trace", str(FIXTURES / "vidur.csv"), "--limit", "3", "--seed", "4"])
    assert result.output == "3 ['seed']\n"


def test_every_read_flag_has_help():
    text = run("inspect", "--help").output
    for flag in ("--trace-format", "--column", "--strict", "--busiest", "--no-spread-grid", "--session-rate"):
        assert flag in text
