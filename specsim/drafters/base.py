"""What a drafter is to the simulator: what it loads, what a round of drafting runs, what is verified, what it keeps.

Models: drafters whose round is a lookup on the host, passes of a model one after another, one parallel pass, one block
pass, or heads on the target's last hidden state; verified as a chain, as a tree, or at a width of their own.
Leaves out: seconds and bytes, which follow from shapes (`specsim.analytic`, `specsim.memory`), and acceptance, which is
published or measured (`scenarios/catalogue/acceptance.toml`). Numbers: defaults of the papers and engines named in
each drafter's `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from specsim.errors import ScenarioError
from specsim.shapes import ModelKind, ModelShape
from specsim.type_checks import check_types

__all__ = ["DraftMode", "Drafter", "EngineName", "Loads", "Option", "PerDraft", "UsualTree"]

DraftMode = Literal["none", "serial", "parallel", "block", "heads"]
"""How a round drafts k tokens.

none       no model: a lookup on the host, or guesses that the target itself makes
serial     k passes, the first over every token that the drafter has not seen yet, each later one over its newest token
parallel   one pass over the same tokens and further rows that stand for the drafts
block      one pass over k + 1 queries; tokens that it has not seen are only projected to keys and values
heads      k small heads on the target's last hidden state, no attention and no cache
"""
Loads = Literal["model", "head", "layers", "nothing"]
"""A whole model, a head or few layers trained for the target, the target's own first layers, or nothing."""


@dataclass(frozen=True, slots=True)
class PerDraft:
    """A count by request and round that follows k: `fixed + each * k`, 0 when k is 0."""

    each: int = 0
    fixed: int = 0

    def at(self, num_spec_tokens: int) -> int:
        """The count at k drafts."""
        return max(0, self.fixed + self.each * num_spec_tokens) if num_spec_tokens > 0 else 0


@dataclass(frozen=True, slots=True)
class Option:
    """A whole number that a user may set for one drafter (`--draft-option NAME=N`)."""

    meaning: str
    low: int
    high: int
    default: int | Callable[[ModelShape], int]
    """A number, or how it follows from the target."""


@dataclass(frozen=True, slots=True)
class UsualTree:
    """The tree that a method verifies when the user gives none."""

    nodes: int
    """Drafts verified a round."""
    topk: int
    """Most children of a node."""


@dataclass(frozen=True, slots=True)
class EngineName:
    """How an engine offers a drafter."""

    name: str
    """What its configuration calls it."""
    takes_model: bool = True
    """Whether it is given a drafter's checkpoint."""
    remark: str = ""
    """A sentence for the reader when it is chosen; empty: nothing to say."""
    settings: Mapping[str, str | int | bool] = field(default_factory=lambda: MappingProxyType({}))
    """What its configuration needs besides name, checkpoint and k."""


def _no_options() -> Mapping[str, Option]:
    return MappingProxyType({})


def _no_engines() -> Mapping[str, EngineName]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Everything that tells one drafting method from another.

    Raises:
        ScenarioError: when parts contradict each other.
    """

    name: str
    title: str
    """One line for tables."""
    aliases: tuple[str, ...] = ()
    """How people and published tables write it; case, spaces and punctuation do not matter."""
    source: str
    """Paper or engine that defines it."""
    mode: DraftMode
    loads: Loads
    kind: ModelKind | None = None
    """Kind of shape that it runs; None: it runs no model."""
    derive: Callable[[ModelShape, Mapping[str, int]], ModelShape] | None = None
    """(target, options) -> its shape where the catalogue lists none; None: one must be listed or given."""
    listed_as: tuple[str, ...] = ()
    """Methods under which the catalogue may list its usual shape, besides its own name."""
    looks_up: bool = False
    """Whether a round searches text on the host."""
    catches_up: bool = True
    """Whether its first pass also takes the tokens that the target has just computed, prompts included."""
    extra_rows: PerDraft = PerDraft()
    """Rows of the first pass a request beyond those tokens; the engine's input budget pays for them."""
    keeps_kv: bool = True
    """Whether it has a cache of its own."""
    lookahead: PerDraft = PerDraft(each=1)
    """Cache slots reserved a request beyond the tokens of the step."""
    varies: bool = False
    """Whether a round may propose fewer than k drafts, often none."""
    trees: bool = False
    """Whether several candidates a position can be verified as a tree."""
    usual_tree: UsualTree | None = None
    """The tree of the method itself; None: a chain unless one is given."""
    nodes: Callable[[int, Mapping[str, int]], int] | None = None
    """(k, options) -> tokens verified beside the sampled one, where that is neither k nor a tree."""
    verify_skip: Callable[[ModelShape, Mapping[str, int]], float] | None = None
    """(target, options) -> share of a draft's work in the target that drafting has done already."""
    options: Mapping[str, Option] = field(default_factory=_no_options)
    usual_k: int = 3
    """Drafts a round (depth of a tree) when the user says nothing."""
    engines: Mapping[str, EngineName] = field(default_factory=_no_engines)
    """Engine -> how it offers the method; an engine that is missing does not."""
    borrows: tuple[str, ...] = ()
    """Methods whose published acceptance stands in where this one has none, the nearest first."""
    notes: str = ""
    """What is special, and what is left out."""

    def __post_init__(self) -> None:
        check_types(self, "drafter")
        place = f"drafter {self.name}"
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise ScenarioError(f"{place}: the name must be lower-case letters, digits and _, as it is a file name too")
        if (self.kind is None) != (self.mode == "none"):
            raise ScenarioError(
                f"{place}: mode {self.mode} {'needs a' if self.kind is None else 'has no'} kind of model"
            )
        if (self.mode == "none") != (self.loads == "nothing"):
            raise ScenarioError(f"{place}: mode {self.mode} does not fit loads {self.loads}")
        if self.usual_tree is not None and not self.trees:
            raise ScenarioError(f"{place}: usual_tree is given but trees is False")
        if self.nodes is not None and self.trees:
            raise ScenarioError(f"{place}: nodes are its own, so that trees makes no sense")
        if self.catches_up and self.mode in ("heads", "none"):
            raise ScenarioError(f"{place}: mode {self.mode} has no cache to catch up; set catches_up to False")
        if not 1 <= self.usual_k <= 64:
            raise ScenarioError(f"{place}: usual_k must be 1..64, got {self.usual_k!r}")

    @property
    def runs_model(self) -> bool:
        """Whether drafting runs passes of a model."""
        return self.kind is not None

    def chosen(self, target: ModelShape, given: Mapping[str, int]) -> dict[str, int]:
        """Every option, the given ones over the defaults for `target`.

        Raises:
            ScenarioError: for an option that the drafter does not have, or out of its range.
        """
        for name, value in given.items():
            option = self.options.get(name)
            if option is None:
                known = f"its options are {', '.join(self.options)}" if self.options else "it has none"
                raise ScenarioError(f"speculation.options.{name}: {self.name} has no such option; {known}")
            if isinstance(value, bool) or not isinstance(value, int) or not option.low <= value <= option.high:
                raise ScenarioError(
                    f"speculation.options.{name} must be a whole number in {option.low}..{option.high}, got {value!r}"
                )
        found = {}
        for name, option in self.options.items():
            usual = option.default if isinstance(option.default, int) else option.default(target)
            found[name] = given.get(name, usual)
        return found
