"""The look of charts: told apart without colour, readable, the same bytes for the same data."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from specsim.report.charts.bars import LOOKS, traffic_chart
from specsim.report.charts.curves import Curve, load_chart
from specsim.report.charts.maps import Cell, Turn, grid_map
from specsim.report.charts.steps import schedule_chart
from specsim.report.charts.style import BLUE, INK, ORANGE, PAPER, canvas, finished, mixed, series_of


def luminance(color: str) -> float:
    """WCAG 2 relative luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_series_differ_by_marker_and_never_by_colour_alone() -> None:
    looks = list(series_of([str(i) for i in range(84)]).values())
    assert len({(look.color, look.linestyle, look.marker) for look in looks}) == 84
    first = looks[:7]
    assert len({look.marker for look in first}) == len({str(look.linestyle) for look in first}) == 7


def test_states_of_traffic_differ_without_colour() -> None:
    assert len({hatch for _, hatch in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("share", [-2, -1, -0.7, -0.3, 0, 0.3, 0.5, 0.7, 0.9, 1, 2])
def test_the_figure_in_a_cell_can_be_read(share: float) -> None:
    color = mixed(share)
    text = grid_map("m", "M", {("a", 1): Cell("1.23", color)}, rows=["a"], batches=[1], turns={}, description="d",
                    note="n")  # fmt: skip
    written = next(m for m in re.finditer(r"<text style=\"([^\"]*)\"[^>]*>1\.23</text>", text))
    fill = re.search(r"fill: (#[0-9a-f]{6})", written[1])
    assert contrast(INK if fill is None else fill[1], color) >= 4.5


def test_a_scale_has_two_ends_and_white_between() -> None:
    assert (mixed(-1), mixed(0), mixed(1), mixed(5)) == (ORANGE, PAPER, BLUE, BLUE)


def curve(*mean: float) -> Curve:
    n = len(mean)
    return Curve([float(i + 1) for i in range(n)], mean, [m * 0.9 for m in mean], [m * 1.1 for m in mean], [False] * n)


def drawn(name: str = "c", label: str = "k=3") -> str:
    return load_chart(name, "Title", {"off": curve(1, 2, 9), label: curve(1, 40, 900)}, description="what is seen",
                      own_per_s=2.0, order=["off", label], banded={"off"}, level=(50.0, "objective"))  # fmt: skip


def test_the_same_data_give_the_same_bytes_and_ids_of_their_own() -> None:
    assert drawn() == drawn()
    one, two = (set(re.findall(r' id="([^"]*)"', drawn(name))) for name in ("one", "two"))
    assert one and not one & two


@pytest.mark.parametrize("label", ["<script>alert(1)</script>", "a & b", "$x^2$", "$", 'k_ id="q" url(#z) #f'])
def test_labels_are_text_whatever_is_in_them(label: str) -> None:
    root = ElementTree.fromstring(drawn(label=label))
    space = "{http://www.w3.org/2000/svg}"
    assert label in [node.text for node in root.iter(f"{space}text")]
    assert not list(root.iter(f"{space}script"))
    assert (root[0].text, root[1].text) == ("Title", "what is seen")


def test_text_is_text_with_fonts_to_fall_back_on() -> None:
    with canvas() as (figure, axes):
        axes.set_title("A title")
        text = finished(figure, name="x", title="t", description="d")
    assert ">A title</text>" in text
    assert "sans-serif" in text and "metadata" not in text and "<style" not in text
    assert "width=" not in text[: text.index(">")]


def test_odd_data_are_drawn() -> None:
    """One load, nothing measured, values of zero, a turn at either end, one long bin."""
    nan = float("nan")
    load_chart("a", "A", {"off": Curve([1.0], [nan], [nan], [nan], [True])}, description="d", own_per_s=1.0,
               order=["off"], banded=set())  # fmt: skip
    load_chart("b", "B", {"off": curve(0, 0)}, description="d", own_per_s=1.0, order=["off"], banded={"off"})
    for turn in (Turn(1, 1, 1), Turn(None, 3, None), Turn(900, None, None), Turn(None, None, None)):
        grid_map("c", "C", {("a", 1): Cell("1", PAPER, True), ("a", 8): Cell("2", BLUE)}, rows=["a", "b"],
                 batches=[1, 8], turns={"a": turn, "b": turn}, description="d", note="n")  # fmt: skip
    schedule_chart("d", "D", {"as assumed": [(1, 1, 0)]}, description="d", limit=1)
    traffic_chart("e", "E", [0.5], ["pays"], bin_s=86400.0, levels=[("l", 9.0, 0.0, 0.0)], description="d")
    traffic_chart("f", "F", [0.0, 1.0], ["not sure", "not simulated"], bin_s=1.0, levels=[], description="d")
