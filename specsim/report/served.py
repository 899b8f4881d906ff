"""Predictions held against real serving, as text and as a section of a Markdown page, from their JSON form.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specsim.report.text import Page

__all__ = ["FIGURES", "measured_rows", "repeats_text", "served_section", "served_text", "sign_text", "signed", "size"]

FIGURES: tuple[tuple[str, str, float], ...] = (
    ("output_tokens_per_s", "output tokens/s", 1.0),
    ("ttft_mean_s", "TTFT mean, ms", 1e3),
    ("ttft_p50_s", "TTFT p50, ms", 1e3),
    ("ttft_p95_s", "TTFT p95, ms", 1e3),
    ("ttft_p99_s", "TTFT p99, ms", 1e3),
    ("tpot_mean_s", "TPOT mean, ms", 1e3),
    ("tpot_p50_s", "TPOT p50, ms", 1e3),
    ("tpot_p95_s", "TPOT p95, ms", 1e3),
    ("tpot_p99_s", "TPOT p99, ms", 1e3),
    ("mean_acceptance_length", "acceptance length", 1.0),
    ("tokens_per_round", "tokens a round", 1.0),
)
"""(key, name with unit, factor to that unit)."""
_SHORT: tuple[tuple[str, str], ...] = (
    ("output_tokens_per_s", "tokens/s"), ("ttft_p50_s", "TTFT p50"), ("tpot_mean_s", "TPOT mean"),
    ("tpot_p50_s", "p50"), ("tpot_p95_s", "p95"), ("tpot_p99_s", "p99"), ("mean_acceptance_length", "acceptance"),
)  # fmt: skip
"""What a page has room for."""
_READING = (
    "Error: predicted over measured, less 1; measured is the median over repeats. Noise: how far one repeat lies from "
    "it at most. Luck: one standard deviation between simulations that differ in luck alone. * marks a throughput or "
    "mean TPOT that misses by more than 5 % and more than the noise. At pace: the error once it is known how much "
    "slower the machine was in each run than when it was calibrated, by the reference point of the profile; after ± "
    "how far the error of one repeat lies from it at most."
)


def served_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """Everything, for a terminal."""
    page = Page(color=color)
    page.heading(f"Served for real: {result['subject']}")
    page.facts(_facts(result))
    for row in result["rows"]:
        page.heading(f"{row['load']}, {row['policy']}: {repeats_text(row['repeats'])}, {row['running_batch']:.1f} "
                     f"running (predicted {row['predicted_running_batch']:.1f})")  # fmt: skip
        page.table(
            ("", "measured", "predicted", "error", "at pace", "noise", "luck"), list(measured_rows(row, FIGURES))
        )
    if result["speedups"]:
        page.heading("Throughput over that without speculation")
        cells = [[gain["load"], gain["policy"], f"{gain['measured']:.3f}", _gain_at_pace(gain),
                  f"{gain['predicted']:.3f}", signed(gain["error"]), size(gain["noise"]), sign_text(gain["sign_right"])]
                 for gain in result["speedups"]]  # fmt: skip
        page.table(("load", "arm", "measured", "at pace", "predicted", "error", "noise", "sign"), cells, left=2)
    for sentence in _crossovers(result):
        page.line(sentence)
    page.heading("Verdict")
    for sentence in _verdict(result):
        page.line(sentence)
    page.line()
    page.line(_READING)
    return page.text()


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    trace, profile = result["trace"], result["profile"]
    done = "" if result["status"] == "complete" else f", stopped after {result['runs']} of {result['runs_asked']} runs"
    found = [
        ("when", f"{result['date']}, {repeats_text(result['repeats'])} of every arm, clock: {result['clock']}{done}"),
        ("profile", f"{profile['name']}, measured {profile['date'] or 'some day'}"),
        ("requests", f"{trace['requests']} of {trace['source']}, {trace['prompt_tokens_mean']:.0f} prompt and "
                     f"{trace['output_tokens_mean']:.0f} output tokens in the mean"),
        ("weights", result["weights"]),
    ]  # fmt: skip
    found += [("" if n else "checks", sentence) for n, sentence in enumerate(result["checks"])]
    found += [("" if n else "remark", sentence) for n, sentence in enumerate(result.get("remarks", ()))]
    return found


def repeats_text(count: int) -> str:
    """`3 repeats`, `1 repeat`."""
    return f"{count} repeat{'s' if count > 1 else ''}"


def measured_rows(row: Mapping[str, Any], figures: Sequence[tuple[str, str, float]]) -> Iterator[list[str]]:
    """Cells of each figure that a row has: name, measured, predicted, error, error at pace, noise, luck."""
    for key, name, factor in figures:
        figure = row["figures"].get(key)
        if figure is None or (figure["measured"] is None and figure["predicted"] is None):
            continue
        mark = "*" if figure.get("within") is False else ""
        yield [name, _number(figure["measured"], factor), _number(figure["predicted"], factor),
               signed(figure["error"]) + mark, _at_pace(figure), size(figure["noise"]),
               size(figure["luck"])]  # fmt: skip


def _at_pace(figure: Mapping[str, Any]) -> str:
    """`+1.2% ±0.4%`."""
    noise = figure.get("noise_at_pace")
    return signed(figure.get("error_at_pace")) + (f" ±{noise:.1%}" if noise is not None else "")


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:,.4g}"


def signed(error: float | None) -> str:
    """`+4.2%`, or `-` where it is not known."""
    return "-" if error is None else f"{error:+.1%}"


def size(value: float | None) -> str:
    """`4.2%`, or `-` where it is not known."""
    return "-" if value is None else f"{value:.1%}"


def sign_text(right: bool | None) -> str:
    """A word on the sign of a speed-up; None: it lies within the noise."""
    return "within noise" if right is None else "right" if right else "WRONG"


def _gain_at_pace(gain: Mapping[str, Any]) -> str:
    """What would be measured had the machine been equally fast with and without; `-` where it is not known."""
    value = gain.get("measured_at_pace")
    return "-" if value is None else f"{value:.3f}"


def _crossovers(result: Mapping[str, Any]) -> Iterator[str]:
    for item in result["crossovers"]:
        yield (f"{item['policy']} stops paying: measured {_turn(item, 'measured')}; predicted "
               f"{_turn(item, 'predicted')}.")  # fmt: skip


def _turn(item: Mapping[str, Any], which: str) -> str:
    loads, turn = item["loads"], item[which]
    return {
        "crosses": f"at {turn['concurrency'] or 0:.1f} in flight",
        "always": f"not up to {loads[-1]} in flight",
        "never": f"below {loads[0]} in flight, if ever",
        "not separated": "nowhere between the loads for good",
    }[turn["says"]]


def _verdict(result: Mapping[str, Any]) -> Iterator[str]:
    verdict, replay = result["verdict"], result["replay"]
    yield (f"{verdict['within']} of {verdict['figures']} throughputs and mean TPOTs are within 5 % or the noise, "
           f"whichever is larger; the sign of on against off is right in {verdict['signs_right']} of "
           f"{verdict['signs']} cases that differ by more than the noise.")  # fmt: skip
    if result["pace"] is not None:
        pace = result["pace"]
        yield (f"By its reference point the machine took {pace['median']:.3f} times as long as when it was calibrated "
               f"({pace['low']:.3f} to {pace['high']:.3f}); knowing that, {verdict['within_at_pace']} of "
               f"{verdict['figures']} are within.")  # fmt: skip
    name, worst = max(replay["worst_errors"].items(), key=lambda item: abs(item[1]), default=("", 0.0))
    label = next((label for key, label, _ in FIGURES if key == name), name).partition(",")[0]
    yield (f"Each run simulated again with its own step times and rounds: {replay['unmatched_steps']} of "
           f"{replay['steps']:,} steps differ; the worst error is {worst:+.2%} ({label}), bound 3 %.")  # fmt: skip


def served_section(results: Sequence[Mapping[str, Any]]) -> str:
    """A section of docs/validation.md; empty without results."""
    if not results:
        return ""
    parts = [
        "## Served for real",
        "Runs of the reference engine ([reference-engine.md](reference/reference-engine.md)) beside predictions from a "
        "latency profile and the acceptance of other prompts; made with `specsim validate serve` "
        "([guide](guides/validate.md)) and kept in `scenarios/published/served.jsonl`. "
        + _READING
        + " Cells: error (noise), error at pace, its noise.",
    ]
    for result in results:
        parts += list(_one(result))
    return "\n\n".join(parts)


def _one(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {result['date']}: {result['subject']}"
    yield "\n".join(f"- {name}: {text}" if name else f"- {text}" for name, text in _facts(result))
    columns = ["load", "arm", "running", *(title for _, title in _SHORT), "on over off", "predicted"]
    gains = {(gain["load"], gain["policy"]): gain for gain in result["speedups"]}
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in result["rows"]:
        gain = gains.get((row["load"], row["policy"]))
        cells = [row["load"], row["policy"], f"{row['running_batch']:.1f}", *(_cell(row, key) for key, _ in _SHORT)]
        cells += ["-", "-"] if gain is None else [
            f"{gain['measured']:.3f} ({size(gain['noise'])})"
            + (f", {_gain_at_pace(gain)}" if gain.get("measured_at_pace") is not None else ""),
            f"{gain['predicted']:.3f}" + ("" if gain["sign_right"] in (True, None) else " **wrong sign**"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    yield "\n".join(lines)
    yield " ".join([*_crossovers(result), *_verdict(result)])


def _cell(row: Mapping[str, Any], key: str) -> str:
    figure = row["figures"][key]
    if figure["error"] is None:
        return "-"
    mark = "*" if figure.get("within") is False else ""
    paced = f", {_at_pace(figure)}" if figure.get("error_at_pace") is not None else ""
    return f"{signed(figure['error'])}{mark} ({size(figure['noise'])}){paced}"
