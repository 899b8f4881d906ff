"""A policy as users state it: kind, largest k, and the settings of that kind.

Models: one record for every kind, so that it can be compared, stored and written to a file.
Leaves out: what a kind does (its own module). Numbers: the user's; defaults of settings stand with their kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specsim.checks import whole
from specsim.errors import ScenarioError
from specsim.type_checks import check_types

__all__ = ["LARGEST_BATCH", "LARGEST_K", "PolicySpec", "check_table"]

LARGEST_K = 64
LARGEST_BATCH = 2**31 - 1

_OWN = ("num_spec_tokens", "table", "batch_limit")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """How many tokens to draft, as a rule that an engine could follow.

    Raises:
        ScenarioError: an unknown kind, a value out of range, or one that the kind has no use for.
    """

    kind: str
    """Rule by which k is chosen, one of those under Policies."""
    num_spec_tokens: int = 0
    """Largest k that the policy may choose; sizes buffers and lookahead as the engine does."""
    table: tuple[tuple[int, int, int], ...] = ()
    """Rows (first, last, k) of a schedule, by requests in the step."""
    batch_limit: int = 0
    """Most requests in a step at which `off_above` still drafts."""
    settings: Any = field(default=None, metadata={"flat": True})
    """Record with the further settings of the kind; None: its defaults, or that it has none."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        # here, not above: the registry knows every policy, and every policy knows this record
        from specsim.policies.registry import kind_of

        kind = kind_of(self.kind)
        for name in _OWN:
            if name not in kind.uses and getattr(self, name):
                raise ScenarioError(f"policy {self.kind} takes no {name}")
        whole("policy.num_spec_tokens", self.num_spec_tokens, 0, LARGEST_K)
        whole("policy.batch_limit", self.batch_limit, 0, LARGEST_BATCH)
        if kind.settings is not None and self.settings is None:
            object.__setattr__(self, "settings", kind.settings())
        if self.settings is not None and (kind.settings is None or type(self.settings) is not kind.settings):
            wanted = "none" if kind.settings is None else kind.settings.__name__
            raise ScenarioError(f"policy.settings of {self.kind} must be {wanted}, got {self.settings!r}")
        kind.check(self)

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `k=3`, `off`, `schedule 5/1@17/0@65`; different policies, different labels."""
        from specsim.policies.registry import kind_of

        return kind_of(self.kind).label_of(self)


def check_table(place: str, rows: tuple[tuple[int, int, int], ...], num_spec_tokens: int) -> None:
    """Refuse what is not rows (first, last, k) that rise from 1 without overlap, k at most `num_spec_tokens`.

    Raises:
        ScenarioError: the place and the row.
    """
    last = 0
    if not rows or rows[0][0] != 1:
        raise ScenarioError(f"{place} must be rows [first, last, k] whose first range starts at 1")
    for row in rows:
        if len(row) != 3:
            raise ScenarioError(f"{place} rows are [first, last, k], got {row!r}")
        for value, low, high in zip(row, (1, 1, 0), (LARGEST_BATCH, LARGEST_BATCH, LARGEST_K), strict=True):
            whole(place, value, low, high)
        if row[0] <= last or row[1] < row[0]:
            raise ScenarioError(f"{place} ranges must rise without overlap, got {row!r} after {last}")
        if row[2] > num_spec_tokens:
            raise ScenarioError(f"{place} k {row[2]} exceeds num_spec_tokens {num_spec_tokens}")
        last = row[1]
