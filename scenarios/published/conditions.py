"""From a row of a published table to a question that can be simulated, with everything that was assumed on the way.

Models: every cell that is blank gets a stated default; a cell that is not understood, or a deployment that does not
fit, makes the row unpredictable, with the reason in words. Nothing of what was measured is used here.
Leaves out: what the notes of a row say. Numbers: `words.toml` and the catalogue.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scenarios.acceptance import default_vector
from scenarios.hardware import gpu as find_gpu
from scenarios.lookup import one_line
from scenarios.models import model as find_model
from scenarios.published.deployments import Filled, deployment_of
from scenarios.published.rows import PublishedRow
from scenarios.published.tree_words import Tree, tree_words
from scenarios.published.units import LoadKind, load_kind_words, unit_words
from scenarios.published.words import (
    dataset_words,
    engine_words,
    fallback,
    method_words,
    target_words,
)
from scenarios.resolve import find_drafter, resolve
from scenarios.temperature import at_temperature
from scenarios.trees import verified
from specsim.acceptance import Constant, PerPosition
from specsim.config import Deployment, Slo, Speculation
from specsim.drafters import drafter
from specsim.errors import CapacityError, CatalogueError, InputError, ScenarioError
from specsim.planner.concurrency import CrossoverSettings
from specsim.planner.implied import Metric
from specsim.planner.null_model import LinearFit, NullModel, plain_roofline
from specsim.planner.published import Case
from specsim.planner.question import Question
from specsim.traces.recipe import LengthSpec

__all__ = ["Unpredictable", "cases_of"]

_SWEEP = ("source", "url_or_title", "target", "draft", "method", "k", "tree", "hardware", "n_gpus", "dtype", "engine",
          "dataset", "isl", "osl", "temperature", "load_kind", "unit")  # fmt: skip
"""Columns in which the rows of a sweep over load agree."""
_TIMES = "latency|time|duration|e2e"
_SPEEDUPS = (0.01, 100.0)
_PLAUSIBLE: Mapping[Metric, tuple[float, float, str]] = {
    "throughput": (1e-3, 1e7, "tokens/s"),
    "tpot": (1e-5, 1e3, "seconds a token"),
    "latency": (1e-4, 1e6, "seconds"),
}
"""In which a measurement can lie."""
_RATES = (1e-3, 1e4)
"""Requests/s; fewer never meet, more are beyond any replica."""
_TENSOR_PARALLEL = (1, 2, 4, 8, 16)
_HOTTEST = 2.0
_MOST_DRAFTS = 20
"""Longest proposal of a lookup that its acceptance model knows."""


@dataclass(frozen=True, slots=True)
class Unpredictable:
    """A row, and why nothing can be predicted for it."""

    row: PublishedRow
    reason: str


def cases_of(rows: Sequence[PublishedRow], *, seeds: int, seed: int) -> tuple[list[Case], list[Unpredictable]]:
    """What can be simulated, in the order of the rows, and the rest with reasons."""
    cases, rest = [], []
    for row in rows:
        try:
            cases.append(_case(row, seeds, seed))
        except InputError as refusal:
            rest.append(Unpredictable(row, str(refusal)))
    return _with_sweeps(cases, rows), rest


def _case(row: PublishedRow, seeds: int, seed: int) -> Case:
    filled = Filled()
    metric, measured, absolute = _measured(row, filled)
    kind, load = _load(row)
    engine, _ = engine_words(row.engine)
    method = _method(row, filled)
    tree = _tree(row, method, engine, filled)
    prompt, output, task = _lengths(row, filled)
    concurrency = int(load) if kind == "closed" else 1
    deployment = deployment_of(row, kind, concurrency, filled)
    length, length_said = _length(row, tree, method, filled)
    given = length is not None
    speculation = Speculation(
        method=method,
        draft=_draft(row, method, filled),
        num_spec_tokens=(max(1, tree.depth),),
        task=None if given else task,
        acceptance_length=length,
        acceptance_model=None if given else "vector",
        tree_nodes=tree.nodes,
        topk=_topk(tree, method),
        tree_levels=tree.levels,
        options=dict(tree.options),
        # an acceptance that was measured has the temperature of its row in it
        temperature=None if given else _temperature(row, tree),
    )
    base_of = replace(speculation, task=task, acceptance_length=None, acceptance_model="vector", temperature=None)
    speculation = _with_head(speculation, deployment, filled)
    deployment, question = _resolved(row, deployment, speculation, filled)
    base = _base(base_of, question, speculation.temperature)
    if not given and speculation.method != method:
        question = replace(question, acceptance=base, acceptance_source=f"that of {method}")
    if not given and tree.depth:
        filled.add("acceptance", f"acceptance from the catalogue: {question.acceptance_source}")
    settings = CrossoverSettings(
        concurrency=(concurrency,),
        prompt=LengthSpec(prompt),
        output=LengthSpec(output),
        num_spec_tokens=tree.depth,
        seeds=seeds,
        seed=seed,
    )
    return Case(
        id=row.id,
        source=row.source or row.id,
        target=question.names["target"],
        gpu=question.names["gpu"],
        method=method,
        unit=row.unit,
        question=question,
        settings=settings,
        rate_per_s=load if kind == "rate" else None,
        metric=metric,
        measured=measured,
        baseline=absolute[0],
        speculative=absolute[1],
        acceptance_given=given,
        acceptance_said=length_said,
        base=base,
        null=_null(question, deployment),
        assumed=tuple(filled.said),
        incomplete=tuple(dict.fromkeys(filled.essential)),
        sets=row.sets,
    )


def _measured(row: PublishedRow, filled: Filled) -> tuple[Metric, float, tuple[float | None, float | None]]:
    """(metric, speed-up, (baseline, with speculation) in tokens/s or seconds where they can be compared)."""
    metric, factor, per_gpu = unit_words(row.unit)
    base, spec = row.baseline_value, row.spec_value
    lower_is_better = factor != -1.0 if metric == "tpot" else bool(re.search(_TIMES, row.unit, re.IGNORECASE))
    ratio = None
    if base is not None and spec is not None:
        ratio = base / spec if lower_is_better else spec / base
    if row.speedup is None and ratio is None:
        raise ScenarioError("nothing was measured: speedup is blank, and so is one of baseline_value and spec_value")
    if row.speedup is not None and ratio is not None and abs(row.speedup / ratio - 1.0) > 0.02:
        filled.add("speedup", f"the row's speedup {row.speedup:g} is used, though its values give {ratio:.3f}")
    speedup = row.speedup if row.speedup is not None else ratio
    assert speedup is not None
    if not _SPEEDUPS[0] <= speedup <= _SPEEDUPS[1]:
        raise ScenarioError(
            f"a speed-up of {speedup:.3g} lies outside {_SPEEDUPS[0]:g}..{_SPEEDUPS[1]:g}; check values and unit"
        )
    if metric == "throughput" and row.load_kind and load_kind_words(row.load_kind) == "rate":
        # arrivals fix the throughput: what differs is latency
        filled.add("unit", "speedup taken as that of end-to-end latency, since a rate of arrivals fixes the throughput")
        return "latency", speedup, (None, None)
    if factor is None:
        return metric, speedup, (None, None)
    scale = factor * (row.n_gpus or 1 if per_gpu else 1)
    # factor -1: tokens/s of one request
    absolute = [None if v is None else 1.0 / v if factor == -1.0 else v * scale for v in (base, spec)]
    for column, given, value in zip(("baseline_value", "spec_value"), (base, spec), absolute, strict=True):
        low, high, what = _PLAUSIBLE[metric]
        if value is not None and not low <= value <= high:
            raise ScenarioError(
                f"{column} {given:g} in '{one_line(row.unit)}' is {value:.3g} {what}, and none lies outside {low:g}.."
                f"{high:g}; is the unit right?"
            )
    return metric, speedup, (absolute[0], absolute[1])


def _load(row: PublishedRow) -> tuple[LoadKind, float]:
    if row.load is None:
        raise ScenarioError("load is blank: nothing says how many requests ran at once")
    kind = load_kind_words(row.load_kind) if row.load_kind else "closed"
    if kind == "rate" and not _RATES[0] <= row.load <= _RATES[1]:
        raise ScenarioError(
            f"load {row.load:g} requests/s lies outside the {_RATES[0]:g}..{_RATES[1]:g} of one replica"
        )
    if kind == "closed" and (row.load != int(row.load) or not 1 <= row.load <= 65536):
        raise ScenarioError(f"load {row.load:g} is not a number of requests in 1..65536")
    return kind, row.load


def _method(row: PublishedRow, filled: Filled) -> str:
    if row.k == 0:
        try:
            method = method_words(row.method, row.draft)
        except ScenarioError:
            filled.add("drafter", "the loaded drafter is not named: an EAGLE head is assumed")
            return "eagle"
    elif not row.method and not row.draft:
        filled.add("method", "no method is named: EAGLE assumed")
        return "eagle"
    else:
        method = method_words(row.method, row.draft)
    return method


def _tree(row: PublishedRow, method: str, engine: str, filled: Filled) -> Tree:
    if row.k == 0:
        return Tree(0)
    tree = tree_words(row.tree, k=row.k, method=method, engine=engine)
    length = row.mean_accepted_len or 1.0
    if tree.assumed and tree.nodes is None and length > tree.depth + 1:
        deeper = math.ceil(length)
        tree = replace(tree, depth=deeper, assumed=f"k={deeper}, so that {length:g} tokens a round are possible")
    if tree.depth > _MOST_DRAFTS and drafter(method).varies:
        filled.add("drafts", f"at most {_MOST_DRAFTS} of {tree.depth} drafts: longer proposals are rare")
        tree = replace(tree, depth=_MOST_DRAFTS)
    if tree.depth > 64:
        raise ScenarioError(f"k {tree.depth} is more than the 64 drafts a round that are modelled")
    filled.add("k", tree.assumed)
    filled.add("tree", tree.noted)
    return tree


def _topk(tree: Tree, method: str) -> int | None:
    """Most children of a node; 1 makes a chain of a method that drafts a tree unless it is told not to."""
    if tree.nodes is not None or tree.levels:
        return tree.topk
    return 1 if drafter(method).usual_tree is not None else None


def _temperature(row: PublishedRow, tree: Tree) -> float | None:
    """The row's sampling temperature, where something is drafted."""
    if row.temperature is None or not tree.depth:
        return None
    if row.temperature > _HOTTEST:
        raise ScenarioError(f"temperature {row.temperature:g} is more than the {_HOTTEST:g} up to which it is modelled")
    return row.temperature


def _lengths(row: PublishedRow, filled: Filled) -> tuple[float, float, str | None]:
    found = dataset_words(row.dataset)
    usual: dict[str, Any] = dict(fallback()) if found is None else dict(found)
    where = f"{row.dataset}: {usual['source']}" if found else usual["source"]
    lengths = []
    for name, value in (("isl", row.isl), ("osl", row.osl)):
        if value is None:
            filled.add(name, f"{name} {usual[name]:g} ({where})")
            value = float(usual[name])
        lengths.append(float(max(1, round(value))))
    return lengths[0], lengths[1], None if found is None else found["task"]


def _length(row: PublishedRow, tree: Tree, method: str, filled: Filled) -> tuple[float | None, str]:
    """Mean acceptance length that the row states, bonus included, and how it was read."""
    most = tree.depth + 1.0
    if tree.depth == 0:
        return 1.0, "nothing is drafted"
    if row.mean_accepted_len is not None:
        length, said = row.mean_accepted_len, "mean acceptance length of the row"
        if length < 1.0:
            length += 1.0
            filled.add("acceptance", f"mean_accepted_len {row.mean_accepted_len:g} is below 1: the bonus is added")
    elif row.acceptance_rate is not None:
        drafted = tree.drafts
        length, said = 1.0 + row.acceptance_rate * tree.depth, "acceptance rate of the row, accepted over drafted"
        if drafted != tree.depth:
            filled.add("acceptance", "acceptance rate of a tree taken as accepted over depth")
        if method == "ngram":
            filled.add("acceptance", "acceptance rate of a lookup taken over all rounds")
    else:
        return None, ""
    if length > most + 1e-9:
        raise ScenarioError(
            f"mean acceptance length {length:g} is more than the {most:g} of depth {tree.depth}, bonus included"
        )
    return length, said


def _draft(row: PublishedRow, method: str, filled: Filled) -> str | None:
    """Catalogue name of a draft model that the row names; heads of a target are those of the catalogue."""
    words = row.draft.strip()
    if method != "draft_model" or not words or re.fullmatch(r"none|n/?a|-+|draft model|small draft", words.lower()):
        if method == "draft_model":
            filled.add("draft", "the draft model is not named: the usual one of the target is assumed")
        return None
    name, said = target_words(words)
    filled.add("draft", said)
    return name


def _with_head(speculation: Speculation, deployment: Deployment, filled: Filled) -> Speculation:
    """An EAGLE head in the place of an MTP layer that the target (or what stands in for it) does not ship."""
    if speculation.method != "mtp" or speculation.draft is not None:
        return speculation
    try:
        find_drafter(find_model(deployment.target), speculation)
    except CatalogueError:
        filled.add("draft", f"an EAGLE head is costed as the MTP layer, which {deployment.target} does not ship")
        return replace(speculation, method="eagle")
    return speculation


def _resolved(
    row: PublishedRow, deployment: Deployment, speculation: Speculation, filled: Filled
) -> tuple[Deployment, Any]:
    counts = _TENSOR_PARALLEL if row.n_gpus is None and deployment.tp == 1 else (deployment.tp,)
    refusal: InputError | None = None
    for tp in counts:
        tried = replace(deployment, tp=tp)
        try:
            question = resolve(tried, speculation, Slo())
        except CapacityError as error:
            refusal = refusal or error
            continue
        if row.n_gpus is None and deployment.tp == 1:
            filled.add("n_gpus", f"tp {tp}" + ("" if tp == 1 else ", the smallest that fits"))
        return tried, question
    assert refusal is not None
    raise refusal


def _base(speculation: Speculation, question: Question, temperature: float | None) -> PerPosition:
    """Published acceptance of the method, by level where drafts form a tree; a constant where none was published."""
    target = find_model(question.deployment.target)
    try:
        chain: PerPosition = default_vector(speculation.method, target.name, speculation.task)[0]
    except ScenarioError:
        chain = Constant(0.7)
    if temperature is not None:
        deepest = max(speculation.num_spec_tokens)
        lowered = at_temperature(chain, speculation.drafter, temperature, speculation.draft_sampling, deepest)[0]
        assert isinstance(lowered, PerPosition), "a vector stays one"
        chain = lowered
    found = verified(speculation, target, chain).acceptance
    assert isinstance(found, PerPosition), "a vector stays one"
    return found


def _null(question: Question, deployment: Deployment) -> NullModel:
    names = question.names
    plain = deployment.weight_dtype in (None, "bf16", "fp16") and deployment.kv_dtype in ("bf16", "fp16")
    fits = names["target"] == "llama-3.1-8b" and names["gpu"].startswith("H100 SXM") and deployment.tp == 1 and plain
    if fits and question.speculation.method in ("eagle", "eagle3", "ngram"):
        return LinearFit()
    target, gpu = find_model(deployment.target), find_gpu(deployment.gpu)
    draft = find_drafter(target, question.speculation)
    return plain_roofline(
        target, gpu, tp=deployment.tp, weight_dtype=deployment.weight_dtype, kv_dtype=deployment.kv_dtype, draft=draft
    )


def _with_sweeps(cases: Sequence[Case], rows: Sequence[PublishedRow]) -> list[Case]:
    """Names the sweep of every case that has at least one other load in it."""
    by_id = {row.id: row for row in rows}
    loads: dict[tuple[Any, ...], set[float]] = {}
    names: dict[tuple[Any, ...], str] = {}
    keys = {}
    for case in cases:
        row = by_id[case.id]
        key = keys[case.id] = tuple(getattr(row, name) for name in _SWEEP)
        loads.setdefault(key, set()).add(row.load or math.nan)
        names.setdefault(key, case.id)
    return [
        replace(case, sweep=names[keys[case.id]])
        if len(loads[keys[case.id]]) > 1 and case.settings.num_spec_tokens
        else case
        for case in cases
    ]
