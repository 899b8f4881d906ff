"""Errors of acceptance models on requests that they were not fitted to, as text and as a Markdown page.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specsim.planner.held_out import MEASURES, MODELS, HeldOut, Measure
from specsim.report.text import Page

__all__ = ["held_out_page", "held_out_text"]

_COLUMNS = ("k", "figure", "measured", "halves", *MODELS)
_READING = (
    "Fitted to one half of the requests and simulated for the other at its own output lengths; mean absolute error "
    "over {splits} splits (the even requests, the odd ones, then halves by lot). `halves` is what the measured halves "
    "differ by, which no model without output lengths can beat. * marks an error beyond the limit: 2 % for mean "
    "lengths, 15 % for the spread, 0.1 for the autocorrelation, 10 % for p99."
)
_INTRO = """\
# Acceptance models on requests that they have not seen

How well each acceptance model predicts requests that it was not fitted to. The whole page is written by one command:

```console
{command}
```

{reading}

- **constant**: one number, from the mean acceptance length at k = 3. It misses what makes requests differ and rounds
  alike, so its spread is far too small, its rounds have no memory, and its longest requests are wrong.
- **vector**: conditional acceptance by draft position. It meets mean lengths at every k, and shares the other faults.
- **mixture**: kinds of requests whose text moves between regimes ([acceptance.md](reference/acceptance.md)).
- **replay**: measured requests of similar output length, as they are.

Mean acceptance length: tokens over rounds of all requests together, the last round cut at the output. Spread: standard
deviation of a request's own mean, sampling noise included. Autocorrelation: of tokens per round with those of the next
round, within a request, mean over requests. p99: rounds of a request."""
_RUNAWAYS = """\
Where a few outputs ran into repetitions up to the limit of 8192 tokens (ShareGPT: four requests with a seventh of all
tokens), p99 of rounds in a half rests on one to three requests. Which half holds them decides p99 and, for n-gram
lookup at k = 10, the spread; no fit to the other half can know what these few do."""


def held_out_text(results: Sequence[HeldOut], *, color: bool = False) -> str:
    """Tables for a terminal."""
    page = Page(color=color)
    for result in results:
        page.heading(f"{result.name}: {result.requests} requests")
        page.table(_COLUMNS, [list(row) for row in _rows(result)], left=2)
    page.line()
    page.line(_READING.replace("`", "").format(splits=results[0].splits))
    return page.text()


def held_out_page(results: Sequence[HeldOut], command: str) -> str:
    """The Markdown page that `command` writes."""
    parts = [_INTRO.format(command=command, reading=_READING.format(splits=results[0].splits))]
    for result in results:
        parts.append(f"## {result.name[:1].upper()}{result.name[1:]}, {result.requests} requests")
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(result)]
        parts.append("\n".join(lines))
    if any("sharegpt" in result.name for result in results):
        parts.append(_RUNAWAYS)
    return "\n\n".join(parts) + "\n"


def _rows(result: HeldOut) -> Iterator[tuple[str, ...]]:
    for k in result.measured:
        for measure in MEASURES:
            measured = float(getattr(result.measured[k], measure.name))
            digits = 0 if measured >= 100 else 3
            errors = [
                _error(measure, result.mean_error(k, model, measure.name), judged=model != "other half")
                for model in ("other half", *MODELS)
            ]
            yield str(k), measure.title, f"{measured:,.{digits}f}", *errors


def _error(measure: Measure, error: float, *, judged: bool) -> str:
    shown = f"{error:.1%}" if measure.relative else f"{error:.3f}"
    return f"{shown}{'*' if judged and error > measure.limit else ''}"
