"""`specsim hardware` and `specsim model` print tables that fit, mark doubts, and give the same data as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cogapp import Cog

from scenarios.hardware import load_gpus
from scenarios.models import load_models
from specsim.cli.catalogue import hardware, model
from specsim.errors import CatalogueError

ROOT = Path(__file__).parents[2]


def run(group: click.Group, *arguments: str) -> str:
    result = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


EVERY_PAGE = [
    (hardware, ("list",)),
    (model, ("list",)),
    *((hardware, ("show", name)) for name in load_gpus()),
    *((model, ("show", name)) for name in load_models()),
]


@pytest.mark.parametrize(("group", "arguments"), EVERY_PAGE)
def test_every_page_fits_100_columns(group: click.Group, arguments: tuple[str, ...]) -> None:
    lines = run(group, *arguments).splitlines()
    assert len(lines) > 3
    assert max(len(line) for line in lines) <= 100
    assert "…" not in "".join(lines)


def test_hardware_list_has_every_gpu_on_one_line_and_explains_the_mark() -> None:
    lines = run(hardware, "list").splitlines()
    for name in load_gpus():
        assert sum(line.strip().startswith(f"{name}  ") for line in lines) == 1, name
    assert any("~ doubtful" in line for line in lines)
    (h100,) = (line.split() for line in lines if line.strip().startswith("H100 SXM"))
    assert h100 == ["H100", "SXM", "80", "3350", "989", "1979", "-", "450", "700", "1.30", "to", "5.50"]
    (b200,) = (line.split() for line in lines if line.strip().startswith("B200 SXM"))
    assert "~7700" in b200 and "9000" in b200


def test_hardware_show_names_sources_dates_and_doubts() -> None:
    page = run(hardware, "show", "b300")
    for text in ("aiconfigurator", "InferenceX", "~13500 fp4", "268.6 GiB", "~2.34", "temporary", "before 2026-07",
                 "bandwidth_bytes_per_s"):  # fmt: skip
        assert text in page
    page = run(hardware, "show", "H100 NVL")
    assert "No price is known" in page and "~94 GB" in page and "no source found" in page
    assert "drivers report 81559 MiB" in run(hardware, "show", "h100")


def test_hardware_json() -> None:
    listed = json.loads(run(hardware, "list", "--json"))
    assert listed["schema_version"] == 1
    assert [entry["name"] for entry in listed["gpus"]] == list(load_gpus())
    shown = json.loads(run(hardware, "show", "h100", "--json"))["gpu"]
    assert shown == listed["gpus"][list(load_gpus()).index("H100 SXM")]
    assert shown["memory_bytes"] == 80e9 and shown["flops_per_s"] == {"bf16": 989e12, "fp8": 1979e12}
    assert {price["usd_per_gpu_h"] for price in shown["prices"]} >= {1.3, 5.5}


def test_model_list_marks_doubts() -> None:
    lines = run(model, "list").splitlines()
    for name, shape in load_models().items():
        start = f"~{name} " if shape.doubtful else f"{name} "
        assert sum(line.strip().startswith(start) for line in lines) == 1, name
    (row,) = (line.split() for line in lines if line.strip().startswith("deepseek-v3 "))
    assert row == ["deepseek-v3", "model", "671.03", "36.62", "61", "7168", "128/MLA", "163840", "70272"]


def test_model_show_pages() -> None:
    page = run(model, "show", "openai/gpt-oss-120b")
    for text in ("116.789 B, 5.131 B active", "128 x 2880, 4 per token", "128 tokens in 18 of 36 layers",
                 "bf16, routed experts mxfp4", "eagle3: eagle3-gpt-oss-120b", "config.json of openai/gpt-oss-120b",
                 "2025-08"):  # fmt: skip
        assert text in page
    assert "doubtful (~)" in run(model, "show", "eagle3-gpt-oss-120b")


def test_model_json_has_counts_and_drafters() -> None:
    listed = json.loads(run(model, "list", "--json"))["models"]
    assert [entry["name"] for entry in listed] == list(load_models())
    shown = json.loads(run(model, "show", "llama-3.1-8b", "--json"))["model"]
    assert shown in listed
    assert shown["kv_bytes_per_token_bf16"] == 131072
    assert shown["total_parameters"] == load_models()["llama-3.1-8b"].total_parameters
    assert shown["drafters"]["eagle3"] == "eagle3-llama-3.1-8b"


def test_model_show_reads_a_config_file(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "2 x 64" in run(model, "show", str(tmp_path))
    shown = json.loads(run(model, "show", str(tmp_path / "config.json"), "--json"))["model"]
    assert shown["total_parameters"] == 2 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 64 * 100


@pytest.mark.parametrize(("group", "name"), [(hardware, "h10"), (model, "llama-9"), (model, "./absent/config.json")])
def test_errors_reach_the_main_command_unchanged(group: click.Group, name: str) -> None:
    result = CliRunner().invoke(group, ["show", name])
    assert isinstance(result.exception, CatalogueError) and result.output == ""


def test_same_bytes_every_time() -> None:
    assert run(model, "list", "--json") == run(model, "list", "--json")


def test_importing_reads_no_file_and_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, specsim.cli.catalogue, scenarios.hardware, scenarios.models\n"
        "heavy = {'numpy', 'scipy', 'rich', 'sqlalchemy', 'simpy', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert scenarios.hardware.load_gpus.cache_info().currsize == 0\n"
        "assert scenarios.models.load_models.cache_info().currsize == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_reference_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    code = Cog().main(["cog", "--check", str(ROOT / "docs" / "reference" / "catalogue.md")])
    assert code in (0, None), f"run cog -r docs/reference/catalogue.md: {capsys.readouterr().out}"
