"""The command line that a command was called with, as it can be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import click
from click.core import ParameterSource

__all__ = ["command_line"]


def command_line(context: click.Context, *, without: Collection[str] = ()) -> str:
    """Command and every option that was typed, in the order of `--help`; `without` names arguments that are left out.

    Two calls that say the same in another order give the same text.
    """
    words = ["specsim", *context.command_path.split()[1:]]
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in without or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Argument):
            words += map(str, value if isinstance(value, tuple) else (value,))
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            words += [
                word
                for item in (value if isinstance(value, tuple) else (value,))
                for word in (parameter.opts[0], str(item))
            ]
    return shlex.join(words)
