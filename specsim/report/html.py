"""A report as one HTML file: no script, nothing from elsewhere, charts as inline SVG, the figures of each in a table.

Every text is escaped; a policy in the head forbids scripts and any request, should one get through all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from specsim.report.charts.style import check_drawing
from specsim.report.document import (
    Block,
    Code,
    Document,
    Facts,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    TableBlock,
)
from specsim.report.table import Table
from specsim.report.text import visible

__all__ = ["html_text"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html_text(document: Document) -> str:
    """The whole file.

    Raises:
        ScenarioError: matplotlib is not installed.
    """
    if any(isinstance(block, Figures) for section in document.sections for block in section.blocks):
        check_drawing()  # before any chart, since some import parts of matplotlib before they draw
    style = files("specsim.report").joinpath("page.css").read_text(encoding="utf-8")
    first, *others = document.sections
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{_text(document.title)}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{_text(document.title)}</h1>",
        f'<p class="subtitle">{_text(document.subtitle)}</p>',
        "</header>",
        "<main>",
        f'<section id="s1" aria-label="{_text(first.title)}">',
        *(line for block in first.blocks for line in _block(block)),
        "</section>",
        '<nav aria-label="Contents"><ol>',
        *(f'<li><a href="#s{i}">{_text(section.title)}</a></li>' for i, section in enumerate(others, start=2)),
        "</ol></nav>",
        *(line for i, section in enumerate(others, start=2) for line in _section(section, i)),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    return escape(visible(text))


def _section(section: Section, number: int) -> Iterator[str]:
    yield f'<section id="s{number}">'
    yield f"<h2>{_text(section.title)}</h2>"
    for block in section.blocks:
        yield from _block(block)
    yield "</section>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text, kind):
            yield f'<p class="{kind}">{_text(text)}</p>' if kind else f"<p>{_text(text)}</p>"
        case Items(texts, folded):
            if texts:
                yield (f"<details><summary>{_text(folded)}</summary>" if folded else "") + "<ul>"
                yield from (f"<li>{_text(text)}</li>" for text in texts)
                yield "</ul>" + ("</details>" if folded else "")
        case Facts(rows):
            yield '<dl class="facts">'
            for name, text in rows:
                yield (f"<dt>{_text(name)}</dt>" if name else "") + f"<dd>{_text(text)}</dd>"
            yield "</dl>"
        case Code(text, name):
            if name:
                yield f'<p class="file">{_text(name)}</p>'
            lines = "\n".join(_text(line) for line in text.rstrip("\n").split("\n"))
            yield f'<pre tabindex="0"><code>{lines}</code></pre>'
        case TableBlock(table):
            yield from _table(table, caption=True)
        case Figures(figures):
            yield '<div class="figures">'
            for figure in figures:
                yield from _figure(figure)
            yield "</div>"


def _figure(figure: Figure) -> Iterator[str]:
    yield "<figure>"
    yield figure.draw()
    yield f"<figcaption>{_text(figure.text)}</figcaption>"
    yield "<details><summary>Figures</summary>"
    yield from _table(figure.table, caption=False)
    yield "</details>"
    yield "</figure>"


def _table(table: Table, *, caption: bool) -> Iterator[str]:
    """A table that scrolls by itself where it is wider than the page."""
    side = ["left" if column.left else "right" for column in table.columns]
    if caption:
        yield f'<p class="caption">{_text(table.title)}</p>'
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.title)}"><table>'
    heads = (f'<th scope="col" class="{s}">{_text(c.title)}</th>' for c, s in zip(table.columns, side, strict=True))
    yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for row in table.shown():
        first, *rest = (f'class="{s}">{_text(cell)}' for cell, s in zip(row, side, strict=True))
        yield f'<tr><th scope="row" {first}</th>{"".join(f"<td {cell}</td>" for cell in rest)}</tr>'
    yield "</tbody></table></div>"
