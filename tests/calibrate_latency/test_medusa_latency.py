"""`specsim calibrate latency --method medusa` on tiny real heads on the CPU, and lookahead beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from calibrate.drafters.base import Draftee  # noqa: E402
from calibrate.drafters.medusa import MedusaDrafter, medusa_shape, random_medusa  # noqa: E402
from calibrate.drafters.planting import full_tree  # noqa: E402
from calibrate.latency.ceilings import least_s  # noqa: E402
from calibrate.latency.grid import Grid  # noqa: E402
from calibrate.latency.job import Job  # noqa: E402
from calibrate.points import Point, read_points  # noqa: E402
from specsim.cli import cli  # noqa: E402
from specsim.drafters.medusa import medusa_heads  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402
from specsim.profiles import LatencyProfile  # noqa: E402
from specsim.shapes import ModelShape  # noqa: E402

TINY = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
SHAPE = ModelShape(
    name="tiny", num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=64,
    vocab_size=300, max_position_tokens=512,
)  # fmt: skip
SMALL = ("--device", "cpu", "--threads", "1", "--clock", "cpu", "--max-batch", "4", "--max-context", "32",
         "--max-chunk", "16", "--budget", "1s")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """The command sets the threads of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and three heads for it in the form of the Medusa project."""
    folder = tmp_path_factory.mktemp("medusa")
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    (folder / "heads").mkdir()
    (folder / "heads" / "config.json").write_text(json.dumps({"medusa_num_heads": 3}), encoding="utf-8")
    sizes = {"0.linear.weight": (32, 32), "0.linear.bias": (32,), "1.weight": (300, 32)}
    tensors = {f"{head}.{name}": torch.ones(size) for head in range(3) for name, size in sizes.items()}
    torch.save(tensors, folder / "heads" / "medusa_lm_head.pt")
    return folder


@pytest.fixture(scope="module")
def random_ones(home: Path) -> Path:
    """The points of the target and of random heads, its profile beside them."""
    flags = ("--method", "medusa", "--k-max", "2", "--draft-option", "heads=3", *SMALL)
    said = run("calibrate", "latency", "--target", str(home / "m" / "config.json"), *flags, "-o", str(home / "p.json"))
    assert "Up to 2 heads were measured at once" in said
    return home / "p.points.jsonl"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def profile_of(path: Path) -> LatencyProfile:
    return LatencyProfile.from_dict(json.loads(path.read_text("utf-8")))


def test_heads_are_measured_beside_their_target_and_the_profile_is_used(home: Path, random_ones: Path) -> None:
    setup, points, _ = read_points(random_ones)
    assert (setup.shapes["draft"]["kind"], setup.shapes["draft"]["num_layers"]) == ("medusa", 3)
    kinds = {(point.kind, point.role) for point in points}
    assert {("whole", "draft"), ("body", "draft"), ("head", "draft"), ("sample", "draft"), ("draft_round", "draft"),
            ("body", "target"), ("accept", "target")} <= kinds  # fmt: skip
    own = [p for p in points if p.role == "draft" and p.kind in ("whole", "body", "draft_round")]
    assert {p.drafts for p in own} == {1, 2}
    assert all(p.launch == "eager" and p.repeats >= 3 for p in own)
    assert all(p.roofline > 0 for p in own if p.kind != "draft_round")
    assert {(p.method, len(p.parts), p.drafts) for p in points if p.kind == "host"} == {
        ("", 1, 0), ("", 4, 0), ("medusa", 1, 2), ("medusa", 4, 2)
    }  # fmt: skip
    found = profile_of(home / "p.json")
    assert (found.draft_mode, found.covers["draft_heads"]) == ("heads", "3")
    assert found.covers["draft_weights"] == "random, seed 0"
    assert found.draft is not None and found.draft.kv_token_s == 0
    assert found.speculation_host_s + found.speculation_request_s > 0
    asked = ("crossover", "--profile", str(home / "p.json"), "--target", str(home / "m" / "config.json"), "--topk", "1",
             "--acceptance-length", "1.5", "--isl", "16", "--osl", "8", "--seeds", "3", "--concurrency", "2",
             "--json")  # fmt: skip
    assert json.loads(run(*asked, "--k", "3"))["speculation"]["options"] == {"heads": 3}
    assert "num_spec_tokens 4 is more than the 3 heads that are loaded" in run(*asked, "--k", "4", code=2)


def test_heads_of_a_folder_are_timed_with_their_weights(home: Path, random_ones: Path, tmp_path: Path) -> None:
    flags = ("--method", "medusa", "--draft", str(home / "heads"), "--k-max", "5", "--target-points", str(random_ones))
    target = str(home / "m" / "config.json")
    run("calibrate", "latency", "--target", target, *flags, *SMALL, "-o", str(tmp_path / "p.json"))
    found = profile_of(tmp_path / "p.json")
    assert found.covers["draft"] == "3 medusa heads of heads"
    assert found.covers["draft_weights"] == "those of the folder"
    _, points, _ = read_points(tmp_path / "p.points.jsonl")
    assert max(p.drafts for p in points if p.role == "draft") == 3, "as many as there are"
    assert {p.drafts for p in points if p.kind == "host" and p.method} == {3}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What the command asks to be measured, which then is not."""
    jobs: list[Job] = []

    def kept(job: Job) -> None:
        jobs.append(job)
        raise ScenarioError("enough")

    monkeypatch.setattr("calibrate.latency.job.measure", kept)
    return jobs


def test_a_config_alone_is_measured_with_random_weights(home: Path, asked: list[Job]) -> None:
    for given in (home / "heads" / "config.json", home / "heads"):
        flags = ("--method", "medusa", "--draft", str(given), *SMALL)
        run("calibrate", "latency", "--target", str(home / "m" / "config.json"), *flags, code=2)
    drafts = [job.draft for job in asked]
    assert [draft and draft.source for draft in drafts] == [{}, home / "heads"]
    assert all(draft is not None and draft.shape["num_layers"] == 3 for draft in drafts)


def test_lookahead_is_measured_as_wide_as_it_verifies(home: Path, asked: list[Job]) -> None:
    numbers = ("--draft-option", "window=3", "--draft-option", "guesses=2", "--k-max", "4")
    flags = ("--method", "ngram", "--method", "lookahead", *numbers, *SMALL)
    run("calibrate", "latency", "--target", str(home / "m" / "config.json"), *flags, code=2)
    (job,) = asked
    assert (job.grid.width, job.most_drafts) == ((3 + 2) * 4, 4)
    other = ("--method", "lookahead", "--draft-option", "widow=3", *SMALL)
    refused = run("calibrate", "latency", "--target", str(home / "m" / "config.json"), *other, code=2)
    assert "lookahead has no such option" in refused
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--draft", "HEADS", "--draft-option", "heads=2"), "has its own shape, so that --draft-option does nothing"),
        (("--draft", "none-such"), "--draft none-such: no such folder; medusa takes a folder of heads"),
        (("--draft", "OTHER"), "is of heads for a target of vocab_size 200, and"),
        (("--draft", "PLAIN"), "has no 'medusa_num_heads' or 'num_heads'"),
        (("--draft", "BARE"), "'medusa_num_layers' is 0, and must be at least 1"),
        (("--draft", "EMPTY"), "holds no weights"),
        (("--draft-option", "heads=0"), "speculation.options.heads must be a whole number in 1..16"),
        (("--draft-option", "head=2"), "medusa has no such option"),
        (("--tp", "2"), "heads are measured whole"),
        (("--method", "eagle3"), "run different drafters"),
    ],
)
def test_heads_that_cannot_be_measured_are_refused_in_one_line(
    home: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    configs: dict[str, dict[str, object]] = {
        "OTHER": {"medusa_num_heads": 2, "vocab_size": 200}, "PLAIN": {"hidden_size": 32},
        "BARE": {"medusa_num_heads": 2, "medusa_num_layers": 0}, "EMPTY": {"medusa_num_heads": 2},
    }  # fmt: skip
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    places = {name: str(tmp_path / name) for name in configs} | {"HEADS": str(home / "heads")}
    given = [places.get(flag, flag) for flag in flags]
    points = ("--points", str(tmp_path / "p.jsonl"))
    target = ("--target", str(home / "m" / "config.json"))
    said = run("calibrate", "latency", *target, "--method", "medusa", *points, *SMALL, *given, code=2)
    assert message in said
    assert said.count("\n") == 1


def test_random_heads_have_the_weights_that_their_shape_counts() -> None:
    for blocks, rows in ((1, 0), (2, 0), (1, 120)):
        shape = medusa_heads(SHAPE, {"heads": 3}, blocks=blocks, rows=rows)
        heads = random_medusa(shape, seed=1)
        matrices = [w for own, output in heads._heads for w in (*(weight for weight, _ in own), output)]
        assert sum(w.numel() for w in matrices) == shape.total_parameters
        assert (len(heads), heads.head_rows) == (3, rows)
        hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
        said = heads.at_once(hidden, 2)
        assert [tuple(one.shape) for one in said] == [(4, 300)] * 2, "of the target's whole vocabulary"
        parts = [heads.said(mixed, head) for head, mixed in enumerate(heads.mixed(hidden, 2))]
        assert all(torch.equal(one, part) for one, part in zip(said, parts, strict=True))
        assert int(said[0].isfinite().sum()) == 4 * (rows or 300)


def test_a_config_gives_the_shape_in_both_published_forms(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"medusa_num_heads": 4, "medusa_num_layers": 2}), encoding="utf-8")
    found = medusa_shape(tmp_path, SHAPE)
    assert (found.num_layers, found.dense_mlp_parameters) == (4, 4 * 2 * 32 * 32)
    values = {"num_heads": 3, "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 300, "truncated_vocab_size": 90}
    config.write_text(json.dumps(values), encoding="utf-8")
    assert medusa_shape(tmp_path, SHAPE) == medusa_heads(SHAPE, {"heads": 3}, rows=90)
    with pytest.raises(ScenarioError, match="for a target of hidden_size 32"):
        medusa_shape(tmp_path, replace(SHAPE, hidden_size=64))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_all_heads_at_once_draft_what_they_draft_one_by_one(k: int) -> None:
    heads = random_medusa(medusa_heads(SHAPE, {"heads": 3}), seed=2)
    draftees = []
    for n in range(4):
        hidden = torch.randn((n, 32), generator=torch.Generator().manual_seed(n))
        draftees.append(Draftee(request=n, slot=n, tokens=(1,) * (n + 1), computed_tokens=n, drafts=n != 2,
                                hidden=(hidden,), generator=torch.Generator()))  # fmt: skip
    chain, one_each = MedusaDrafter(heads), MedusaDrafter(heads, full_tree([1, 1, 1]))
    found = chain.propose(draftees, k, None)
    assert [p.tokens for p in found] == [p.tokens for p in one_each.propose(draftees, k, None)]
    assert [len(p.tokens) for p in found] == [0, min(k, 3), 0, min(k, 3)]
    assert all(p.parents is None and p.probs is None for p in found)


def test_rooflines_count_the_heads_that_run() -> None:
    shape = medusa_heads(SHAPE, {"heads": 5})
    fields = {name: getattr(shape, name) for name in ModelShape.__dataclass_fields__}
    rates = {"copy_bytes_per_s": 1e6, "matrix_flops_per_s": 1e15}

    def least(point: Point) -> float:
        return least_s(point, fields, rates, weight_bytes=4.0)

    whole = Grid(requests=8, role="draft", heads=5).at_once(3, 2)
    assert least(whole) == pytest.approx(2 * (32 * 32 + 32 * 300) * 4 / 1e6)
    assert least(replace(whole, kind="body", rows=0)) == pytest.approx(2 * 32 * 32 * 4 / 1e6)
    assert least(Point("head", "draft", rows=3)) == pytest.approx(32 * 300 * 4 / 1e6)
