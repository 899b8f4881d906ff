"""Acceptance from a file of measured requests: replayed, or as the model that is fitted to them.

Models: replay, mixture with memory, per-position vector with the measured spread, constant. Leaves out: whether a
lookup proposed where nothing matched, when the file does not say; a share of matching positions is assumed then.
Numbers: the user's file.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from functools import lru_cache
from pathlib import Path

from specsim.acceptance import AcceptanceModel, Empirical, Measured, PerPosition, fit_mixture, read_measured
from specsim.closed_forms import alpha_from_length, conditionals_from_lengths
from specsim.config import AcceptanceKind, Speculation
from specsim.errors import ProfileError

__all__ = ["LOOKUP_FIRST_DRAFT", "measured_acceptance", "measured_requests"]

LOOKUP_FIRST_DRAFT = 0.72
"""First-position acceptance where an n-gram lookup proposes (SmolLM2-135M); splits figures over all rounds in two."""
_SPREAD_K = 3
_LARGEST_BYTES = 256 << 20


def measured_requests(speculation: Speculation) -> Measured:
    """The requests of the speculation's file and drafter.

    Raises:
        ProfileError: with file and line, when it cannot be read, or has no such drafter.
    """
    path = str(speculation.acceptance_file)
    try:
        state = os.stat(path)
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be read as measured acceptance ({error.strerror}); give a file of measured requests"
        ) from None
    if not stat.S_ISREG(state.st_mode):  # reading a pipe could wait for ever
        raise ProfileError(f"{path}: is not a regular file; give a file of measured requests")
    if state.st_size > _LARGEST_BYTES:
        raise ProfileError(f"{path}: is larger than {_LARGEST_BYTES >> 20} MiB; give some thousand measured requests")
    return _read(path, speculation.acceptance_drafter or speculation.method, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read(path: str, drafter: str, changed_ns: int, size: int) -> Measured:
    return read_measured(Path(path), drafter=drafter)


def measured_acceptance(speculation: Speculation, requests: Measured) -> tuple[AcceptanceModel, str]:
    """The model that the speculation asks for, of these requests: `(model, one line that says where it is from)`."""
    lookup = speculation.drafter.varies
    rate = 1.0
    if lookup and requests.drafts is None:
        rate = min(1.0, requests.match_rate / LOOKUP_FIRST_DRAFT)
    elif requests.drafts is not None:
        rate = Empirical.of(requests).proposal_rate
    kind: AcceptanceKind = speculation.acceptance_model or "replay"
    counts = Counter(requests.tasks)
    tasks = ", ".join(f"{count} {task}" for task, count in counts.items() if task)
    said = f"{requests.name}: {len(requests.runs)} requests" + (f" ({tasks})" if tasks and len(counts) > 1 else "")
    if requests.on is not None:
        said += f", {requests.on.sentence}"
    if lookup and requests.drafts is None:
        said += f", taken as proposing at {rate:.3g} of the positions"
    model, how = _model(kind, requests, rate, max(speculation.num_spec_tokens))
    return model, f"{said}; {how}"


def _model(kind: AcceptanceKind, requests: Measured, rate: float, deepest: int) -> tuple[AcceptanceModel, str]:
    if kind == "replay":
        return Empirical.of(requests, proposal_rate=rate), "replayed, those of similar output length first"
    if kind == "mixture":
        return _fitted(requests, rate), "as a mixture with spread between requests and memory between rounds"
    lengths = requests.lengths()
    if kind == "constant":
        k = min(deepest, len(lengths))
        alpha = alpha_from_length(min(1.0 + (lengths[k - 1] - 1.0) / rate, k + 1.0), k)
        return PerPosition((alpha,), proposal_rate=rate, name="constant"), (
            f"as a constant acceptance of {alpha:.3f}, from {lengths[k - 1]:.3f} tokens a round at k={k}"
        )
    vector = conditionals_from_lengths(lengths[:20], proposal_rate=rate)
    model = PerPosition(vector, proposal_rate=rate, name=requests.name)
    spread = requests.spread(_SPREAD_K) if len(requests.runs) > 1 else 0.0
    if spread > 0:
        model = model.with_spread(spread, _SPREAD_K)
    return model, "by draft position, requests differing as measured, rounds independent"


@lru_cache(maxsize=8)
def _fitted(requests: Measured, rate: float) -> AcceptanceModel:
    name = f"mixture of {requests.name}"
    return fit_mixture(requests.runs, num_spec_tokens=requests.max_spec_tokens, proposal_rate=rate, name=name)
