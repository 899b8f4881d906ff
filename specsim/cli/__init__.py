"""The command line: one module a command, imported only when it is asked for, so that `--help` stays fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from specsim.cli.strict import one_line_usage, refuse_repeats, strict
from specsim.errors import SpecsimError, nearest, shortened

__all__ = ["cli", "main"]

_COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("specsim.cli.plan:plan", "When does speculation pay on this trace, with which k, and at what load not?"),
    "crossover": ("specsim.cli.crossover:crossover", "The quick look without a trace: speedup by concurrency."),
    "whatif": ("specsim.cli.whatif:whatif", "Which GPUs, how many, at what price, for the busiest time?"),
    "simulate": ("specsim.cli.simulate:simulate", "Simulate a scenario once and print its metrics."),
    "sweep": ("specsim.cli.sweep:sweep", "Simulate a scenario at every point of a grid, with paired seeds."),
    "calibrate": ("specsim.cli.calibrate:calibrate", "Measure on this machine, and fit what was measured."),
    "profile": ("specsim.cli.profile:profile", "Latency profiles: list, show, compare, transfer, export, import."),
    "trace": ("specsim.cli.trace:trace", "Look at a request log, convert it, or make a synthetic one."),
    "hardware": ("specsim.cli.catalogue:hardware", "GPUs that the catalogue knows."),
    "model": ("specsim.cli.catalogue:model", "Models and drafters that the catalogue knows."),
    "drafters": ("specsim.cli.drafters:drafters", "Drafting methods that --method takes."),
    "runs": ("specsim.cli.runs:runs", "Look at, compare, export and delete stored plans and runs."),
    "validate": ("specsim.cli.validate:validate", "Hold predictions against what was measured, here and by others."),
    "config": ("specsim.cli.config:config", "Flags and files of an engine for a stored plan."),
    "report": ("specsim.cli.report:report", "Print a stored plan, what-if or run again, or write it as a page."),
}
"""Command -> where it lives, and its one-line help (a test keeps it equal to the command's own)."""


class _JobFailed(click.ClickException):
    exit_code = 1


class _BadInput(click.ClickException):
    exit_code = 2


class LazyGroup(click.Group):
    """Imports a command on use, and turns every SpecsimError into one line and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        return strict(getattr(importlib.import_module(module), attribute))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **kwargs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command '{args[0]}'{nearest(args[0], _COMMANDS)}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and name is not None:
            refuse_repeats(command, name, rest, ctx)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns errors into one line and their exit code; a group without a command still prints its help."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise _BadInput(shortened(one_line_usage(error))) from error
    except SpecsimError as error:
        kind = _BadInput if error.exit_code == _BadInput.exit_code else _JobFailed
        raise kind(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="specsim", prog_name="specsim")
def cli() -> None:
    """Where speculative decoding stops paying on your trace and your GPUs."""
    _check_siblings()


def _check_siblings() -> None:
    """Refuse to run when a foreign package answers to one of our names."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parent.parent.parent
    for name in ("scenarios", "db", "calibrate"):
        spec = find_spec(name)
        origin = None if spec is None else spec.origin
        if origin is None or home not in Path(origin).resolve().parents:
            raise click.ClickException(f"another '{name}' hides ours: {origin}; run specsim from another folder")


def main() -> None:
    """Entry point of the console script."""
    try:
        try:
            cli.main(prog_name="specsim")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
    except OSError as error:
        _abandon_output()
        sys.stderr.write(f"Error: standard output: {error.strerror or error}; free some space or write elsewhere\n")
    sys.exit(1)


def _abandon_output() -> None:
    """Let the interpreter's own flush at exit go nowhere, since the reader is gone or the disk is full."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
