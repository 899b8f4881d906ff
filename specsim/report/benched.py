"""Runs of a benchmark client beside their predictions, as text and as a section of a Markdown page, from JSON.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specsim.report.served import FIGURES, measured_rows, repeats_text, sign_text, signed, size
from specsim.report.text import Page

__all__ = ["benched_section", "benched_text"]

_GAPS = tuple((f"itl_chunk_{name}_s", f"gap of chunks {name}, ms", 1e3) for name in ("p50", "p95", "p99"))
_SHORT: tuple[tuple[str, str], ...] = (
    ("output_tokens_per_s", "tokens/s"), ("ttft_p50_s", "TTFT p50"), ("ttft_p99_s", "p99"),
    ("tpot_mean_s", "TPOT mean"), ("tpot_p50_s", "p50"), ("tpot_p99_s", "p99"),
)  # fmt: skip
_READING = (
    "Error: predicted over measured, less 1; measured is the median over runs of the same settings. Noise: how far one "
    "run lies from it at most. Luck: one standard deviation between simulations that differ in luck alone. * marks a "
    "throughput or mean TPOT that misses by more than 5 % and more than the noise. Clients count network and tokenizer "
    "into TTFT; the simulator does not."
)


def benched_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """Everything, for a terminal."""
    page = Page(color=color)
    page.heading(f"Benchmarks beside predictions: {result['subject']}")
    page.facts(list(_facts(result)))
    for row in result["rows"]:
        page.heading(f"{row['load']}, {row['policy']}: {repeats_text(row['repeats'])} of {row['requests']:,} requests, "
                     f"{row['prompt_tokens_mean']:.0f} in, {row['output_tokens_mean']:.0f} out")  # fmt: skip
        page.table(("", "measured", "predicted", "error", "noise", "luck"),
                   [cells[:4] + cells[5:] for cells in measured_rows(row, (*FIGURES, *_GAPS))])  # fmt: skip
        for note in _notes(row):
            page.line(note)
    if result["speedups"]:
        page.heading("On over off")
        cells = [[gain["load"], gain["policy"], _OF[gain["of"]], f"{gain['measured']:.3f}", f"{gain['predicted']:.3f}",
                  signed(gain["error"]), size(gain["noise"]), sign_text(gain["sign_right"])]
                 for gain in result["speedups"]]  # fmt: skip
        page.table(("load", "arm", "of", "measured", "predicted", "error", "noise", "sign"), cells, left=3)
    page.heading("Verdict")
    page.line(_verdict(result))
    page.line()
    page.line(_READING)
    return page.text()


_OF = {"output_tokens_per_s": "tokens/s", "tpot_mean_s": "TPOT"}


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "when", f"{result['date']}; {result['luck']} simulations of each load"
    profile = result["profile"]["on" if any(row["acceptance"] for row in result["rows"]) else "off"]
    yield "step times", f"{profile['name']} ({profile['kind']}), one sigma of a step ±{profile['relative_error']:.0%}"
    for n, sentence in enumerate(result["checks"]):
        yield ("" if n else "checks"), sentence


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"Simulated in {'a closed' if row['loop'] == 'closed' else 'an open'} loop, " \
          f"{row['predicted_running_batch']:.1f} running; measured by {row['client']}."  # fmt: skip
    if row["acceptance"] is not None:
        yield f"Acceptance: {row['acceptance']['source']}; {row['acceptance']['length']:.2f} tokens a round."
    if row["refused"]:
        yield f"{row['refused']} requests are too long for the deployment as simulated; they are left out."
    if row["predicted_preemptions"] >= 1:
        yield f"The simulated cache ran out {row['predicted_preemptions']:.0f} times (preemptions)."
    yield from row["notes"]


def _verdict(result: Mapping[str, Any]) -> str:
    verdict = result["verdict"]
    said = f"{verdict['within']} of {verdict['figures']} throughputs and mean TPOTs are within 5 % or the noise"
    if all(row["repeats"] == 1 for row in result["rows"]):
        said += ", which is not known from single runs"
    if result["speedups"]:
        said += (f"; the sign of on against off is right in {verdict['signs_right']} of {verdict['signs']} cases that "
                 f"differ by more than the noise")  # fmt: skip
    return said + "."


def benched_section(results: Sequence[Mapping[str, Any]]) -> str:
    """A section of docs/validation.md; empty without results."""
    if not results:
        return ""
    parts = [
        "## Benchmarks of engines",
        "Runs that a benchmark client measured on an engine, beside predictions of the same requests at the same load; "
        "made with `specsim validate bench` ([guide](guides/validate.md)). " + _READING + " Cells: error (noise).",
    ]
    for result in results:
        columns = ["load", "arm", "runs", *(title for _, title in _SHORT), "on over off", "predicted"]
        lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        gains = {(gain["load"], gain["policy"]): gain for gain in result["speedups"]}
        for row in result["rows"]:
            gain = gains.get((row["load"], row["policy"]))
            cells = [row["load"], row["policy"], str(row["repeats"]), *(_cell(row, key) for key, _ in _SHORT)]
            cells += ["-", "-"] if gain is None else [
                f"{gain['measured']:.3f} ({size(gain['noise'])})",
                f"{gain['predicted']:.3f}" + ("" if gain["sign_right"] in (True, None) else " **wrong sign**"),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
        facts = "\n".join(f"- {name}: {text}" if name else f"- {text}" for name, text in _facts(result))
        parts += [f"### {result['date']}: {result['subject']}", facts, "\n".join(lines), _verdict(result)]
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any], key: str) -> str:
    figure = row["figures"].get(key)
    if figure is None or figure["error"] is None:
        return "-"
    mark = "*" if figure.get("within") is False else ""
    return f"{signed(figure['error'])}{mark} ({size(figure['noise'])})"
