"""What the registry keeps of a kind of policy: its name, spelling, settings, and how to make a rule of it.

Models: everything that command line, scenario files, planner and docs need to know of a policy, in one record.
Leaves out: the rule itself. Numbers: none.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specsim.checks import read_number, read_whole
from specsim.errors import ScenarioError, nearest
from specsim.policies.base import EngineView, Policy
from specsim.policies.spec import PolicySpec

__all__ = ["PolicyKind", "value_of"]


@dataclass(frozen=True)
class PolicyKind:
    """One line of the registry."""

    name: str
    """As in `[policy] kind` and in front of the first colon of `--policy`."""
    summary: str
    """What it does, as one sentence for the reference; may use Markdown."""
    make: Callable[[PolicySpec, EngineView], Policy]
    """A rule for one replica."""
    label: Callable[[PolicySpec], str]
    """Short name for tables; settings that are not at their default are added by `label_of`."""
    spelling: str
    """How the command line writes it, e.g. `ema:K`."""
    example: str
    """A spelling with numbers."""
    positional: tuple[str, ...] = ("num_spec_tokens",)
    """Fields of PolicySpec or of `settings` that the command line takes by position, in order."""
    settings: type | None = None
    """Dataclass of further settings, each with a default and checked by itself."""
    uses: tuple[str, ...] = ("num_spec_tokens",)
    """Fields of PolicySpec that mean something to it, `kind` and `settings` apart."""
    check: Callable[[PolicySpec], None] = field(default=lambda spec: None)
    """Raises ScenarioError when fields do not fit each other."""
    read: Callable[[Sequence[str]], dict[str, Any]] | None = None
    """Fields from the parts between colons, for spellings that are no list of numbers; ValueError: malformed."""
    from_text: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """Settings whose text is no single number or word -> how it is read; ValueError: malformed."""
    to_text: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """The same settings -> how a label shows them, where that is not a list of numbers."""
    chains_only: bool = False
    """Whether it makes no sense where drafts form a tree."""
    engines: tuple[str, ...] = ()
    """Engines that can be told to follow it; a plan recommends no other."""
    vllm: Callable[[PolicySpec, int], dict[str, Any]] = field(default=lambda spec, max_num_seqs: {})
    """(policy, most requests in a step) -> what it adds to vLLM's --speculative-config."""
    vllm_remarks: tuple[str, ...] = ()
    """Sentences for who uses that."""
    rank: int = 9
    """Simplicity: of two that are equally good the lower one is recommended."""

    def label_of(self, spec: PolicySpec) -> str:
        """The label, with what its own text does not say: settings that are not at their default."""
        text = self.label(spec)
        if self.settings is None:
            return text
        default = self.settings()
        changed = [
            f"{f.name}={self.to_text.get(f.name, _written)(getattr(spec.settings, f.name))}"
            for f in dataclasses.fields(self.settings)
            if f.name not in self.positional and getattr(spec.settings, f.name) != getattr(default, f.name)
        ]
        return " ".join([text, *changed])

    def parse(self, parts: Sequence[str], options: Mapping[str, str]) -> PolicySpec:
        """The policy of a spelling: `parts` between colons, `options` that were written name=value.

        Raises:
            ValueError: the parts are not what the spelling asks for.
            ScenarioError: an unknown option, or a value that is refused.
        """
        if self.read is not None:
            fields = self.read(parts)
        else:
            if len(parts) != len(self.positional):
                raise ValueError(f"{len(parts)} figures")
            fields = {name: self._value(name, part) for name, part in zip(self.positional, parts, strict=True)}
        hints = {} if self.settings is None else typing.get_type_hints(self.settings)
        for name, text in options.items():
            if name not in hints:
                known = ", ".join(hints) or "none"
                raise ScenarioError(f"policy {self.name} has no setting '{name}'{nearest(name, hints)}; it has {known}")
            try:
                fields[name] = self._value(name, text)
            except ValueError:
                raise ScenarioError(f"policy {self.name}: {name} cannot be {text!r}") from None
        chosen = {name: fields.pop(name) for name in list(fields) if name in hints}
        settings = None if self.settings is None else self.settings(**chosen)
        return PolicySpec(self.name, settings=settings, **fields)

    def _value(self, name: str, text: str) -> Any:
        if name in self.from_text:
            return self.from_text[name](text)
        hints = {} if self.settings is None else typing.get_type_hints(self.settings)
        return value_of(hints[name] if name in hints else typing.get_type_hints(PolicySpec)[name], text)


def value_of(hint: Any, text: str) -> Any:
    """A number, word or yes/no from its text.

    Raises:
        ValueError: it is none of that type, or the type has no text form.
    """
    if typing.get_origin(hint) is types.UnionType:
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise ValueError(text)
        return text
    if hint is bool:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _refuse(text)
    if hint is int:
        return read_whole(text)
    if hint is float:
        return read_number(text)
    raise ValueError(text)


def _refuse(text: str) -> bool:
    raise ValueError(text)


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
