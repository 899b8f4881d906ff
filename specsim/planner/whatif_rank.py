"""Which options of a what-if are worth a look: their order by cost, and the front of cost against time per token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specsim.planner.whatif import POLICIES

__all__ = ["Ranking"]

_Row = Mapping[str, Any]


class Ranking:
    """Options by what they cost: bought where every one that holds has such a price, else rented, else by GPUs.

    Only options count that hold the objective and that the engine can be told to follow. `basis`: ranked by
    this all the same. `units`: the cost of one GPU by its name, as `specsim.planner.costs.FleetCost` has it.
    """

    def __init__(
        self, rows: Sequence[_Row], units: Mapping[str, _Row] | None = None, *, basis: str | None = None
    ) -> None:
        self.rows = rows
        self.candidates = [i for i, row in enumerate(rows) if row["verdict"] == "holds" and row["offered"]]
        costs = [rows[i]["cost"] for i in self.candidates]
        self.basis = "gpus"
        if costs and all(cost["owned_usd_per_h"] is not None for cost in costs):
            self.basis = "owned_usd_per_h"
        elif any(cost["usd_per_h"] is not None for cost in costs):
            self.basis = "usd_per_h"
        self.basis = basis or self.basis
        self.units = units or {}

    def cost(self, index: int) -> float:
        """Dollars an hour, or GPUs; infinite without a price."""
        row = self.rows[index]
        value = row["gpus"] if self.basis == "gpus" else row["cost"][self.basis]
        return math.inf if value is None else float(value)

    def unit(self, index: int) -> float:
        """The same of one GPU of an option, whether it holds or not."""
        return self.unit_of(self.rows[index])

    def unit_of(self, row: _Row) -> float:
        """The same of a row."""
        if self.basis == "gpus":
            return 1.0
        value = self.units.get(row["gpu"], {}).get(self.basis)
        return math.inf if value is None else float(value)

    def _key(self, index: int) -> tuple[float, int, int]:
        """Cheaper first, then fewer GPUs, then the simpler policy."""
        row = self.rows[index]
        return self.cost(index), row["gpus"], POLICIES.index(row["policy_kind"])

    def ordered(self, *, speculative: bool | None = None, gpu: str | None = None) -> list[int]:
        """Cheapest first; only those with or without speculation, or of one GPU."""
        found = [
            i
            for i in self.candidates
            if (speculative is None or (self.rows[i]["policy_kind"] != "off") == speculative)
            and (gpu is None or self.rows[i]["gpu"] == gpu)
        ]
        return sorted(found, key=self._key)

    def cheapest(self, *, speculative: bool | None = None, gpu: str | None = None) -> int | None:
        """The first of `ordered`; None: there is none."""
        return next(iter(self.ordered(speculative=speculative, gpu=gpu)), None)

    def _tpot_s(self, index: int) -> float:
        value = self.rows[index]["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"]
        return math.inf if value is None else float(value)

    def pareto(self) -> list[int]:
        """Options to which none is at once as cheap and faster (TPOT p95), cheapest first."""
        found: list[int] = []
        fastest = math.inf
        for i in sorted(self.candidates, key=lambda i: (self.cost(i), self._tpot_s(i), *self._key(i)[1:])):
            if self._tpot_s(i) < fastest:
                found.append(i)
                fastest = self._tpot_s(i)
        return found

    def contenders(self) -> list[int]:
        """The cheapest of each GPU, and the cheapest without speculation."""
        gpus = dict.fromkeys(self.rows[i]["gpu"] for i in self.candidates)
        best = [self.ordered(gpu=gpu)[0] for gpu in gpus]
        return sorted({*best, *self.ordered(speculative=False)[:1]})
