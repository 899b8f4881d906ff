"""Every flag of every command: numbers as people write them, no empty text, one line that names the help."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specsim.checks import read_number, read_whole
from specsim.cli import cli
from specsim.cli.scenario_options import parse_numbers, parse_whole_numbers
from specsim.errors import InputError, ScenarioError, shortened
from specsim.policies import parse_policy
from specsim.traces.options import parse_arrivals, parse_duration, parse_per_token
from specsim.traces.recipe import parse_lengths, parse_pool, parse_profile


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of every command that takes flags."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())
OPTIONS = [
    (path, option)
    for path, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option) and not option.is_flag
]
NUMBERS = [
    (path, o) for path, o in OPTIONS if isinstance(o.type, click.types.IntParamType | click.types.FloatParamType)
]
TEXTS = [(path, o) for path, o in OPTIONS if isinstance(o.type, click.types.StringParamType)]


def arguments(path: tuple[str, ...]) -> list[str]:
    """Something for every argument, so that a flag is what is wrong."""
    return ["x" for param in COMMANDS[path].params if isinstance(param, click.Argument)]


def refusal(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 2, (words, done.output)
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.strip()


def test_the_guard() -> None:
    assert len(COMMANDS) >= 15
    assert len(NUMBERS) > 60
    assert len(TEXTS) > 100


@pytest.mark.parametrize("value", ["1_0", "\u0663", "x", "nan", "1e400", "9" * 5000, "--"])
@pytest.mark.parametrize("path", sorted({path for path, _ in NUMBERS}), ids=" ".join)
def test_what_is_no_number_is_refused_by_every_flag_that_takes_one(path: tuple[str, ...], value: str) -> None:
    for _, option in (pair for pair in NUMBERS if pair[0] == path):
        flag = option.opts[0]
        said = refusal(*path, *arguments(path), f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}")
        assert said.startswith(f"Error: {flag} '")
        assert "number" in said
        assert said.endswith(f"see specsim {' '.join(path)} --help")
        assert len(said) < 400


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize("path", sorted({path for path, _ in TEXTS}), ids=" ".join)
def test_empty_text_is_refused_by_every_flag(path: tuple[str, ...], value: str) -> None:
    for _, option in (pair for pair in TEXTS if pair[0] == path):
        said = refusal(*path, *arguments(path), option.opts[0], value)
        assert said == (
            f"Error: {option.opts[0]} is empty; leave it out, or give it a value; see specsim {' '.join(path)} --help"
        )


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_unknown_and_repeated_flags_point_to_the_help_of_their_command(path: tuple[str, ...]) -> None:
    way_out = f"see specsim {' '.join(path)} --help"
    assert refusal(*path, "--no-such-flag").endswith(way_out)
    single = next((o for p, o in OPTIONS if p == path and not o.multiple), None)
    if single is not None:
        said = refusal(*path, *arguments(path), single.opts[0], "1", single.opts[0], "1")
        assert said == f"Error: {single.opts[0]} is given twice; give it once; {way_out}"


@pytest.mark.parametrize(
    ("words", "help_of"),
    [(("bogus",), ""), (("--bogus",), ""), (("trace", "bogus"), " trace"), (("runs", "show"), " runs show"),
     (("plan", "a", "b"), " plan")],
)  # fmt: skip
def test_usage_errors_of_groups_and_arguments_too(words: tuple[str, ...], help_of: str) -> None:
    assert refusal(*words).endswith(f"; see specsim{help_of} --help")


def test_a_group_alone_still_prints_its_help() -> None:
    done = CliRunner().invoke(cli, ["trace"])
    assert "Commands:" in done.output


@given(st.text(max_size=20))
def test_a_number_read_is_plain_ascii_and_what_it_says(text: str) -> None:
    for read in (read_whole, read_number):
        try:
            value = read(text)
        except ValueError:
            continue
        assert text.isascii()
        assert "_" not in text
        assert value == float(text)


@pytest.mark.parametrize(
    ("read", "spelling"),
    [
        (parse_policy, "static:{}"),
        (parse_policy, "off_above:3:{}"),
        (parse_policy, "schedule:1-16={},17-512=0"),
        (parse_policy, "schedule:1-{}=3,20-512=0"),
        (parse_policy, "context:0/1-{}=3"),
        (parse_policy, "goodput:{}"),
        (parse_policy, "ema:5:update_interval={}"),
        (parse_policy, "ema:5:ema_alpha=0.{}"),
        (parse_policy, "ema:5:up_hysteresis=0/{}"),
        (parse_policy, "gate:3:0.{}"),
        (parse_policy, "max_concurrency:3:{}"),
        (parse_policy, "draft_len_schedule:{}=4"),
        (parse_arrivals, "poisson:{}"),
        (parse_arrivals, "gamma:1:{}"),
        (parse_duration, "{}m"),
        (lambda text: parse_per_token(text, "--bytes-per-token"), "4:{}"),
        (lambda text: parse_lengths(text, "--isl"), "{}"),
        (lambda text: parse_lengths(text, "--isl"), "lognormal:{}:20"),
        (parse_pool, "4:{}"),
        (parse_profile, "0={}"),
        (lambda text: parse_numbers(text, "--loads"), "1,{}"),
        (lambda text: parse_whole_numbers(text, "--k", low=1), "1,{}"),
    ],
)
def test_numbers_inside_text_are_read_as_strictly(read: Callable[[str], object], spelling: str) -> None:
    read(spelling.format("10"))
    for odd in ("1_0", "\u0661\u0660", "\uff11\uff10"):
        with pytest.raises(InputError):
            read(spelling.format(odd))


def test_what_is_echoed_is_cut() -> None:
    for words in (
        ("simulate", "llama-8b-h100-eagle", "--no-store", "--policy", "schedule:" + ",".join(["1-2=3"] * 5000)),
        ("crossover", "--k", "1,x" * 5000),
        ("crossover", "--tree", "steps " * 5000),
        ("crossover", "--target", "x" * 9000),
        ("crossover", "--draft-option", "x" * 9000),
        ("plan", "--trace", "y" * 9000),
        ("bogus" * 2000,),
    ):
        assert len(refusal(*words)) < 700


@given(st.text(max_size=3000))
def test_any_error_is_one_line_that_ends(text: str) -> None:
    said = str(ScenarioError(f"--x {text!r}: value '{text}' in {list(text)}; correct it"))
    assert said.isprintable()
    assert len(said) <= 2003
    assert shortened(said) == said


def test_short_values_and_apostrophes_stay_as_they_are() -> None:
    for said in (
        "policy 'static:3' must be static:K",
        "vLLM's own default of " + "a few words " * 12 + "is SGLang's; leave it out",
        "/a/rather/long/path/" * 10 + "x.toml: no such file",
    ):
        assert shortened(said) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("crossover", "--gpu", "8x H100", "--tp", "2"), "counts 8 GPUs, and --tp 2 with --replicas 1 takes 2"),
        (("crossover", "--gpu", "8x H100", "--replicas", "3"), "counts 8 GPUs, and --tp 1 with --replicas 3 takes 3"),
        (("crossover", "--router", "round_robin"), "--router: crossover looks at one replica"),
        (("crossover", "--isl", "0.0"), "--isl '0.0' must be a whole number of tokens >= 1"),
        (("crossover", "--osl", "0.2"), "--osl '0.2' must be a whole number of tokens >= 1"),
        (("crossover", "--concurrency", "4,4"), "--concurrency has 4 twice"),
        (("crossover", "--k", "0", "--acceptance", "0.5"), "--acceptance does nothing with --k 0"),
        (("plan", "--k", "3,3"), "plan needs a request log"),
        (("plan", "--scenario", "llama-8b-h100-eagle", "--k", "3,3"), "--k has 3 twice"),
        (("plan", "--scenario", "llama-8b-h100-eagle", "--loads", "2,2.0"), "--loads has 2 twice"),
        (("validate", "acceptance", "f.jsonl", "--k", "1,1"), "--k has 1 twice"),
        (
            ("simulate", "llama-8b-h100-eagle", "--policy", "ema:3:initial_k=9"),
            "initial_k 9 is no candidate, so that it does nothing; candidates up to num_spec_tokens 3 are 0, 1, 3",
        ),
        (
            ("simulate", "llama-8b-h100-eagle", "--policy", "static:0", "--acceptance", "0.5"),
            "--acceptance does nothing where nothing is drafted (k=0)",
        ),
        (
            ("simulate", "llama-8b-h100-eagle", "--policy", "schedule:1-512=0", "--temperature", "1"),
            "--temperature does nothing where nothing is drafted",
        ),
        (
            ("crossover", "--method", "eagle", "--draft", "eagle3-llama-3.1-8b"),
            "is made for eagle3, which method eagle cannot use",
        ),
    ],
)
def test_flags_that_contradict_or_do_nothing_are_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refusal(*words)


def test_a_count_of_gpus_is_shared_out_over_replicas() -> None:
    words = ("--concurrency", "1", "--seeds", "3", "--isl", "20", "--osl", "8", "--json")
    for flags in (("--replicas", "2"), ("--replicas", "2", "--tp", "4")):
        done = CliRunner().invoke(cli, ["crossover", "--gpu", "8x H100", *flags, *words])
        assert done.exit_code == 0, done.output
        assert '"tp": 4' in done.stdout
        assert '"draft_weight_bytes"' in done.stdout, "memory of the drafter"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("options = {windw = 3}", "speculation.options.windw"),
        ('task = "cooking"', "task 'cooking' is not one of"),
        ("acceptance_length = 9.0\nnum_spec_tokens = [3]", "acceptance length 9.0 at k=3"),
        ("draft_tp = 2", "draft_tp 2 must lie in"),
        ("num_spec_tokens = [3, 3]", "speculation.num_spec_tokens has 3 twice"),
        ('draft = "nobody"', "model 'nobody' is not in the catalogue"),
        ('acceptance_file = "none.jsonl"', "none.jsonl"),
        ("tree_nodes = 40\ntopk = 2\nnum_spec_tokens = [3]", "tree_nodes 40 are more than the 14"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_told_with_its_file(tmp_path: object, key: str, said: str) -> None:
    path = f"{tmp_path}/chat.toml"
    method = "lookahead" if "windw" in key else "eagle"
    with open(path, "w") as file:
        file.write(f'[workload]\nisl = 20\nosl = 8\nconcurrency = 2\n[speculation]\nmethod = "{method}"\n{key}\n')
    found = refusal("simulate", path, "--no-store")
    assert said in found
    assert "chat.toml: " in found
    other = refusal("simulate", path, "--no-store", "--gpu", "h100-nvl")
    assert said in other
    assert "chat.toml" in other
