"""What a fleet costs: rented by the GPU-hour, or bought with power and hosting over some years.

Models: straight sums; a fleet is paid for every hour of the year, used or not. Power is drawn at the given watts all
the time. Leaves out: discounting, resale, taxes, staff, network, storage, and what a contract takes off.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specsim.checks import number
from specsim.shapes import Price
from specsim.type_checks import check_types

__all__ = ["HOURS_A_YEAR", "FleetCost", "GpuCost", "Ownership", "fleet_cost"]

HOURS_A_YEAR = 8760.0
_MONTHS_A_YEAR = 12.0


@dataclass(frozen=True, slots=True)
class Ownership:
    """What buying GPUs costs, beside the price of each.

    Raises:
        ScenarioError: a figure out of range.
    """

    years: float
    """Over which everything is added up."""
    usd_per_kwh: float
    pue: float
    """Power of the site over power of its servers."""
    hosting_usd_per_kw_month: float = 0.0
    """Space, cooling and hands, by kW of the servers."""

    def __post_init__(self) -> None:
        check_types(self, "ownership")
        number("--years", self.years, 0.1, 30.0)
        number("--usd-per-kwh", self.usd_per_kwh, 0.0, 100.0)
        number("--pue", self.pue, 1.0, 5.0)
        number("--hosting", self.hosting_usd_per_kw_month, 0.0, 1e5)


@dataclass(frozen=True, slots=True)
class GpuCost:
    """Prices of one kind of GPU; None where nothing is known."""

    rent: Price | None = None
    purchase_usd: float | None = None
    """Of one GPU with its share of the server."""
    watts: float | None = None
    """Of one GPU with its share of the server, under load."""
    watts_source: str = ""


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Cost of a fleet; null where a price is missing or nothing is bought. Money is US dollars."""

    usd_per_h: float | None
    usd_per_year: float | None
    usd_per_million_output_tokens_at_peak: float | None
    """If every hour were like the window."""
    usd_per_million_output_tokens: float | None
    """With the mean output of the whole log."""
    owned_usd: float | None = None
    """Purchase, power and hosting over all years."""
    owned_purchase_usd: float | None = None
    owned_power_usd: float | None = None
    owned_hosting_usd: float | None = None
    owned_usd_per_h: float | None = None
    """The sum over every hour of the years."""
    owned_usd_per_million_output_tokens: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fleet_cost(
    gpus: int,
    prices: GpuCost,
    *,
    peak_tokens_per_s: float | None,
    mean_tokens_per_s: float | None,
    ownership: Ownership | None = None,
) -> FleetCost:
    """Cost of so many GPUs that put out so many tokens a second in the window, and over the whole log."""
    hourly = None if prices.rent is None else gpus * prices.rent.usd_per_gpu_h
    found: dict[str, float | None] = {}
    if ownership is not None and prices.purchase_usd is not None and prices.watts is not None:
        kilowatts = gpus * prices.watts / 1e3
        hours = ownership.years * HOURS_A_YEAR
        purchase = gpus * prices.purchase_usd
        power = kilowatts * ownership.pue * hours * ownership.usd_per_kwh
        hosting = kilowatts * ownership.hosting_usd_per_kw_month * _MONTHS_A_YEAR * ownership.years
        total = purchase + power + hosting
        found = {
            "owned_usd": total,
            "owned_purchase_usd": purchase,
            "owned_power_usd": power,
            "owned_hosting_usd": hosting,
            "owned_usd_per_h": total / hours,
            "owned_usd_per_million_output_tokens": _per_million(total / hours, mean_tokens_per_s),
        }
    return FleetCost(
        usd_per_h=hourly,
        usd_per_year=None if hourly is None else hourly * HOURS_A_YEAR,
        usd_per_million_output_tokens_at_peak=_per_million(hourly, peak_tokens_per_s),
        usd_per_million_output_tokens=_per_million(hourly, mean_tokens_per_s),
        **found,
    )


def _per_million(usd_per_h: float | None, tokens_per_s: float | None) -> float | None:
    if usd_per_h is None or not tokens_per_s:
        return None
    return usd_per_h / (tokens_per_s * 3600.0) * 1e6
