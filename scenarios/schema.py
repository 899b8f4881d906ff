"""Records from TOML tables and back, driven by the fields of a dataclass: a new field is a new key at once.

Models: types (whole numbers, numbers, text, true or false, choices, lists, rows, maps of text or whole numbers) and the
names of keys; seconds of the record may be milliseconds in the file. Leaves out: ranges and combinations, which the
record itself checks when it is made.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from scenarios.lookup import one_line
from specsim.errors import InputError, ScenarioError, nearest
from specsim.type_checks import type_words

__all__ = ["NO_VALUE", "Key", "describe_type", "field_docs", "keys_of", "read_record", "write_record"]

NO_VALUE = "none"
"""How a file says None where leaving a key out would mean its default."""
_LARGEST = 2**63 - 1
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table and the field that it fills."""

    name: str
    field: str
    hint: Any
    default: Any
    """Default of the field, in its own unit; `dataclasses.MISSING` when it has none."""
    milliseconds: bool
    """Whether the file has milliseconds where the record has seconds."""

    @property
    def can_be_none(self) -> bool:
        """Whether `NO_VALUE` makes sense: None is allowed and is not what leaving the key out means."""
        return self.default is not None and type(None) in typing.get_args(self.hint)


def keys_of(record: type, *, milliseconds: bool = False) -> tuple[Key, ...]:
    """Keys of a dataclass in order; with `milliseconds`, fields named `x_s` are keys named `x_ms`.

    A field with `flat` in its metadata holds another record, whose keys stand beside these; it is no key itself.
    """
    hints = typing.get_type_hints(record)
    found = []
    for field in dataclasses.fields(record):
        if field.metadata.get("flat"):
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        scaled = milliseconds and field.name.endswith("_s")
        name = f"{field.name[:-2]}_ms" if scaled else field.name
        found.append(Key(name, field.name, hints[field.name], default, scaled))
    return tuple(found)


def read_record(
    record: type[_Record],
    table: Any,
    place: str,
    *,
    milliseconds: bool = False,
    extra: Mapping[str, Any] = types.MappingProxyType({}),
) -> _Record:
    """The record that `table` (parsed with `parse_float=Decimal`) describes; `place` is `file: table`, `extra` holds
    fields that are no keys.

    Raises:
        ScenarioError: unknown key, wrong type, or a value that the record refuses; one line with place and way out.
    """
    if not isinstance(table, Mapping):
        raise ScenarioError(f"{place} must be a table of keys, got {_show(table)}")
    keys = {key.name: key for key in keys_of(record, milliseconds=milliseconds)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            raise ScenarioError(f"{place}.{one_line(name)}: unknown key{nearest(name, keys)}; keys are "
                                f"{', '.join(keys)}")  # fmt: skip
        values[key.field] = _read(value, key, f"{place}.{name}")
    for key in keys.values():
        if key.default is dataclasses.MISSING and key.field not in values:
            raise ScenarioError(f"{place}.{key.name} is missing; give {describe_type(key.hint)}")
    try:
        return record(**values, **extra)
    except InputError as error:
        file, _, name = place.rpartition(": ")
        said = str(error) if str(error).startswith(f"{name}.") else f"{name}: {error}"
        for key in keys.values():
            if key.milliseconds and said.startswith(f"{name}.{key.field} "):
                said = f"{name}.{key.name}{said.removeprefix(f'{name}.{key.field}')} seconds"
        raise ScenarioError(f"{file}: {said}") from error


def _read(value: Any, key: Key, place: str) -> Any:
    if key.can_be_none and value == NO_VALUE:
        return None
    wanted = describe_type(key.hint) + (f", or '{NO_VALUE}'" if key.can_be_none else "")
    if key.milliseconds and isinstance(value, Decimal | int) and not isinstance(value, bool):
        value = Decimal(value) / 1000
    converted = _convert(value, key.hint)
    if converted is _Mismatch:
        raise ScenarioError(f"{place}: {_show(value)} is not {wanted}")
    return converted


class _Mismatch:
    """Stands for a value that does not have the wanted type."""


def _convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`, or `_Mismatch`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return next((c for c in (_convert(value, part) for part in inner) if c is not _Mismatch), _Mismatch)
    if origin is typing.Literal:
        return value if isinstance(value, str) and value in inner else _Mismatch
    if origin is tuple:
        return _convert_list(value, inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _Mismatch
        items = {name: _convert(item, inner[1]) for name, item in value.items()}
        return _Mismatch if any(item is _Mismatch for item in items.values()) else items
    if hint is bool:
        return value if isinstance(value, bool) else _Mismatch
    if isinstance(value, bool):
        return _Mismatch
    if hint is int:
        return value if isinstance(value, int) and abs(value) <= _LARGEST else _Mismatch
    if hint is float:
        if not isinstance(value, int | float | Decimal):
            return _Mismatch
        try:
            number = float(value)
        except OverflowError:
            return _Mismatch
        return number if math.isfinite(number) else _Mismatch
    if hint is str:
        return value if isinstance(value, str) else _Mismatch
    return _Mismatch


def _convert_list(value: Any, inner: Sequence[Any]) -> Any:
    if not isinstance(value, list):
        return _Mismatch
    repeated = len(inner) == 2 and inner[1] is Ellipsis
    if not repeated and len(value) != len(inner):
        return _Mismatch
    parts = [_convert(item, inner[0] if repeated else hint) for item, hint in zip(
        value, [inner[0]] * len(value) if repeated else inner, strict=True)]  # fmt: skip
    return _Mismatch if any(part is _Mismatch for part in parts) else tuple(parts)


def describe_type(hint: Any) -> str:
    """What a value of this type is called in messages and in the reference."""
    return type_words(hint, sequence="list", mapping="table", none=False)


def write_record(record: Any, *, milliseconds: bool = False) -> list[str]:
    """`key = value` lines of every field that is not at its default; `read_record` gives back an equal record."""
    lines = []
    for key in keys_of(type(record), milliseconds=milliseconds):
        value = getattr(record, key.field)
        if value == key.default and type(value) is type(key.default):
            continue
        if value is None:
            lines.append(f'{key.name} = "{NO_VALUE}"')
            continue
        if key.milliseconds:
            value = Decimal(repr(value)) * 1000
        lines.append(f"{key.name} = {_toml(value)}")
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text if "." in text else f"{text}.0"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" in text else f"{text}.0"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value)


def _show(value: Any) -> str:
    """`value` as it stood in the file, cut to one line."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return one_line("[" + ", ".join(_show(item) for item in value) + "]")
    if isinstance(value, Mapping):
        return "a table"
    return repr(one_line(value)) if isinstance(value, str) else one_line(str(value))


def field_docs(record: type) -> dict[str, str]:
    """The sentences under each field in the source, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    docs: dict[str, str] = {}
    assert isinstance(tree, ast.ClassDef)
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str):
                docs[node.target.id] = " ".join(text.split())
    return docs
