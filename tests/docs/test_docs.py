"""The pages are true: generated parts fresh, commands real and documented, links whole, no machine named in them.

Every example with output stands in a cog block, so `cog --check` runs it again and compares.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from docs_examples import ROOT, all_commands

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOT_YET = {"import", "serve", "watch"}
"""Commands that pages may name only where they say that there is no such thing yet."""
COMMANDS = {" ".join(words): command for words, command, _ in all_commands()}


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def generated_pages() -> list[Path]:
    return [path for path in PAGES if "[[[cog" in path.read_text(encoding="utf-8")]


def test_generated_parts_are_fresh() -> None:
    """In a process of its own: commands that other tests have already invoked remember their help options."""
    pages = generated_pages()
    assert {"README.md", "docs/quickstart.md", "docs/model.md", "docs/reference/cli.md"} <= set(map(page_id, pages))
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", "--verbosity=1", *map(page_id, pages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make docs` and look at what changed\n{done.stdout}{done.stderr}"


def test_examples_with_output_are_run() -> None:
    """A block that shows a prompt and an output stands between cog markers, never typed by hand."""
    shown = 0
    for page in PAGES:
        inside = False
        for line in page.read_text(encoding="utf-8").splitlines():
            inside = (inside or "[[[cog" in line) and "[[[end]]]" not in line
            if line.lstrip().startswith("$ "):
                assert inside, f"{page_id(page)}: {line}"
                shown += 1
    assert shown >= 6, "the guard"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_is_documented(name: str) -> None:
    command = COMMANDS[name]
    assert command.help, f"{name} has no help"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts} has no help"
    headings = re.findall(
        r"^## (.*)$", (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert headings.count(name) == 1


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_fits_100_columns_and_cuts_no_summary(name: str) -> None:
    """What click shortens, so that it fits beside the name of a command, ends in `...`."""
    context = click.Context(COMMANDS[name], info_name=name, max_content_width=100, terminal_width=80)
    lines = COMMANDS[name].get_help(context).splitlines()
    assert max(map(len, lines)) <= 100
    if isinstance(COMMANDS[name], click.Group):
        assert not [line for line in lines[1:] if line.endswith("...")]


def own_lines() -> dict[str, tuple[str, str]]:
    """Command -> (its line in the table of specsim.cli, the first line of its own help)."""
    from specsim.cli import _COMMANDS

    return {
        name: (line, (COMMANDS[f"specsim {name}"].help or "").strip().splitlines()[0])
        for name, (_, line) in _COMMANDS.items()
    }


@pytest.mark.parametrize("name", sorted(own_lines()))
def test_one_line_help_is_the_commands_own(name: str) -> None:
    listed, own = own_lines()[name]
    assert listed == own


def example_lines(text: str) -> Iterator[str]:
    """Command lines in fenced or indented blocks, continued lines joined, help texts of cli.md included."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        found = re.match(r"(?:    |\$ |\s*)(specsim .*)$", line)
        if found and not re.match(r"specsim (is|makes|answers|replays|uses|writes|simulates|plans)\b", found[1]):
            yield found[1]


def blocks(text: str) -> str:
    """Only what stands in fenced or indented blocks."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = [line for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
                if line.startswith("    ")]  # fmt: skip
    return "\n".join([*fenced, *indented])


def parse(line: str) -> None:
    """Let click read a command line without running it.

    Raises:
        click.ClickException: when the command line would be refused.
    """
    words = shlex.split(line, comments=True)
    name = words.pop(0)
    command = COMMANDS[name]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = f"{name} {words.pop(0)}"
        if name not in COMMANDS:
            raise click.UsageError(f"no command {name}")
        command = COMMANDS[name]
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    _, rest, _ = command.make_parser(context).parse_args(words)
    if rest:
        raise click.UsageError(f"unexpected {rest}")


def test_every_example_command_would_be_accepted() -> None:
    count = 0
    for page in PAGES:
        for line in example_lines(blocks(page.read_text(encoding="utf-8"))):
            try:
                parse(line)
            except (click.ClickException, ValueError) as error:
                pytest.fail(f"{page_id(page)}: {line}: {error}")
            count += 1
    assert count > 25, "the guard: examples are found"


@pytest.mark.parametrize("line", ["specsim plan --tracee x", "specsim trace inspekt x", "specsim simulate a b"])
def test_a_wrong_example_is_noticed(line: str) -> None:
    with pytest.raises(click.ClickException):
        parse(line)


def test_commands_in_prose_exist_or_are_said_not_to() -> None:
    seen = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```|<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->", "", text, flags=re.DOTALL | re.MULTILINE)
        for words in re.findall(r"`specsim ([a-z]+(?: [a-z]+)?)", prose):
            first, _, second = words.partition(" ")
            assert f"specsim {first}" in COMMANDS, f"{page_id(page)}: specsim {first}"
            if second and isinstance(COMMANDS[f"specsim {first}"], click.Group):
                assert f"specsim {words}" in COMMANDS, f"{page_id(page)}: specsim {words}"
            seen.add(first)
        for name in NOT_YET:
            for place in re.finditer(rf"`{name}`", prose):
                near = " ".join(prose[max(0, place.start() - 400) : place.end() + 200].lower().split())
                said = ("not yet", "do not exist yet", "not there yet", "import names")
                layout = page.parent.name == "decisions"
                assert layout or any(word in near for word in said), f"{page_id(page)}: `{name}` without `not yet`"
    assert {"plan", "crossover", "simulate", "trace"} <= seen
    assert not NOT_YET & {name.split()[1] for name in COMMANDS if " " in name}, "it exists now: say so in the pages"


def slug(heading: str) -> str:
    """Anchor of a heading, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower())
    return kept.replace(" ", "-")


def headings_of(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def links(path: Path) -> list[str]:
    not_shown = r"^```.*?^```|<!-- \[\[\[cog.*?\]\]\] -->"
    text = re.sub(not_shown, "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\[[^\]\[]*\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert ROOT in target.parents, f"{link} leaves the project"
        if anchor:
            assert anchor in headings_of(target), link


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    missing = {page_id(page) for page in (ROOT / "docs").rglob("*.md") if page != index} - {
        page_id(page) for page in reached if ROOT in page.parents
    }
    assert not missing


MACHINE = (r"(?<![\w.])/(?:work|tmp|root|home|Users|opt|mnt)/", r"\b[A-Z]:\\", r"localhost|127\.0\.0\.1")
HOST = r"\b(?:[\w-]+\.)+(?:org|com|io|net|dev|ai|cn)\b"
KNOWN_HOSTS = {"github.com", "arxiv.org", "ui.perfetto.dev"}
"""Where pages may send a reader; a package index is a setting of the reader's machine and is never named."""


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Makefile", ROOT / "pyproject.toml"], ids=page_id)
def test_no_machine_or_registry_is_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for pattern in MACHINE:
        assert not re.search(pattern, text), f"{pattern} matches {re.search(pattern, text)}"
    assert set(re.findall(HOST, text)) <= KNOWN_HOSTS


def test_make_targets_of_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert {"demo", "test", "bench", "docs"} <= named
    assert named <= targets


def test_make_help_names_every_variable() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^help:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    variables = re.findall(r"^(\w+) \?=", makefile, re.MULTILINE)
    assert len(variables) >= 5
    for name in variables:
        assert re.search(rf"^\s+{name} +'", recipe[1], re.MULTILINE), name


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {re.match(r"[\w-]+", item)[0] for item in wanted}  # type: ignore[index]
    text = (ROOT / "docs" / "decisions" / "0001-layout-and-dependencies.md").read_text(encoding="utf-8")
    justified = set(re.findall(r"^\| ([a-z][\w-]*) \|", text, re.MULTILINE)) - {"package"}
    assert names == justified


def test_assumptions_are_numbered_without_gaps() -> None:
    text = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    numbers = [int(n) for n in re.findall(r"^- \*\*A(\d+)\.\*\*", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 20
    for page in PAGES:
        cited = {int(n) for n in re.findall(r"\bA(\d{1,2})\b(?!\.\*\*)", page.read_text("utf-8")) if int(n) < 90}
        if page.name != "catalogue.md":
            assert cited <= {*numbers, 10, 16, 30, 40, 100}, f"{page_id(page)} cites an assumption that is not there"


def test_no_page_or_message_installs_the_package_of_this_name_from_the_public_index() -> None:
    """It is another project: what installs an extra names the folder."""
    code = [path for folder in ("specsim", "calibrate", "db", "scenarios") for path in (ROOT / folder).rglob("*.py")]
    wrong = re.compile(r"""pip install(?: -\S+)* ['"]?specsim\b""")
    assert wrong.search("pip install 'specsim[report]'") and not wrong.search("pip install '.[report]', in the folder")
    assert [page_id(p) for p in (*PAGES, *code) if wrong.search(p.read_text(encoding="utf-8"))] == []
