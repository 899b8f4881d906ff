"""A report as Markdown: the same sections as the page, with the figures of a chart in place of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specsim.report.document import Block, Code, Document, Facts, Figures, Items, Paragraph, TableBlock
from specsim.report.table import Table
from specsim.report.text import visible

__all__ = ["markdown_text"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def markdown_text(document: Document) -> str:
    """The whole file."""
    parts = [f"# {_text(document.title)}", _text(document.subtitle)]
    for i, section in enumerate(document.sections):
        if i:
            parts.append(f"## {_text(section.title)}")
        for block in section.blocks:
            parts += _block(block)
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """On one line, with what Markdown or HTML would read as marks escaped."""
    return _SPECIAL.sub(r"\\\1", visible(text))


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text, kind):
            yield f"**{_text(text)}**" if kind == "verdict" else _text(text)
        case Items(texts, folded):
            if texts and folded:
                yield f"{_text(folded)}:"
            if texts:
                yield "\n".join(f"- {_text(text)}" for text in texts)
        case Facts(rows):
            yield "\n".join(f"- {_text(name)}: {_text(text)}" if name else f"  - {_text(text)}" for name, text in rows)
        case Code(text, name):
            if name:
                yield f"{_text(name)}:"
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            yield f"{fence}text\n{text.rstrip()}\n{fence}"
        case TableBlock(table):
            yield f"{_text(table.title)}:"
            yield _table(table)
        case Figures(figures):
            for figure in figures:
                yield f"### {_text(figure.title)}"
                yield _text(figure.text)
                yield _table(figure.table)


def _table(table: Table) -> str:
    lines = [
        f"| {' | '.join(_text(column.title) for column in table.columns)} |",
        f"|{'|'.join(' :--- ' if column.left else ' ---: ' for column in table.columns)}|",
    ]
    lines += [f"| {' | '.join(map(_text, row))} |" for row in table.shown()]
    return "\n".join(lines)
