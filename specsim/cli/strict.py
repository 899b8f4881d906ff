"""What every command's flags share: numbers read strictly, no empty text, no flag twice, usage errors on one line.

Leaves out: what a flag means.
"""

from __future__ import annotations

from typing import Any

import click

from specsim.checks import read_number, read_whole

__all__ = ["one_line_usage", "refuse_repeats", "strict"]


class _Whole(click.types.IntParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_whole(self, value, param, ctx), param, ctx)


class _WholeRange(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_whole(self, value, param, ctx), param, ctx)


class _Number(click.types.FloatParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _number(self, value, param, ctx)


class _NumberRange(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_number(self, value, param, ctx), param, ctx)


class _Text(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            way_out = "give it a value" if isinstance(param, click.Argument) else "leave it out, or give it a value"
            self.fail(f"is empty; {way_out}", param, ctx)
        return super().convert(value, param, ctx)


def _whole(kind: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_whole(value)
    except ValueError:
        kind.fail(f"{value!r} is not a whole number", param, ctx)


def _number(kind: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_number(value)
    except ValueError:
        kind.fail(f"{value!r} is not a finite number", param, ctx)


def strict(command: click.Command) -> click.Command:
    """The command, its own parameters and those of its subcommands read strictly."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            strict(part)
    for param in command.params:
        kind = param.type
        if type(kind) is click.types.IntParamType:
            param.type = _Whole()
        elif type(kind) is click.IntRange:
            param.type = _WholeRange(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
        elif type(kind) is click.FloatRange:
            param.type = _NumberRange(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
        elif type(kind) is click.types.FloatParamType:
            param.type = _Number()
        elif type(kind) is click.types.StringParamType:
            param.type = _Text()
    return command


def refuse_repeats(command: click.Command, name: str, args: list[str], parent: click.Context) -> None:
    """An option that takes one value and is given twice would lose one of them without a word.

    Raises:
        UsageError: such an option.
    """
    ctx = click.Context(command, info_name=name, parent=parent)
    if isinstance(command, click.Group):
        found = next(((i, word) for i, word in enumerate(args) if word in command.commands), None)
        if found is not None:
            refuse_repeats(command.commands[found[1]], found[1], args[found[0] + 1 :], ctx)
        return
    options = {name: p for p in command.params if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)}
    seen: set[str | None] = set()
    for word in args:
        if word == "--":
            return
        option = options.get(word.split("=", 1)[0])
        if option is None or option.multiple:
            continue
        if option.name in seen:
            raise click.UsageError(f"{word.split('=', 1)[0]} is given twice; give it once", ctx)
        seen.add(option.name)


def one_line_usage(error: click.UsageError) -> str:
    """What is wrong with the flags, and whose help to read."""
    said = error.format_message().rstrip(".")
    if isinstance(error, click.BadParameter) and error.param is not None:
        named = isinstance(error.param, click.Option)
        flag = error.param.opts[0] if named else (error.param.human_readable_name or "argument")
        said = said if isinstance(error, click.MissingParameter) else f"{flag} {error.message.rstrip('.')}"
    path = ["specsim"]
    ctx = error.ctx
    if ctx is not None:
        path += ctx.command_path.split()[1:]
    return f"{said}; see {' '.join(path)} --help"
