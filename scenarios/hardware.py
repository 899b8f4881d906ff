"""GPUs of the catalogue: memory, bandwidth, dense rates, link, power, dated prices.

Leaves out: efficiency (what a kernel reaches of these rates; the analytic profile owns that) and purchase prices (no
public source; the user's input). Numbers come from `scenarios/catalogue/gpus.toml` and `prices.toml`, which name the
source, its date and the doubtful figures of each entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from scenarios.lookup import NameIndex, check_keys, one_line, packaged_toml
from scenarios.prices import prices_by_gpu
from specsim.errors import CatalogueError
from specsim.shapes import Gpu, Price

__all__ = ["gpu", "known_gpu", "load_gpus"]

_MEMORY_UNITS = {"memory_gb": 1e9, "memory_gib": 2.0**30, "memory_mib": 2.0**20}
_GPU_KEYS = ("name", "aliases", *_MEMORY_UNITS, "bandwidth_gb_per_s", "tflops", "link_gb_per_s", "link", "tdp_w",
             "max_tp", "all_in_kw", "driver_memory_mib", "source", "doubtful", "notes")  # fmt: skip


@cache
def load_gpus() -> Mapping[str, Gpu]:
    """Every GPU of the catalogue by its name, in catalogue order, prices attached."""
    prices = prices_by_gpu(packaged_toml("prices.toml"), "prices.toml")
    data = packaged_toml("gpus.toml")
    gpus: dict[str, Gpu] = {}
    for entry in data["gpu"]:
        built = _gpu(entry, data["sources"], tuple(prices.pop(entry["name"], ())))
        gpus[built.name] = built
    if prices:
        raise CatalogueError(f"prices.toml: price of '{next(iter(prices))}', which gpus.toml does not have")
    return MappingProxyType(gpus)


def gpu(name: str) -> Gpu:
    """The catalogue GPU called `name`; case, spaces, dashes and a leading vendor name do not matter.

    Raises:
        CatalogueError: when the catalogue has no such GPU; names the nearest one.
    """
    found = known_gpu(name)
    if found is None:
        raise CatalogueError(
            f"gpu '{one_line(name)}' is not in the catalogue{_index().suggestion(name)}; "
            f"`specsim hardware list` shows all {len(load_gpus())}"
        )
    return found


def known_gpu(name: str) -> Gpu | None:
    """As `gpu`, but None for an unknown name: the search for the nearest one is left out, which takes most time."""
    hit = _index().get(name)
    return None if hit is None else load_gpus()[hit]


@cache
def _index() -> NameIndex:
    names = {}
    for name, entry in load_gpus().items():
        spellings = (name, *entry.aliases)
        names[name] = (*entry.aliases, *(f"NVIDIA {s}" for s in spellings), *(f"AMD {s}" for s in spellings))
    return NameIndex("gpu", names)


def _gpu(entry: Mapping[str, Any], sources: Mapping[str, Any], prices: tuple[Price, ...]) -> Gpu:
    """One table of gpus.toml in SI units, source letters spelt out."""
    check_keys(entry, _GPU_KEYS, f"gpus.toml, {entry.get('name')}")
    memory = [entry[key] * unit for key, unit in _MEMORY_UNITS.items() if key in entry]
    if len(memory) != 1:
        raise CatalogueError(f"gpus.toml, {entry['name']}: give exactly one of {', '.join(_MEMORY_UNITS)}")
    extra = {"link": entry["link"]}
    if "all_in_kw" in entry:
        extra["all_in_kw"] = f"{entry['all_in_kw']:.2f}"
    if "driver_memory_mib" in entry:
        extra["driver_memory_mib"] = str(entry["driver_memory_mib"])
    return Gpu(
        name=entry["name"],
        memory_bytes=float(memory[0]),
        bandwidth_bytes_per_s=entry["bandwidth_gb_per_s"] * 1e9,
        flops_per_s={dtype: rate * 1e12 for dtype, rate in entry["tflops"].items()},
        link_bytes_per_s=entry["link_gb_per_s"] * 1e9,
        tdp_w=float(entry["tdp_w"]),
        max_tp=entry.get("max_tp", 8),
        aliases=tuple(entry.get("aliases", ())),
        prices=prices,
        source="; ".join(sources[key]["text"] for key in entry["source"]),
        date="; ".join(dict.fromkeys(sources[key]["date"] for key in entry["source"])),
        doubtful=tuple(entry.get("doubtful", ())),
        notes=entry.get("notes", ""),
        extra=extra,
    )
