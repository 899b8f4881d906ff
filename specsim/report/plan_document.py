"""A plan as a report: the verdict, then what it rests on, what it assumes, and where it came from; from the JSON form.

A further part is one function from the result to a section, and its place in `_PARTS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specsim.report.config import followed, to_know
from specsim.report.document import (
    Block,
    Code,
    Document,
    Facts,
    Figures,
    Items,
    Paragraph,
    Section,
    Stored,
    TableBlock,
)
from specsim.report.plan_facts import confidence, deployment_facts, full_fleet, profile_facts, trace_facts
from specsim.report.plan_figures import (
    break_even_figure,
    load_figures,
    schedule_figure,
    speedup_maps,
    traffic_figure,
)
from specsim.report.plan_tables import plan_tables
from specsim.report.policy_names import headings, legend
from specsim.report.table import Table
from specsim.report.traffic import BINS_SHOWN, traffic_sentence

__all__ = ["plan_document"]


_Result = Mapping[str, Any]
_Tables = Mapping[str, Table]


def plan_document(result: _Result, stored: Stored) -> Document:
    """The report of a complete plan."""
    names = result["deployment"]["names"]
    tables = plan_tables(result)
    sections = [_answer(result), *(part(result, tables) for part in _PARTS), _provenance(result, stored)]
    return Document(
        title=f"Speculative decoding for {names['target']} on {names['gpu']}",
        subtitle=f"specsim plan {result['plan_id']}, {result['trace']['source']}",
        sections=tuple(section for section in sections if section is not None),
    )


def _answer(result: _Result) -> Section:
    blocks: list[Block] = [Paragraph(text, "verdict") for text in result["recommendation"]["text"]]
    blocks.append(Paragraph(confidence(result)))
    blocks += [Paragraph(f"Warning: {text}", "warning") for text in result["warnings"]]
    return Section("Answer", tuple(blocks))


def _over_load(result: _Result, tables: _Tables) -> Section:
    said = legend(headings(result["loads"]["policies"]))
    about = (
        f"Means over {result['loads']['replications']} paired replications, which meet the same requests with the "
        "same luck under every policy. Bands (off and the policy that the answer is about) and bars (the others) are "
        "95 % intervals; they cover traffic and luck. Step times are good to "
        f"±{result['profile']['relative_error']:.0%} on top of that, mostly alike for every policy: dotted lines are "
        "the banded curves with every step so much slower and faster, as far as the loads reach. Hollow markers: "
        f"the fleet cannot keep up with that load. The load of the log is {result['loads']['own_per_s']:.3g} "
        "requests/s. A policy that the engine cannot be told to follow is compared, but not recommended."
    )
    return Section("Over load", (Paragraph(f"{about} {said}".strip()), Figures(load_figures(result, tables)),
                                 TableBlock(tables["turns_by_load"])))  # fmt: skip


def _stops(result: _Result, tables: _Tables) -> Section:
    about = (
        "By step times alone, without queues: every cell is time per output token without over with k drafts; above 1 "
        "speculation pays. Thick marks stand at the running batch from which on it no longer pays, thin lines reach to "
        "where that lies if costs and acceptance were worse or better by one sigma. Grey cells do not fit the cache."
    )
    return Section(
        "Where speculation stops paying",
        (Paragraph(about), Figures((*speedup_maps(result, tables), break_even_figure(result, tables))),
         TableBlock(tables["turns_by_batch"])),
    )  # fmt: skip


def _schedule(result: _Result, tables: _Tables) -> Section:
    about = (
        f"Best number of draft tokens by running batch at {result['schedule_context_tokens']:,} tokens of context, and "
        f"how it moves with acceptance."
    )
    return Section(
        "How many drafts, and if acceptance were different",
        (Paragraph(about), Figures((schedule_figure(result, tables),)), TableBlock(tables["sensitivity"])),
    )


def _traffic(result: _Result, tables: _Tables) -> Section | None:
    if len(tables["traffic"].rows) < BINS_SHOWN:
        return None
    about = (
        f"{traffic_sentence(result)} Each bar is taken as a steady load of its mean rate, and judged by the loads "
        f"simulated on both sides of it."
    )
    return Section("When it is worth it", (Paragraph(about), Figures((traffic_figure(result, tables),))))


def _capacity(result: _Result, tables: _Tables) -> Section:
    cost = result["cost_of_speculation"]
    about = (
        f"Speculation takes {cost['kv_share_lost']:.1%} of the KV cache ({cost['kv_tokens_on']:,} tokens instead of "
        f"{cost['kv_tokens_off']:,} a replica). {full_fleet(result)}"
    )
    costs = (
        "Bounds are where no load that was simulated fails. To off is the ratio of the capacities above, with its "
        "interval, and a tie is one here too; it takes only loads at which both were simulated, so that it is not that "
        "of the two figures where one of them lies between loads far apart. Times the price of a GPU-hour is what a "
        "million output tokens cost; which GPUs to buy, specsim whatif says."
    )
    blocks = (TableBlock(tables["capacity"]), Paragraph(about), TableBlock(tables["costs"]), Paragraph(costs))
    return Section("Capacity and cost", blocks)


def _config(result: _Result, tables: _Tables) -> Section:
    config = result["config"]
    blocks: list[Block] = [*_snippets(config)]
    for other in config["alternatives"]:
        blocks.append(Paragraph(f"As good at this load, and made for others: {other['policy']}, with"))
        if config["engine"] == "vllm":
            text = json.dumps(other["speculative_config"], separators=(",", ":"))
            blocks.append(Code(f"--speculative-config '{text}'"))
        else:
            blocks += _snippets(other)
    blocks.append(Items(tuple(to_know(config))))
    engine = f"{config['engine']} {config['engine_version']}".strip()
    return Section(f"Flags for {engine} ({followed(config)})", tuple(blocks))


def _snippets(config: _Result) -> Sequence[Block]:
    command = [Code(config["command"])] if config["command"] else []
    if config.get("prefill_command"):
        command = [
            Code(config["prefill_command"], "Each prefill server"),
            Code(config["command"], "Each decode server"),
        ]
    return [*command, *(Code(text, name) for name, text in config["files"].items())]


def _settle(result: _Result, tables: _Tables) -> Section:
    return Section("What would settle it", (Paragraph(result["measure_next"]["text"]),))


def _assumptions(result: _Result, tables: _Tables) -> Section:
    notes = (*result["notes"], *result["profile"]["notes"])
    facts = (*deployment_facts(result), *profile_facts(result), *trace_facts(result))
    return Section("Assumptions", (Facts(facts), Items(tuple(dict.fromkeys((*notes, *result["trace"]["notes"]))))))


def _not_modelled(result: _Result, tables: _Tables) -> Section:
    return Section("Not modelled", (Items(tuple(result["not_modelled"])),))


def _provenance(result: _Result, stored: Stored) -> Section:
    profile, settings = result["profile"], result.get("settings")
    seeds = "not stored by this version" if settings is None else (
        f"{settings['seed']} to {settings['seed'] + result['loads']['replications'] - 1}, one a replication"
    )  # fmt: skip
    source = profile["acceptance"]["source"]
    facts = (
        ("plan", f"{result['plan_id']} in {result['database']}, stored {stored.updated_utc}"),
        ("code", f"specsim {stored.specsim_version}, simulator {stored.code_version}"),
        ("command", result.get("command") or "not stored by this version"),
        ("trace", f"{result['trace']['source']}, SHA-256 {result['trace']['sha256']}"),
        ("profile", f"{profile['kind']}: {profile['name']}, SHA-256 {profile['sha256']}; a step ±"
                    f"{profile['relative_error']:.0%}, a speed-up ±{profile['speedup_error']:.0%} (one sigma)"),
        ("without speculation", f"{profile['name_off']}, SHA-256 {profile['sha256_off']}"),
        ("acceptance", f"{source} (±{profile['acceptance']['relative_error']:.0%})"),
        ("seeds", seeds),
        ("print again", f"specsim report {result['plan_id']}"),
    )  # fmt: skip
    sources = tuple(f"{name}: {text}" for name, text in profile["sources"].items())
    return Section("Provenance", (Facts(facts), Items(sources, "Sources of the cost factors")))


_PARTS: tuple[Callable[[_Result, _Tables], Section | None], ...] = (
    _over_load,
    _stops,
    _schedule,
    _traffic,
    _capacity,
    _config,
    _settle,
    _assumptions,
    _not_modelled,
)
"""Sections between the answer and the provenance, in order."""
