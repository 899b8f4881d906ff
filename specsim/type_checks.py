"""Types of a frozen record's fields, held to its own annotations: one rule for everything that Python callers make.

Models: numbers (finite, whole ones of 64 bits; true and false are none), text, choices, tuples, mappings, functions,
arrays and other records. Leaves out: bounds and combinations, which the record checks itself afterwards. Numbers: none.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from specsim.errors import ScenarioError, SpecsimError

__all__ = ["Unbounded", "check_types", "type_words"]

_PLURAL = {int: "whole numbers", float: "numbers", str: "texts"}
_NONE = object()
_Fits = Callable[[Any], bool]

Unbounded = typing.Annotated[float, "may be infinite"]
"""A number that may be infinite."""


def check_types(record: Any, place: str, error: type[SpecsimError] = ScenarioError) -> None:
    """Refuse a record with a field whose value is not of the type that its class says; the first line of a
    `__post_init__`.

    Raises:
        SpecsimError: of the class `error`; place and field, what is expected, and the value.
    """
    for name, fits, hint in _fields(record.__class__):
        value = getattr(record, name)
        if not fits(value):
            raise error(f"{place}.{name} must be {type_words(hint)}, got {value!r}")


@cache
def _fields(record: Any) -> tuple[tuple[str, _Fits, Any], ...]:
    hints = typing.get_type_hints(record, include_extras=True)
    return tuple((field.name, _fits(hints[field.name]), hints[field.name]) for field in dataclasses.fields(record))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_whole(value)


_SIMPLE: Mapping[Any, _Fits] = {
    int: _is_whole,
    float: _is_number,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    type(None): lambda value: value is None,
    Any: lambda value: True,
}


@cache
def _fits(hint: Any) -> _Fits:
    """Whether a value is of the type `hint`."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if hint == Unbounded:
        return lambda value: _is_number(value) or (isinstance(value, float) and math.isinf(value))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = tuple(map(_fits, inner))
        return lambda value: any(fits(value) for fits in parts)
    if origin is typing.Literal:
        return lambda value: isinstance(value, str) and value in inner
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        each = _fits(inner[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        parts = tuple(map(_fits, inner))
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(fits(item) for fits, item in zip(parts, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = map(_fits, inner)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    if origin is Callable:
        return callable
    kind = origin or hint
    if typing.Protocol in kind.__mro__[1:] and not getattr(kind, "_is_runtime_protocol", False):
        members = [name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_")]
        return lambda value: all(inspect.getattr_static(value, name, _NONE) is not _NONE for name in members)
    return lambda value: isinstance(value, kind)


def type_words(hint: Any, *, sequence: str = "tuple", mapping: str = "mapping", none: bool = True) -> str:
    """What a value of this type is called in messages; `none`: whether None is named where it is allowed."""
    if hint == Unbounded:
        return "a number"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in inner if none or part is not type(None)]
        return " or ".join(type_words(part, sequence=sequence, mapping=mapping) for part in parts)
    if origin is typing.Literal:
        return f"one of {', '.join(inner)}"
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        words = type_words(inner[0], sequence=sequence, mapping=mapping)
        plural = _PLURAL.get(inner[0])
        return f"a {sequence} of {plural}" if plural else f"a {sequence} of rows, each {words}"
    if origin is tuple:
        return f"a {sequence} of {len(inner)} values"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a {mapping} of {_PLURAL[inner[1]]}" if inner[1] in _PLURAL else f"a {mapping}"
    if origin is Callable:
        return "a function"
    simple = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", type(None): "None"}
    return simple.get(hint) or f"an object of {getattr(origin or hint, '__name__', hint)}"
