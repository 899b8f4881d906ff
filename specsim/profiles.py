"""Latency profiles: the seconds that a pass costs, as few terms with units, agreed between measuring and simulating.

A profile is analytic (from datasheets, `specsim.analytic`), measured, imported or transferred; it always says
which, how sure it is, and where each term came from. `specsim.latency` turns it into seconds of a step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from specsim.drafters.base import DraftMode
from specsim.errors import ProfileError, nearest
from specsim.evidence import Evidence
from specsim.type_checks import check_types

__all__ = ["PROFILE_VERSION", "LatencyProfile", "PassCost", "ProfileKind", "ZeroDrafts"]

PROFILE_VERSION = 1
_LARGEST_ERROR = 10.0
"""Largest relative error of a step with which a profile still says something."""

ProfileKind = Literal["analytic", "measured", "imported", "transferred"]
ZeroDrafts = Literal["synced", "stale", "skipped"]


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one forward pass of one model on its GPUs, by what the pass contains.

    Matrix work and attention run as separate kernels one after the other, so their times add; within matrix work,
    reading weights and computing overlap partly, which `knee` describes:
    `(memory**knee + compute**knee) ** (1 / knee)` (1 adds them, large values take the larger one).

    Raises:
        ProfileError: when a term is negative or not finite.
    """

    weights_s: float
    """Read every weight that each token needs (attention, dense MLP, shared experts), once a pass."""
    token_s: float
    """Matrix compute per token in the pass, output head left out."""
    head_weights_s: float
    """Read the output head, once a pass."""
    head_row_s: float
    """Output head and sampling compute per row of logits."""
    kv_token_s: float
    """Read one cached token in every full-attention layer."""
    kv_pair_s: float
    """Compute one (query, key) pair in every full-attention layer, as prefill does it."""
    fixed_s: float
    """Launches, norms, and latency of collectives, once a pass."""
    collective_token_s: float = 0.0
    """Collectives per token in the pass."""
    windowed_kv_token_s: float = 0.0
    """Read one cached token, inside the window, in every windowed layer."""
    windowed_kv_pair_s: float = 0.0
    """Compute one (query, key) pair in every windowed layer."""
    window_tokens: int = 0
    """Window of the windowed layers; 0 when there are none."""
    experts_s: float = 0.0
    """Read all routed experts of all MoE layers; a pass reads the share that its tokens touch."""
    num_experts: int = 0
    experts_per_token: int = 0
    expert_sharing: float = 1.0
    """Exponent in (0, 1]: w neighbouring tokens of one request touch as many experts as `w ** expert_sharing`
    independent ones; 1 means that neighbours share no more than strangers."""
    knee: float = 1.0
    decode_kv_pair_s: float = 0.0
    """The same for decoding and verifying, where another kernel works (MLA attends in the latent space); 0: as
    `kv_pair_s`."""
    attention_knee: float = 0.0
    """How reading the cache and computing pairs overlap, as `knee`; 0: the larger of the two counts."""
    request_s: float = 0.0
    """Per decoding request in the pass: attention that is launched for each sequence on its own."""
    sample_row_s: float = 0.0
    """Sampling per row of logits, where it is measured apart from the output head."""
    size_factors: tuple[tuple[int, float], ...] = ()
    """(tokens, factor), tokens rising: what matrix work over so many tokens takes beside the smooth law, since kernels
    are chosen by size; in between by the logarithms, beyond both ends as at the end. (): 1 everywhere."""
    head_factors: tuple[tuple[int, float], ...] = ()
    """The same for the output head, by rows."""

    def __post_init__(self) -> None:
        for name in ("size_factors", "head_factors"):
            given = getattr(self, name)
            if isinstance(given, list | tuple):  # JSON has lists
                rows = tuple(tuple(row) if isinstance(row, list) else row for row in given)
                object.__setattr__(self, name, rows)
        check_types(self, "profile term", ProfileError)
        for name in ("size_factors", "head_factors"):
            table = getattr(self, name)
            sizes = [size for size, _ in table]
            if sizes != sorted(set(sizes)) or not all(n >= 1 for n in sizes):
                raise ProfileError(f"profile term {name} must have rising whole numbers first, got {sizes}")
            if not all(factor > 0 for _, factor in table):
                raise ProfileError(f"profile term {name} must have factors above 0, got {list(table)}")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name.endswith("_factors"):
                continue
            low = 1.0 if f.name == "knee" else 0.0
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= low):
                raise ProfileError(f"profile term {f.name} must be finite and >= {low:g}, got {value!r}")
        if 0 < self.attention_knee < 1:
            raise ProfileError(f"profile term attention_knee must be 0 or at least 1, got {self.attention_knee!r}")
        if not 0.0 < self.expert_sharing <= 1.0:
            raise ProfileError(f"profile term expert_sharing must lie in 0..1 and above 0, got {self.expert_sharing!r}")


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """What one step of one replica costs, and how much to trust it.

    Raises:
        ProfileError: when a field is out of range or the drafter is missing for a mode that needs one.
    """

    name: str
    kind: ProfileKind
    target: PassCost
    draft: PassCost | None = None
    """One pass of the drafter, of one head in mode `heads`; None for methods without a model."""
    draft_mode: DraftMode = "none"
    """`serial`: num_spec_tokens passes a round; `parallel`: one; `block`: one over k + 1 queries a request; `heads`:
    num_spec_tokens heads at once; `none`: no model."""
    draft_catches_up: bool = True
    """Whether the drafter's first pass also takes every token of the step, so that its own cache is complete."""
    draft_rows_fixed: int = 0
    """Rows of the drafter's first pass a request beyond those tokens ..."""
    draft_rows_per_draft: int = 0
    """... and further ones for each draft."""
    draft_catch_up_share: float = 1.0
    """Share of a token's matrix work in the drafter that catching up costs (`block`: keys and values only)."""
    verify_skip_share: float = 0.0
    """Share of a draft's matrix work in the target that drafting has done already (layer skipping)."""
    host_s: float = 0.0
    """Scheduling, sampling and detokenising on the host that is not hidden behind the device, per step."""
    host_request_s: float = 0.0
    """The same per decoding request and step: scheduling, input preparation and detokenising grow with the batch."""
    speculation_host_s: float = 0.0
    """Extra host and reject-sampling time per step in which drafts are verified or proposed."""
    speculation_request_s: float = 0.0
    """The same per decoding request: its drafts are accepted or rejected one request after another."""
    loaded_host_s: float = 0.0
    """Extra time per step merely because the speculation machinery is loaded (paid at k = 0 too)."""
    loaded_request_s: float = 0.0
    """The same per decoding request and step."""
    lookup_request_s: float = 0.0
    """Host time of an n-gram or suffix lookup per decoding request and step."""
    at_zero_drafts: ZeroDrafts = "skipped"
    """What a drafter with a cache does in steps after which nothing is drafted. `synced`: its first pass runs all the
    same, so that the cache stays complete (vLLM, SGLang); `stale`: nothing, and drafts of requests that computed tokens
    in such a step never match again (TensorRT-LLM's one-model path); `skipped`: nothing, at no harm."""
    switch_s: float = 0.0
    """Extra seconds of a step whose k is not that of the step before."""
    verify_reads_kv_once: bool = True
    """Whether the attention kernel shares cached-KV reads over the 1 + k queries of a request."""
    verify_unsplit_requests: float = 0.0
    """Requests that fill the GPU when the attention kernel does not split the cache of a request with several
    queries (FlashAttention 2); below it verify reads the cache slower in proportion. 0: the kernel splits."""
    captured_tokens_max: int = 0
    """Largest token count with a captured graph; 0, and no `captured_requests`: everything is captured, unpadded."""
    captured_requests: tuple[int, ...] = ()
    """Numbers of decoding requests with a captured graph, rising, for engines that capture by requests."""
    captured_exactly: bool = False
    """Whether a step must have one of those numbers, instead of being padded to the next."""
    uncaptured_s: float = 0.0
    """Extra seconds of a pure decode step that no captured graph holds."""
    pass_tokens_max: int = 0
    """Most tokens of one target pass; a larger step takes several, each reading the weights. 0: any."""
    host_overlaps: bool = False
    """Whether `host_s` and `host_request_s` run beside the rest of the step, so that only what is longer shows."""
    mixed_s: float = 0.0
    """Extra seconds of a step that holds a prefill chunk (piecewise instead of full graph)."""
    relative_error: float = 0.0
    """One-sigma relative error of a predicted step; 0 only for exact test profiles."""
    covers: Mapping[str, str] = field(default_factory=dict)
    """target, draft, gpu, tp, dtypes, attention backend, engine version, date, device: what it holds for."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Term or factor -> where the number came from."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader: what was extrapolated, what is not modelled."""
    evidence: Evidence | None = None
    """Of measured and imported profiles: points, hold-out error, intervals and the range in which terms hold."""

    def __post_init__(self) -> None:
        check_types(self, "profile", ProfileError)
        if self.kind not in ("analytic", "measured", "imported", "transferred"):
            raise ProfileError(
                f"profile {self.name}: kind '{self.kind}' is not analytic, measured, imported or transferred"
            )
        if self.draft_mode not in get_args(DraftMode):
            raise ProfileError(
                f"profile {self.name}: draft_mode '{self.draft_mode}' is not one of {', '.join(get_args(DraftMode))}"
            )
        if self.at_zero_drafts not in get_args(ZeroDrafts):
            raise ProfileError(f"profile {self.name}: at_zero_drafts '{self.at_zero_drafts}' is not one of "
                               f"{', '.join(get_args(ZeroDrafts))}")  # fmt: skip
        if (self.draft is None) != (self.draft_mode == "none"):
            raise ProfileError(f"profile {self.name}: draft_mode '{self.draft_mode}' does not fit draft "
                               f"{'missing' if self.draft is None else 'given'}")  # fmt: skip
        for name in ("host_s", "host_request_s", "speculation_host_s", "speculation_request_s", "loaded_host_s",
                     "loaded_request_s", "lookup_request_s", "switch_s", "verify_unsplit_requests", "uncaptured_s",
                     "captured_tokens_max", "mixed_s", "relative_error", "pass_tokens_max"):  # fmt: skip
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise ProfileError(f"profile {self.name}: {name} must be finite and >= 0, got {value!r}")
        if self.relative_error > _LARGEST_ERROR:
            raise ProfileError(f"profile {self.name}: relative_error must be at most {_LARGEST_ERROR:g}, got "
                               f"{self.relative_error!r}; a share, as 0.05 for 5 %")  # fmt: skip
        sizes = self.captured_requests
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)
        if not whole or list(sizes) != sorted(set(sizes)):
            raise ProfileError(
                f"profile {self.name}: captured_requests must be rising whole numbers, got {list(sizes)}"
            )
        if sizes and self.captured_tokens_max:
            raise ProfileError(f"profile {self.name}: graphs are captured by tokens or by requests; leave one out")
        for name in ("draft_catch_up_share", "verify_skip_share"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value <= 1):
                raise ProfileError(f"profile {self.name}: {name} must lie in 0..1, got {value!r}")
        for name in ("draft_rows_fixed", "draft_rows_per_draft"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not -64 <= value <= 64:
                raise ProfileError(f"profile {self.name}: {name} must be a whole number in -64..64, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form; `from_dict` gives back an equal profile."""
        return {"profile_version": PROFILE_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, place: str = "profile") -> LatencyProfile:
        """Read what `to_dict` wrote; unknown or missing keys are refused with `place` and the key."""
        if not isinstance(data, Mapping):
            raise ProfileError(f"{place}: expected an object, got {type(data).__name__}")
        rest = dict(data)
        version = rest.pop("profile_version", None)
        if type(version) is not int or version != PROFILE_VERSION:
            raise ProfileError(f"{place}: profile_version is {version!r}, this specsim reads {PROFILE_VERSION}")
        try:
            values = _checked_keys(cls, rest, place)
            for key in ("target", "draft"):
                if values.get(key) is not None:
                    values[key] = PassCost(**_checked_keys(PassCost, values[key], f"{place}: {key}"))
            if values.get("evidence") is not None:
                values["evidence"] = _evidence(values["evidence"], f"{place}: evidence")
            values["notes"] = _row(values, "notes", place)
            values["captured_requests"] = _row(values, "captured_requests", place)
            return cls(**values)
        except (ProfileError, TypeError) as error:  # a record that checks itself knows no place
            raise ProfileError(str(error) if str(error).startswith(place) else f"{place}: {error}") from error

    @property
    def sha256(self) -> str:
        """Content hash: same terms, same hash."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def _evidence(data: Any, place: str) -> Evidence:
    values = _checked_keys(Evidence, data, place)
    values["flagged"] = _row(values, "flagged", place)
    for name in ("ranges", "intervals", "references"):
        pairs = values.get(name, {})
        if not isinstance(pairs, Mapping):
            raise ProfileError(f"{place}: {name} must hold two numbers each, got {_shown(pairs)}")
        for key, pair in pairs.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(_is_number, pair)):
                raise ProfileError(f"{place}: {name} must hold two numbers each, got {_shown(pair)} for {key}")
        values[name] = {key: (float(low), float(high)) for key, (low, high) in pairs.items()}
    return Evidence(**values)


def _row(values: Mapping[str, Any], name: str, place: str) -> tuple[Any, ...]:
    """The entries of an array; none where it is missing."""
    value = values.get(name, ())
    if not isinstance(value, list | tuple):
        raise ProfileError(f"{place}: {name} must be an array, got {_shown(value)}; [] where there is none")
    return tuple(value)


def _is_number(value: Any) -> bool:
    """Whether it is a number that arithmetic can hold; `Evidence` refuses infinite ones."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _checked_keys(cls: type, data: Any, place: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ProfileError(f"{place}: expected an object, got {type(data).__name__}")
    known = {f.name: f for f in fields(cls)}
    for key in data:
        if key not in known:
            raise ProfileError(f"{place}: unknown key '{key}'{nearest(str(key), known)}")
    for name, f in known.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise ProfileError(f"{place}: key '{name}' is missing")
    return dict(data)
