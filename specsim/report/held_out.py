"""Errors of acceptance models on requests that they were not fitted to, as text and as a Markdown page.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specsim.planner.held_out import MEASURES, MODELS, HeldOut, Measure
from specsim.report.text import Page

__all__ = ["held_out_page", "held_out_text"]

_COLUMNS = ("k", "figure", "all", "halves", "luck", *MODELS)
_WAYS = {
    "random": "halves by lot",
    "stratified": "halves of like output lengths",
    "even-odd": "even and odd requests",
}
_READING = (
    "Fitted to one half of the requests, simulated for the other at its own output lengths, and the reverse. Of each "
    "model first the bias, the mean prediction against the mean measurement over all halvings, then the mean absolute "
    "error of one half; in %, of the autocorrelation as it is. `all`: measured on all requests. `luck`: the error that "
    "one half shows when the mixture is true to the letter. `halves`: what the measured halves differ by. * marks a "
    "bias beyond the limit: 2 % for mean lengths, 15 % for the spread, 0.1 for the autocorrelation, 10 % for p99."
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
- **mixture**: kinds of requests whose text moves between regimes, drifting with the output position
  ([acceptance.md](reference/acceptance.md)).
- **replay**: measured requests of similar output length, as they are.

Mean acceptance length: tokens over rounds of all requests together, the last round cut at the output. Spread: standard
deviation of a request's own mean, sampling noise included. Autocorrelation: of tokens per round with those of the next
round, within a request, mean over requests. p99: rounds of a request.

## How to read the two errors

A half is a sample. Where `luck` is larger than a limit, one half misses that limit by chance alone, whatever predicts
it: the error of one half then says more about the half than about the model. The bias is what remains when every
request has been predicted as often as it was fitted. It is no proof of a model either: the requests of all halves
together are one sample, whose own luck, about 0.7 of the column `luck`, stays in the bias. Three ways to halve:

- **by lot**: what a fit to other requests of the same source would meet.
- **of like output lengths**: of each two requests of neighbouring output length one, by lot. The few longest outputs
  are shared out evenly, so that p99 is less a matter of which half they fell into.
- **even and odd requests**: one halving, fixed by the order of the file, used both ways."""
_RUNAWAYS = """\
## Why ShareGPT is hard

Four of 310 outputs ran into repetitions up to the limit of 8192 tokens; they hold a seventh of all tokens. p99 of
rounds in a half of 155 requests lies between its second and its third longest request, so that it rests on two or three
outputs whose acceptance no other request determines: n-gram lookup at k = 10 emits 3.5, 3.5, 3.9 and 7.4 tokens a round
in the four, and the last of them alone makes a third of the variance between requests. EAGLE hardly matches anything
beyond about 2000 tokens of context, whatever the text; that is in the mixture, as its drift.

A few halvings by lot do not settle p99 either: they decide whether the fitted half has none or all of the four. Twelve
others (`--drafter ngram --seed 1 --splits 12 --replications 2`) give the mixture a bias of p99 for n-gram lookup of
+5.5, +11.8, +13.6 and +16.9 % at k = 1, 3, 5 and 10, beyond the limit, and the replay about the same; lengths and
spread stay within theirs (-2.0 and -9.6 % at k = 10). A half without such an output cannot tell what they do. `luck` is
too small for these figures, since the mixture gives all very long outputs nearly the same acceptance; `halves` is not.
With one even and three odd runaways, even and odd requests are the hardest of the three."""


def held_out_text(results: Sequence[HeldOut], *, color: bool = False) -> str:
    """Tables for a terminal."""
    page = Page(color=color)
    for result in results:
        page.heading(_title(result))
        if result.measured_on:
            page.line(f"measured {result.measured_on}")
        page.table(_COLUMNS, [list(row) for row in _rows(result)], left=2)
    page.line()
    page.line(_READING.replace("`", ""))
    return page.text()


def held_out_page(results: Sequence[HeldOut], command: str) -> str:
    """The Markdown page that `command` writes."""
    parts = [_INTRO.format(command=command, reading=_READING), *_missed(results)]
    if any("sharegpt" in result.name for result in results):
        parts.append(_RUNAWAYS)
    for result in results:
        parts.append(f"## {_title(result)}")
        if result.measured_on:
            parts.append(f"Measured {result.measured_on}.")
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(result)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _missed(results: Sequence[HeldOut]) -> Iterator[str]:
    """What is beyond a limit, model by model."""
    yield "## What is not met"
    for model in MODELS:
        lines = []
        for result in results:
            found = result.missed(model)
            if not found:
                continue
            by_measure = {
                measure.title: ", ".join(
                    f"{_signed(measure, bias)}{' %' if m.relative else ''} at k = {k}"
                    for k, m, bias in found
                    if m is measure
                )
                for _, measure, _ in found
            }
            words = "; ".join(f"{title} {errors}" for title, errors in by_measure.items())
            lines.append(f"- {_set(result)}, {_WAYS[result.halves]}: {words}.")
        cells = len(results) * len(MEASURES) * len(results[0].ks)
        count = sum(len(result.missed(model)) for result in results)
        if model in ("constant", "vector"):
            yield f"**{model}**: bias beyond the limit in {count} of {cells} figures."
        else:
            yield f"**{model}**: bias beyond the limit in {count} of {cells} figures{':' if lines else '.'}"
            if lines:
                yield "\n".join(lines)


def _set(result: HeldOut) -> str:
    return result.name.removeprefix("measured ").removesuffix(".gz").removesuffix(".jsonl")


def _title(result: HeldOut) -> str:
    ways = f"{result.splits} ways" if result.splits > 1 else "one way"
    return f"{_set(result)}: {result.requests} requests, {_WAYS[result.halves]}, {ways}"


def _rows(result: HeldOut) -> Iterator[tuple[str, ...]]:
    halves, luck = result.between_halves(), result.luck()
    models = [(result.bias(model), result.one_half(model)) for model in MODELS]
    for i, k in enumerate(result.ks):
        for j, measure in enumerate(MEASURES):
            value = float(result.everything[i, j])
            yield (
                str(k),
                measure.title,
                f"{value:,.{0 if value >= 100 else 3}f}",
                _size(measure, halves[i, j]),
                _size(measure, luck[i, j]),
                *(
                    f"{_signed(measure, bias[i, j])}{'*' if abs(bias[i, j]) > measure.limit else ''} "
                    f"{_size(measure, one[i, j])}"
                    for bias, one in models
                ),
            )


def _signed(measure: Measure, error: float) -> str:
    return f"{100 * error:+.1f}" if measure.relative else f"{error:+.2f}"


def _size(measure: Measure, error: float) -> str:
    if np.isnan(error):
        return "-"
    return f"{100 * error:.1f}" if measure.relative else f"{error:.2f}"
