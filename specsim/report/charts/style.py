"""How every chart looks: colours, markers and lines that tell series apart without colour, and the SVG around them.

Models: the palette of Okabe and Ito (2008), which people with any colour vision can tell apart; every series also has
a line and a marker of its own. Text stays text, so that it can be searched and is sharp at any size. Same data, same
bytes. Leaves out: what is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from specsim.errors import ScenarioError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "INK", "NOTHING", "ORANGE", "PAPER", "Series", "canvas", "check_drawing", "finished",
           "mixed", "series_of"]  # fmt: skip

INK, PAPER, GREY, NOTHING = "#000000", "#ffffff", "#8a8a8a", "#ececea"
BLUE, ORANGE = "#0072b2", "#d55e00"
"""Ends of every two-sided scale: blue is good, vermillion is not."""
_COLOURS = (INK, BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "os^Dv*PX<>ph"

_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specsim",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": "#444444",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}
_FONTS = "'DejaVu Sans', Verdana, 'Liberation Sans', Arial, sans-serif"
"""DejaVu, for which the room was measured, then what is as wide or narrower."""
_REFERENCE = re.compile(r"(?<=url\(#)[\w-]+(?=\))|(?<=^#)[\w-]+$")


@dataclass(frozen=True, slots=True)
class Series:
    """How one series is drawn."""

    color: str
    linestyle: Any
    marker: str


def series_of(names: Sequence[str]) -> dict[str, Series]:
    """A look for each name; the first is black and solid. No two of up to 84 share colour, line and marker."""
    return {
        name: Series(_COLOURS[i % len(_COLOURS)], _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(names)
    }


def check_drawing() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        ScenarioError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ScenarioError(
            "charts need matplotlib, which is not installed: pip install '.[report]' in the folder of specsim, or ask "
            "for --markdown, --csv or --json"
        ) from error


@contextmanager
def canvas(width: float = 400, height: float = 270) -> Iterator[tuple[Figure, Axes]]:
    """A figure of that many points with one pair of axes, drawn under the house style.

    Raises:
        ScenarioError: matplotlib is not installed.
    """
    check_drawing()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what the machine's own settings say
        matplotlib.rcParams.update(_RC)  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        yield figure, figure.subplots()


def finished(figure: Figure, *, name: str, title: str, description: str) -> str:
    """The figure as an SVG element to be put into a page: no fixed size, ids that begin with `name`, and `title` and
    `description` for who does not see it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawn = ElementTree.fromstring(buffer.getvalue())
    referred = {found for node in drawn.iter() for value in node.attrib.values() for found in _REFERENCE.findall(value)}
    for node in drawn.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.text, node.tail = (node.text or "").strip(), "\n"
        node.attrib = {key.rpartition("}")[2]: value for key, value in node.attrib.items()}
        if node.get("id") not in referred:
            node.attrib.pop("id", None)
        for key, value in node.attrib.items():
            if key == "id":
                node.attrib[key] = f"{name}-{value}"
            elif key == "style":
                node.attrib[key] = _REFERENCE.sub(rf"{name}-\g<0>", value).replace("'DejaVu Sans'", _FONTS)
            elif key in ("href", "clip-path"):
                node.attrib[key] = _REFERENCE.sub(rf"{name}-\g<0>", value)
    for parent in list(drawn.iter()):
        for child in [child for child in parent if child.tag in ("metadata", "style")]:
            parent.remove(child)  # a style of one picture would hold for the whole page
    drawn.attrib = {
        "class": "chart",
        "viewBox": drawn.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "xmlns": "http://www.w3.org/2000/svg",
        "stroke-linejoin": "round",
    }
    for tag, text in (("desc", description), ("title", title)):
        said = ElementTree.Element(tag, id=f"{name}-{tag}")
        said.text = text
        drawn.insert(0, said)
    return ElementTree.tostring(drawn, encoding="unicode")


def mixed(share: float, low: str = ORANGE, high: str = BLUE) -> str:
    """A colour from `low` (-1) over white (0) to `high` (1); further out it stays."""
    share = max(-1.0, min(1.0, share))
    end = high if share > 0 else low
    parts = (int(end[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + abs(share) * (part - 255)):02x}" for part in parts)
