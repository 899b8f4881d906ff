"""`specsim calibrate latency` as one call: load, measure ceilings, target and drafter, and keep every point.

Leaves out: names of the catalogue, which the caller has resolved to sources and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calibrate.drafters.draft_model import DraftModelDrafter
from calibrate.drafters.layer_skip import LayerSkipDrafter
from calibrate.drafters.medusa import MedusaDrafter, MedusaHeads
from calibrate.drafters.ngram import NgramDrafter
from calibrate.drafters.suffix import SuffixDrafter
from calibrate.fit.assemble import architecture_of
from calibrate.latency.ceilings import least_s, measured_ceilings
from calibrate.latency.device import Device, is_out_of_memory, memory_suffices
from calibrate.latency.grid import Grid
from calibrate.latency.heads import HeadPasses, heads_of
from calibrate.latency.host import Maker, Wrap, host_points
from calibrate.latency.passes import Passes
from calibrate.latency.session import Measuring, Session
from calibrate.latency.timing import Repeats
from calibrate.models import FlatModel, load_model
from calibrate.models.head_shape import HEAD_KINDS, random_head
from calibrate.models.load import load_tokenizer
from calibrate.models.vocabulary import check_same_tokens
from calibrate.points import Point, PointFile, Setup, read_points
from specsim.drafters import Drafter, find_drafter
from specsim.errors import ScenarioError

__all__ = ["DTYPES", "Job", "Model", "measure"]

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ROOM = 0.8
"""Share of the free memory that weights may take; the rest is cache and activations."""
_LAYERS = 8
"""Layers that are built when a model does not fit, if so many do."""
_DRAFT_SHARE = 0.35
"""Share of the budget for the drafter."""
_AT_ONCE = "medusa"
"""Kind of shape that is heads on the target's last state instead of a model."""

_Drafting = FlatModel | MedusaHeads


@dataclass(frozen=True)
class Model:
    """A model to measure."""

    name: str
    """For the profile."""
    source: str | Path | Mapping[str, Any]
    """What `calibrate.models.load_model` takes."""
    shape: Mapping[str, Any]
    """Fields of `specsim.shapes.ModelShape`."""
    has_tokenizer: bool = False
    """Whether the source has a tokenizer, so that vocabularies can be compared."""


@dataclass(frozen=True)
class Job:
    """What is measured, on what, for how long."""

    target: Model
    methods: tuple[str, ...]
    device: Device
    points: str | Path
    draft: Model | None = None
    target_points: str | Path | None = None
    """Points file from which those of the target are taken, instead of being measured again."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Of the drafter, such as layers of layer_skip."""
    dtype: str = "fp32"
    tp: int = 1
    layers: int | None = None
    """Layers to build of the target; None: all that fit."""
    grid: Grid = field(default_factory=Grid)
    k_max: int | None = None
    """Most drafts a round, where more than they are verified; None: one less than the grid is wide."""
    budget_s: float = 300.0
    temperature: float = 0.0
    graphs: bool = True
    """Capture passes as graphs where the device has them; the reference engine itself launches kernel by kernel."""
    host: bool = True
    """Measure host times of the engine."""
    seed: int = 0
    repeats: Repeats = field(default_factory=Repeats)
    say: Callable[[str], None] = lambda line: None
    progress: Callable[[float, str], None] = lambda share, text: None

    @property
    def most_drafts(self) -> int:
        """Most drafts a round, at least 1."""
        return max(1, self.grid.width - 1 if self.k_max is None else self.k_max)


def measure(job: Job) -> tuple[Setup, list[Point]]:
    """Everything that the profiles of the job's methods need; resumed where the points file has it already.

    Raises:
        ScenarioError: a method that runs another model than is given, or vocabularies that do not match.
        ProfileError: a points file of another setup.
    """
    drafter = _one_drafter(job)
    dtype = DTYPES[job.dtype]
    layers = _layers(job)
    cut = layers if layers < int(job.target.shape["num_layers"]) else None
    with memory_suffices("give fewer --layers, a larger --tp, or a smaller --target or --draft"):
        model = load_model(
            job.target.source, device=job.device.torch_device, dtype=dtype, num_layers=cut, tp=job.tp, seed=job.seed
        )
        draft, job = _draft_model(job, drafter, model, dtype)
    setup = Setup(
        target=job.target.name,
        device=job.device.name,
        backend=job.device.backend,
        clock=job.device.clock,
        dtype=job.dtype,
        attention_backend=model.attention_backend,
        engine="specsim's reference engine" + ("" if job.graphs else ", nothing captured"),
        methods=job.methods,
        draft=_draft_name(job, draft),
        tp=job.tp,
        threads=job.device.threads,
        num_layers=int(job.target.shape["num_layers"]),
        measured_layers=0 if cut is None else cut,
        draft_layers=draft.num_layers if isinstance(draft, FlatModel) and job.draft is None else 0,
        temperature=job.temperature,
        shapes=_shapes(job),
        facts=dict(job.device.facts)
        | {
            "memory_bytes": f"{job.device.memory_bytes:.0f}",
            "weights": model.source if model.source.startswith("random") else "those of the checkpoint",
        }
        | _head_facts(job, draft),
    )
    with PointFile(job.points, setup) as file:
        if file.points:
            job.say(f"{job.points}: {len(file.points)} points are there already and are not measured again")
        if job.target_points is not None:
            _take_target(file, job)
        _ceilings(file, job, dtype)
        share = 1.0 if draft is None else 1.0 - _DRAFT_SHARE
        if job.target_points is None:
            _session(file, job, model, job.grid, share, cut or 0).measure([*_accepting(job), *_uncaptured(job)])
        if draft is not None:
            most = min(len(draft), job.most_drafts) if isinstance(draft, MedusaHeads) else 0
            grid = replace(job.grid, role="draft", heads=most)
            own = _DRAFT_SHARE if job.target_points is None else 1.0
            _session(file, job, draft, grid, own, 0).measure(_rounds(grid, drafter, job.most_drafts))
        if job.host:
            _host(file, job, model, draft)
        return setup, list(file.points)


def _draft_name(job: Job, draft: _Drafting | None) -> str:
    if job.draft is not None:
        return job.draft.name
    return f"first {draft.num_layers} layers of {job.target.name}" if isinstance(draft, FlatModel) else ""


def _head_facts(job: Job, draft: _Drafting | None) -> dict[str, str]:
    """Whose weights heads have that may have those of a folder."""
    if not isinstance(draft, MedusaHeads) or job.draft is None:
        return {}
    return {"draft_weights": "those of the folder" if job.draft.source else f"random, seed {job.seed}"}


def _one_drafter(job: Job) -> Drafter | None:
    """The method that runs a model, if one does."""
    found: Drafter | None = None
    for name in job.methods:
        drafter = find_drafter(name)
        if drafter is None or not drafter.runs_model:
            continue
        if drafter.loads == "head" and drafter.kind not in (*HEAD_KINDS, _AT_ONCE):
            raise ScenarioError(
                f"--method {name} drafts with a head that is not measured here; measure {', '.join(HEAD_KINDS)}, "
                f"{_AT_ONCE}, draft_model, layer_skip or a lookup"
            )
        if found is not None:
            raise ScenarioError(
                f"--method {found.name} and {name} run different drafters; measure each into a points file of its own"
            )
        found = drafter
        if drafter.loads != "layers" and job.draft is None:
            raise ScenarioError(f"--method {name} needs a drafter; give it with --draft")
    if job.draft is not None and (found is None or found.loads == "layers"):
        raise ScenarioError(f"--draft is used by none of the methods {', '.join(job.methods)}; leave it out")
    return found


def _layers(job: Job) -> int:
    """Layers of the target to build: as asked, else all, else as many as fit up to a few."""
    most = int(job.target.shape["num_layers"])
    if job.layers is not None:
        if not 1 <= job.layers <= most:
            raise ScenarioError(f"--layers {job.layers} must lie in 1..{most}, the layers of {job.target.name}")
        return job.layers
    from specsim.shapes import ModelShape

    shape = ModelShape(**{**job.target.shape, "doubtful": ()})
    size = DTYPES[job.dtype].itemsize / job.tp
    body = shape.attention_parameters + shape.dense_mlp_parameters + shape.routed_expert_parameters
    ends = (shape.embedding_parameters + (0 if shape.tie_embeddings else shape.head_parameters)) * size
    room = job.device.free_bytes() * _ROOM - ends
    fitting = int(room // (body / most * size))
    if fitting >= most:
        return most
    if fitting < 1:
        raise ScenarioError(
            f"not even one layer of {job.target.name} fits {job.device.name} beside embedding and head; raise --tp"
        )
    layers = min(_LAYERS, fitting)
    job.say(
        f"{job.target.name} does not fit the device: {layers} of its {most} layers are measured, the rest is composed"
    )
    return layers


def _draft_model(
    job: Job, drafter: Drafter | None, target: FlatModel, dtype: torch.dtype
) -> tuple[_Drafting | None, Job]:
    """What drafts, and the job with the shape that it has."""
    if drafter is None:
        return None, job
    if drafter.loads == "layers":
        from specsim.shapes import ModelShape

        shape = ModelShape(**{**job.target.shape, "doubtful": ()})
        layers = drafter.chosen(shape, job.options)["layers"]
        if layers >= target.num_layers:
            more = "; build more with --layers" if target.num_layers < shape.num_layers else ""
            raise ScenarioError(
                f"--draft-option layers={layers}: {target.num_layers} layers of the target are built, of which fewer "
                f"must draft{more}"
            )
        return target.first_layers(layers), job
    assert job.draft is not None
    if drafter.loads == "head":
        return _head(job, job.draft, target, dtype)
    check_vocabularies(job.target, job.draft)
    return load_model(job.draft.source, device=job.device.torch_device, dtype=dtype, seed=job.seed, tp=job.tp), job


def _head(job: Job, draft: Model, target: FlatModel, dtype: torch.dtype) -> tuple[_Drafting, Job]:
    """A head with random weights, or several at once, whose weights may be those of a folder."""
    from specsim.shapes import ModelShape

    shape = ModelShape(**{**draft.shape, "doubtful": ()})
    fits = {"vocab_size": shape.vocab_size, "hidden_size": shape.target_hidden_size or shape.hidden_size}
    for name, value in fits.items():
        if value != job.target.shape[name]:
            raise ScenarioError(
                f"{shape.name} is a head for a target of {name} {value}, and {job.target.name} has "
                f"{job.target.shape[name]}; name the head of this target"
            )
    if job.tp > 1:
        raise ScenarioError(f"--tp {job.tp}: heads are measured whole; measure the target alone, or at --tp 1")
    if shape.kind == _AT_ONCE:
        folder = draft.source if isinstance(draft.source, str | Path) else None
        heads, own = heads_of(shape, target, folder, dtype=dtype, seed=job.seed)
        return heads, replace(job, draft=replace(draft, shape=asdict(own)))
    return random_head(shape, device=job.device.torch_device, dtype=dtype, seed=job.seed), job


def check_vocabularies(target: Model, draft: Model) -> None:
    """Refuse a drafter whose tokens do not mean what the target's mean.

    Tokenizers are compared where both models have one; shapes alone are compared by the size of their vocabulary.

    Raises:
        ScenarioError: one has a tokenizer and the other none, or they differ, with the first token that does.
    """
    if target.has_tokenizer != draft.has_tokenizer and not _is_shape(target) and not _is_shape(draft):
        lacking = draft if target.has_tokenizer else target
        raise ScenarioError(f"{lacking.name} has no tokenizer, so that its vocabulary cannot be compared; add one")
    if target.has_tokenizer and draft.has_tokenizer:
        ours, theirs = (load_tokenizer(str(model.source)) for model in (target, draft))
        check_same_tokens(target.name, ours, draft.name, theirs)
        return
    sizes = int(target.shape["vocab_size"]), int(draft.shape["vocab_size"])
    if sizes[0] != sizes[1]:
        raise ScenarioError(
            f"{target.name} has {sizes[0]} tokens and {draft.name} {sizes[1]}: drafts "
            f"would mean nothing; use a drafter of the same family"
        )


def _is_shape(model: Model) -> bool:
    return isinstance(model.source, Mapping) or str(model.source).endswith(".json")


def _shapes(job: Job) -> dict[str, Mapping[str, Any]]:
    found = {"target": job.target.shape}
    if job.draft is not None:
        found["draft"] = job.draft.shape
    elif any(getattr(find_drafter(name), "loads", None) == "layers" for name in job.methods):
        found["draft"] = job.target.shape
    return found


def _take_target(file: PointFile, job: Job) -> None:
    """Copy the target's points out of another file of the same target on the same device, once.

    Raises:
        ScenarioError: it is another target or device, or was measured otherwise.
    """
    assert job.target_points is not None
    theirs, points, _ = read_points(job.target_points)
    ours = file.setup
    for name in ("target", "device", "backend", "clock", "dtype", "attention_backend", "engine", "tp", "threads",
                 "num_layers", "measured_layers", "temperature"):  # fmt: skip
        if getattr(ours, name) != getattr(theirs, name):
            raise ScenarioError(
                f"--target-points {job.target_points}: of {name} {getattr(theirs, name)}, here {getattr(ours, name)}; "
                f"points of the very same target are needed"
            )
    known = {point.key for point in file.points}
    taken = [p for p in points if (p.role != "draft" and not p.method) and p.key not in known]
    for point in taken:
        file.add(point)
    if taken:
        job.say(f"{job.target_points}: {len(taken)} points of the target are taken from it")


def _ceilings(file: PointFile, job: Job, dtype: torch.dtype) -> None:
    if not any(point.kind == "matrix" for point in file.points):
        for point in measured_ceilings(job.device, dtype):
            file.add(point)


def _rates(file: PointFile) -> dict[str, float]:
    names = {"copy": "copy_bytes_per_s", "matrix": "matrix_flops_per_s"}
    return {names[p.kind]: p.amount / p.seconds for p in file.points if p.kind in names}


def _session(file: PointFile, job: Job, model: _Drafting, grid: Grid, share: float, layers: int) -> Session:
    rates, shapes = _rates(file), _shapes(job)
    shape = shapes["draft" if grid.role == "draft" else "target"]
    bytes_each = DTYPES[job.dtype].itemsize / job.tp
    built = model.num_layers if isinstance(model, FlatModel) else int(shape["num_layers"])

    def least(point: Point) -> float:
        cut = replace(point, layers=point.layers or (built if built < int(shape["num_layers"]) else 0))
        # bytes and operations are shared out evenly over the GPUs of a shard
        return least_s(cut, shape, {**rates, "matrix_flops_per_s": rates["matrix_flops_per_s"] * job.tp},
                       weight_bytes=bytes_each) if rates else math.nan  # fmt: skip

    how = Measuring(
        file=file,
        time_s=job.device.time_s,
        budget_s=job.budget_s * share,
        repeats=job.repeats,
        seed=job.seed,
        say=job.say,
        progress=job.progress,
        state=job.device.state,
        roofline_s=least,
        is_out_of_memory=is_out_of_memory,
        release=job.device.release,
    )

    def make(fits: Grid) -> Passes | HeadPasses:
        if isinstance(model, MedusaHeads):
            return HeadPasses(model, job.device, temperature=job.temperature, seed=job.seed, graphs=job.graphs)
        return Passes(model, job.device, slots=fits.requests, slot_tokens=fits.slot_tokens,
                      temperature=job.temperature, seed=job.seed, graphs=job.graphs)  # fmt: skip

    return Session(how, make, grid, architecture_of(shape, built), layers=layers)


def _host(file: PointFile, job: Job, model: FlatModel, draft: _Drafting | None) -> None:
    """Host times of the reference engine, with every method of the job that it can run."""
    makers: dict[str, tuple[Maker, int]] = {}
    most = job.most_drafts
    for method in job.methods:
        if method == "ngram":
            makers[method] = (lambda wrap: NgramDrafter(), most)
        elif method == "suffix":
            makers[method] = (lambda wrap: SuffixDrafter(), most)
        elif method == "layer_skip" and isinstance(draft, FlatModel):
            makers[method] = (partial(_skipping, draft.num_layers), most)
        elif method == "draft_model" and isinstance(draft, FlatModel):
            makers[method] = (partial(_drafting, draft), most)
        elif method == "medusa" and isinstance(draft, MedusaHeads):
            makers[method] = (partial(_at_once, draft), min(most, len(draft)))
    found = host_points(
        model,
        job.device,
        makers,
        requests=sorted({1, max(1, job.grid.requests // 4), job.grid.requests}),
        temperature=job.temperature,
        seed=job.seed,
        known={(p.method, len(p.parts)) for p in file.points if p.kind == "host"},
    )
    for point in found:
        file.add(replace(point, utc=datetime.now(UTC).isoformat(timespec="seconds")))


def _skipping(layers: int, wrap: Wrap) -> LayerSkipDrafter:
    """The target that it is started with is wrapped already."""
    return LayerSkipDrafter(num_layers=layers)


def _drafting(draft: FlatModel, wrap: Wrap) -> DraftModelDrafter:
    return DraftModelDrafter(wrap.model(draft), syncs_at_zero=True)


def _at_once(heads: MedusaHeads, wrap: Wrap) -> MedusaDrafter:
    return MedusaDrafter(wrap.heads(heads))


def _accepting(job: Job) -> list[Point]:
    """Points of accepting drafts."""
    requests = sorted({1, max(1, job.grid.requests // 4), job.grid.requests})
    return [Point("accept", "target", ((job.most_drafts, 0),) * count) for count in requests]


def _uncaptured(job: Job) -> list[Point]:
    """Passes that are launched kernel by kernel beside their graphs, where the device captures."""
    if not (job.graphs and job.device.captures):
        return []
    grid = job.grid
    rows = {(1, 1), (grid.requests, 1), (grid.requests, grid.width)}
    short = min(64, grid.context_tokens)
    return [replace(grid.decode(*row, short), kind="eager") for row in sorted(rows)]


def _rounds(grid: Grid, drafter: Drafter | None, most: int) -> list[Point]:
    """Whole rounds of a drafter, held out: they check that passes, or heads, add up."""
    requests = sorted({1, max(1, grid.requests // 4)})
    if grid.heads:
        return [
            replace(grid.at_once(count, heads), kind="draft_round", is_holdout=True)
            for count in requests
            for heads in sorted({1, grid.heads})
        ]
    if drafter is None or drafter.mode != "serial" or grid.width < 2:
        return []
    caught_up = 2 if drafter.catches_up else 1
    found = []
    for count in requests:
        for drafts in sorted({1, most}):
            parts = grid.decode(count, caught_up, min(128, grid.context_tokens)).parts
            found.append(Point("draft_round", "draft", parts, drafts=drafts, is_holdout=True))
    return found
