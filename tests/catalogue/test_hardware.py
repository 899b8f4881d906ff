"""The GPU catalogue holds the figures of its sources, in SI units, and finds GPUs however they are spelt."""

import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.hardware import gpu, load_gpus
from scenarios.lookup import NameIndex, check_keys
from specsim.errors import CatalogueError
from specsim.shapes import Gpu, Price

# name: memory GB, bandwidth GB/s, dense bf16 / fp8 / fp4 TFLOP/s, link GB/s one way, TDP W. From the sources named in
# gpus.toml; memory stated in MiB or GiB by a source is converted by hand here.
FACTS = {
    "A100-40 SXM": (40, 1555, 312, None, None, 300, 400),
    "A100-80 SXM": (80, 2039, 312, None, None, 300, 400),
    "A100-80 PCIe": (80, 1935, 312, None, None, 32, 300),
    "L4": (24, 300, 121, 242, None, 32, 72),
    "L40S": (48.305799168, 864, 362, 733, None, 32, 350),
    "A10G": (24, 600, 70, None, None, 32, 300),
    "RTX 4090": (24, 1008, 165, 330, None, 32, 450),
    "RTX 5090": (32, 1792, 210, 419, 1676, 64, 575),
    "RTX PRO 6000 Server": (102.641958912, 1792, 468, 936, 1871, 64, 600),
    "H100 SXM": (80, 3350, 989, 1979, None, 450, 700),
    "H100 PCIe": (80, 2000, 756, 1513, None, 64, 350),
    "H100 NVL": (94, 3900, 835, 1670, None, 300, 400),
    "H200 SXM": (141, 4800, 989, 1979, None, 450, 700),
    "H20": (96, 4000, 148, 296, None, 450, 400),
    "B200 SXM": (180, 7700, 2250, 4500, 9000, 900, 1000),
    "B300 SXM": (288.40034304, 7750, 2250, 4500, 13500, 900, 1100),
    "GB200 NVL72": (186, 8000, 2500, 5000, 10000, 900, 1200),
    "GB300 NVL72": (298.500227072, 8000, 2500, 5000, 15000, 900, 1400),
    "MI300X": (192, 5300, 1307, 2615, None, 448, 750),
    "MI325X": (256, 6000, 1307, 2615, None, 448, 1000),
    "MI355X": (288, 8000, 2516, 5033, 10066, 538, 1400),
    "RTX 3090": (24, 936, 71, None, None, 32, 350),
    "RTX 3090 Ti": (24, 1008, 80, None, None, 32, 450),
    "RTX 2080 Ti": (11, 616, 54, None, None, 16, 250),
    "RTX A6000": (48, 768, 155, None, None, 32, 300),
    "A10": (24, 600, 125, None, None, 32, 150),
    "L40": (48, 864, 181, 362, None, 32, 300),
    "L20": (48, 864, 119.5, 239, None, 32, 275),
    "A800 SXM": (80, 2039, 312, None, None, 200, 400),
    "H800 SXM": (80, 3350, 989, 1979, None, 200, 700),
    "V100 SXM": (32, 900, 125, None, None, 150, 300),
    "T4": (16, 320, 65, None, None, 16, 70),
}

DOUBTFUL = {
    "A10G": {"bandwidth_bytes_per_s", "flops_per_s.bf16", "tdp_w"},
    "RTX 4090": {"flops_per_s.bf16", "flops_per_s.fp8", "link_bytes_per_s", "tdp_w"},
    "RTX 5090": {"bandwidth_bytes_per_s", "flops_per_s.bf16", "flops_per_s.fp8", "flops_per_s.fp4",
                 "link_bytes_per_s", "tdp_w"},
    "H100 NVL": {"memory_bytes", "bandwidth_bytes_per_s", "flops_per_s.bf16", "flops_per_s.fp8",
                 "link_bytes_per_s", "tdp_w"},
    "H20": {"tdp_w"},
    "B200 SXM": {"bandwidth_bytes_per_s"},
    "B300 SXM": {"bandwidth_bytes_per_s", "flops_per_s.fp4", "flops_per_s.int8"},
    "MI325X": {"tdp_w"},
    "MI355X": {"tdp_w"},
    "RTX 3090": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "RTX 3090 Ti": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "RTX 2080 Ti": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "RTX A6000": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "A10": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "L40": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "L20": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "A800 SXM": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "H800 SXM": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "V100 SXM": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
    "T4": {"bandwidth_bytes_per_s", "flops_per_s.bf16"},
}  # fmt: skip


def test_the_catalogue_holds_exactly_the_known_gpus() -> None:
    assert list(load_gpus()) == list(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_figures_are_those_of_the_sources(name: str) -> None:
    memory, bandwidth, bf16, fp8, fp4, link, tdp = FACTS[name]
    entry = load_gpus()[name]
    assert entry.memory_bytes == pytest.approx(memory * 1e9, rel=1e-9)
    assert entry.bandwidth_bytes_per_s == bandwidth * 1e9
    rates = {"bf16": bf16, "fp8": fp8, "fp4": fp4}
    assert {k: v for k, v in entry.flops_per_s.items() if k != "int8"} == {
        k: v * 1e12 for k, v in rates.items() if v is not None
    }
    assert entry.link_bytes_per_s == link * 1e9
    assert entry.tdp_w == tdp


@pytest.mark.parametrize("name", DOUBTFUL)
def test_doubtful_figures_are_marked(name: str) -> None:
    assert set(load_gpus()[name].doubtful) == DOUBTFUL[name]


def test_every_entry_says_where_it_comes_from() -> None:
    for entry in load_gpus().values():
        assert entry.source, entry.name
        assert entry.date, entry.name
        assert not any(len(part) == 1 for part in entry.source.split("; ")), f"{entry.name}: a bare source letter"
        if entry.doubtful:
            assert entry.notes, f"{entry.name}: doubtful without a reason"


def test_doubtful_names_exist_on_the_gpu() -> None:
    for entry in load_gpus().values():
        for name in entry.doubtful:
            owner, _, dtype = name.partition(".")
            assert hasattr(entry, owner), f"{entry.name}: {name}"
            assert not dtype or dtype in entry.flops_per_s, f"{entry.name}: {name}"


def test_rates_are_dense() -> None:
    """Halving the width doubles the dense rate; a sparse figure among dense ones breaks the ladder."""
    for entry in load_gpus().values():
        for narrow, wide in (("fp8", "bf16"), ("fp4", "fp8")):
            if narrow in entry.flops_per_s:
                ratio = entry.flops_per_s[narrow] / entry.flops_per_s[wide]
                exceptions = {"RTX 5090": 4.0, "B300 SXM": 3.0, "GB300 NVL72": 3.0}  # fp4 units that are wider
                expected = exceptions.get(entry.name, 2.0) if narrow == "fp4" else 2.0
                assert ratio == pytest.approx(expected, rel=0.03), f"{entry.name}: {narrow}"


def test_prices_of_one_gpu_span_the_published_range() -> None:
    prices = {(p.provider, p.usd_per_gpu_h) for p in gpu("h100").prices}
    assert prices == {
        ("llm-d-planner reference", 4.50), ("AWS", 4.90), ("GCP", 4.23), ("Azure", 5.50),
        ("own hardware, hyperscaler", 1.30), ("own hardware, neocloud", 1.69), ("rental", 1.30), ("CoreWeave", 4.25),
    }  # fmt: skip


def test_number_of_prices_and_their_dates() -> None:
    every = [price for entry in load_gpus().values() for price in entry.prices]
    assert len(every) == 7 * 4 + 1 + 9 * 3 + 2  # seven GPUs in four columns and MI300X; nine TCO rows; two of Vidur
    assert all(price.source and price.date and price.provider for price in every)
    temporary = [p for name in ("B300 SXM", "GB300 NVL72") for p in load_gpus()[name].prices]
    assert temporary and all("temporary" in p.doubtful for p in temporary)


@pytest.mark.parametrize("name", ["RTX 4090", "RTX 5090", "H100 PCIe", "H100 NVL", "H20", "L40S"])
def test_gpus_without_a_sourced_price_have_none(name: str) -> None:
    assert load_gpus()[name].prices == ()


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100", "H100 SXM"),
        (" h100-sxm ", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100pcie", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80 SXM"),
        ("a100", "A100-80 SXM"),
        ("mi300x", "MI300X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("gb200", "GB200 NVL72"),
        ("rtx4090", "RTX 4090"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert gpu(spelling).name == name


@given(st.sampled_from(list(FACTS)), st.sampled_from(["", " ", "-", "_"]), st.booleans())
def test_case_and_separators_never_matter(name: str, separator: str, upper: bool) -> None:
    spelt = name.replace(" ", separator)
    assert gpu(spelt.upper() if upper else spelt.lower()).name == name


@pytest.mark.parametrize(
    ("wrong", "suggestion"), [("h10", "H100 SXM"), ("h2000", "H200 SXM"), ("mi300", "MI300X"), ("l40x", "L40")]
)
def test_unknown_gpu_names_the_nearest(wrong: str, suggestion: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        gpu(wrong)
    message = str(caught.value)
    assert f"'{wrong}'" in message and f"did you mean '{suggestion}'" in message
    assert "\n" not in message and caught.value.exit_code == 2


@given(st.text(max_size=40))
def test_any_text_finds_a_gpu_or_one_clear_line(name: str) -> None:
    try:
        assert gpu(name).name in FACTS
    except CatalogueError as error:
        assert len(str(error).splitlines()) == 1


def test_unknown_keys_are_refused_with_the_nearest() -> None:
    with pytest.raises(CatalogueError, match=r"unknown key 'tdp' \(did you mean 'tdp_w'\?\)"):
        check_keys({"tdp": 1}, ("tdp_w", "memory_gb"), "gpus.toml, X")


def test_two_entries_cannot_share_a_spelling() -> None:
    with pytest.raises(CatalogueError, match="names both A and B"):
        NameIndex("gpu", {"A": ["x-1"], "B": ["X1"]})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_figures_are_refused(value: float) -> None:
    good = {"name": "X", "memory_bytes": 1.0, "bandwidth_bytes_per_s": 1.0, "flops_per_s": {"bf16": 1.0},
            "link_bytes_per_s": 1.0, "tdp_w": 1.0}  # fmt: skip
    Gpu(**good)
    with pytest.raises(CatalogueError, match=r"memory_bytes must be (a )?finite"):
        Gpu(**{**good, "memory_bytes": value})
    with pytest.raises(CatalogueError, match="flops_per_s"):
        Gpu(**{**good, "flops_per_s": {"bf16": value}})
    with pytest.raises(CatalogueError, match=r"usd_per_gpu_h must be (a )?finite"):
        Price(value, "p", "s", "d")


def test_every_source_key_is_used_and_spelt_out() -> None:
    for name in ("gpus.toml", "prices.toml"):
        data = tomllib.loads(files("scenarios").joinpath("catalogue", name).read_text(encoding="utf-8"))
        rows = data.get("gpu", data.get("price"))
        used = {key for row in rows for key in row["source"]}
        assert used <= set(data["sources"])
        assert all(len(source["text"]) > 3 and source["date"] for source in data["sources"].values())
