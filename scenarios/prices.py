"""Prices of a GPU-hour: tables of them read, and for each GPU the one that a report counts with, never silently.

Models: what wins over what (a price that the user gives, the user's table, the catalogue), and that prices of different
providers are not compared where one provider has them all. Leaves out: purchase prices, of which none is public.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.lookup import check_keys, one_line
from specsim.errors import CatalogueError, ScenarioError, nearest
from specsim.shapes import Gpu, Price

__all__ = ["chosen_prices", "price_table", "prices_by_gpu"]

_PRICE_KEYS = ("gpu", "usd_per_gpu_h", "provider", "source", "doubtful")
_SOURCE_KEYS = ("text", "date")


def prices_by_gpu(table: Mapping[str, Any], place: str) -> dict[str, list[Price]]:
    """Prices by the GPU's name as the table spells it: `[sources]` with text and date, and `[[price]]` entries.

    Raises:
        CatalogueError: unknown or missing keys, a source that is not there, a price that is not positive.
    """
    check_keys(table, ("schema_version", "sources", "price"), place)
    if table.get("schema_version") != 1:
        raise CatalogueError(f"{place}: schema_version must be 1, got {table.get('schema_version')!r}")
    sources, prices = table.get("sources", {}), table.get("price", [])
    if not (isinstance(prices, list) and all(isinstance(item, dict) for item in prices)):
        raise CatalogueError(f"{place}: prices must be tables that begin with [[price]]")
    if not (isinstance(sources, dict) and all(isinstance(item, dict) for item in sources.values())):
        raise CatalogueError(f"{place}: [sources] must name each source with its text and date")
    found: dict[str, list[Price]] = {}
    for number, entry in enumerate(prices, start=1):
        at = f"{place}, price {number} ({entry.get('gpu', 'no gpu')})"
        check_keys(entry, _PRICE_KEYS, at)
        for key in ("gpu", "usd_per_gpu_h", "provider", "source"):
            if key not in entry:
                raise CatalogueError(f"{at}: {key} is missing")
        source = sources.get(str(entry["source"]))
        if source is None:
            raise CatalogueError(f"{at}: [sources] has no '{entry['source']}'; add it with its text and date")
        check_keys(source, _SOURCE_KEYS, f"{place}, source {entry['source']}")
        if set(source) != set(_SOURCE_KEYS):
            raise CatalogueError(f"{place}, source {entry['source']}: text and date are needed; a price is dated")
        price = Price(
            usd_per_gpu_h=entry["usd_per_gpu_h"], provider=entry["provider"], source=source["text"],
            date=source["date"], doubtful=entry.get("doubtful", ""),
        )  # fmt: skip
        found.setdefault(entry["gpu"], []).append(price)
    return found


def price_table(path: str) -> dict[str, list[Price]]:
    """The user's own table, in the form of `scenarios/catalogue/prices.toml`.

    Raises:
        CatalogueError: the file cannot be read, or is malformed; see `prices_by_gpu`.
    """
    try:
        table = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogueError(f"--prices {one_line(path)}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"--prices {one_line(path)}: not TOML: {one_line(str(error))}") from None
    return prices_by_gpu(table, one_line(path))


def chosen_prices(
    gpus: Sequence[Gpu],
    *,
    given: Mapping[str, float],
    table: Mapping[str, Sequence[Price]] | None = None,
    provider: str | None = None,
) -> tuple[dict[str, Price | None], list[str]]:
    """The price of each GPU by its name, and sentences on how they were chosen; None: there is none.

    `given`: dollars by name, which win; `table`: prices by name instead of the catalogue's; `provider`: whose.

    Raises:
        ScenarioError: nobody of that name has a price for any of the GPUs.
    """
    known = {gpu.name: tuple(gpu.prices if table is None else table.get(gpu.name, ())) for gpu in gpus}
    asked = [name for name in known if name not in given]
    providers = list(dict.fromkeys(price.provider for name in asked for price in known[name]))
    notes = []
    if provider is not None:
        if provider not in providers:
            raise ScenarioError(
                f"--provider '{one_line(provider)}' has no price for these GPUs{nearest(provider, providers)}; "
                f"known are {', '.join(providers) or 'none'}"
            )
        order = [provider]
    else:
        order = sorted(providers, key=lambda name: _rank(name, [known[gpu] for gpu in asked]))
        if order and len(providers) > 1:
            notes.append(f"Prices are those of {order[0]}, where it has one (--provider, --prices, --price).")
    chosen: dict[str, Price | None] = {}
    for name, prices in known.items():
        if name in given:
            chosen[name] = Price(given[name], "given", "--price", "this command")
        else:
            by = {price.provider: price for price in reversed(prices)}
            chosen[name] = next((by[who] for who in order if who in by), None)
    used = list(dict.fromkeys(price.provider for price in chosen.values() if price is not None))
    if len(used) > 1:
        notes.append(f"Prices of different providers ({', '.join(used)}) stand side by side; a rank may rest on that.")
    lacking = [name for name, price in chosen.items() if price is None]
    if lacking:
        notes.append(f"No price is known for {', '.join(lacking)}: give one with --price GPU=USD.")
    return chosen, notes


def _rank(provider: str, prices: Sequence[Sequence[Price]]) -> tuple[int, int]:
    """First who has most of the GPUs, then who has fewest doubtful prices; equals stay in the order of the table."""
    own = [next((price for price in of if price.provider == provider), None) for of in prices]
    return -sum(price is not None for price in own), sum(price is not None and price.doubtful != "" for price in own)
