"""A draft model of few layers, trained to say what its target says.

It has the target's architecture, embedding and output head, which stay as they are, and some of its layers, evenly
spread, which are trained (as DistilBERT begins, Sanh et al. 2019, arXiv 1910.01108). The loss is the divergence
KL(target || draft) at a quarter of the positions, drawn anew each step since the head is most of the work, plus the
smooth L1 distance of the hidden states before the head at all of them (as EAGLE, arXiv 2401.15077). The target's side
is known already: it is what the text was drawn from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers

from calibrate.distil.own_text import Written
from calibrate.models import default_dtype
from calibrate.models.load import first_layers_config
from specsim.errors import ScenarioError

__all__ = ["Agreement", "Training", "agreement", "begin_student", "train"]

_COMPARED = 0.25
"""Share of positions whose laws are compared in a step."""
_HIDDEN_WEIGHT = 1.0
_LEARNING_RATE = 5e-4
_WARM_UP = 0.1
_CLIP = 1.0
_LAYER = re.compile(r"^(.*\.layers\.)(\d+)(\..*)$")


@dataclass(frozen=True, slots=True)
class Training:
    """How long and in what portions is trained."""

    steps: int = 200
    sequences: int = 12
    """Of a step."""
    learning_rate: float = _LEARNING_RATE
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a draft model agrees with its target on text that neither was trained on."""

    positions: int
    likeliest: float
    """Share of positions at which both find the same token likeliest: greedy acceptance of a first draft."""
    overlap: float
    """Mean of sum(min(target, draft)): acceptance of a first draft at temperature 1 (arXiv 2211.17192, theorem 3.5)."""


def begin_student(target: Any, num_layers: int) -> Any:
    """A copy of a transformers `...ForCausalLM` with `num_layers` of its layers, evenly spread, first and last among
    them; embedding and head do not take part in training.

    Raises:
        ScenarioError: not fewer layers than the target has.
    """
    config = target.config
    most = config.num_hidden_layers
    if not 1 <= num_layers < most:
        raise ScenarioError(f"--layers {num_layers}: the target has {most} layers, a draft model has 1..{most - 1}")
    taken = [round(n * (most - 1) / max(1, num_layers - 1)) for n in range(num_layers)]
    student: Any = transformers.AutoModelForCausalLM.from_config(
        first_layers_config(config, num_layers, config.model_type), dtype=torch.float32, attn_implementation="sdpa"
    )
    weights = target.state_dict()
    own = {}
    for name in student.state_dict():
        found = _LAYER.match(name)
        source = name if found is None else f"{found[1]}{taken[int(found[2])]}{found[3]}"
        own[name] = weights[source].float()
    student.load_state_dict(own)
    for part in (student.get_input_embeddings(), student.get_output_embeddings()):
        part.requires_grad_(False)
    return student.to(target.device)


def train(
    student: Any,
    written: Sequence[Written],
    how: Training,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train in place; the loss of every step. The same seed, text and number of threads give the same weights.

    Args:
        progress: told each step and its loss.
    """
    order = torch.Generator().manual_seed(how.seed)
    weights = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=how.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, how.steps))
    student.train()
    losses: list[float] = []
    queue: list[int] = []
    for step in range(how.steps):
        while len(queue) < how.sequences:
            queue += torch.randperm(len(written), generator=order).tolist()
        batch, queue = [written[n] for n in queue[: how.sequences]], queue[how.sequences :]
        ids, mask, target = _padded(batch, student.device)
        compared = mask & (torch.rand(mask.shape, generator=order) < _COMPARED).to(student.device)
        with _mixed(student.device):
            hidden = student.base_model(input_ids=ids, use_cache=False).last_hidden_state
            near = F.smooth_l1_loss(hidden[mask].float(), target[mask].float())
            loss = _HIDDEN_WEIGHT * near + (_divergence(student, hidden, target, compared) if compared.any() else 0.0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, _CLIP)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        progress(step + 1, losses[-1])
    student.eval()
    return losses


@torch.inference_mode()
def agreement(student: Any, written: Sequence[Written], *, at_once: int = 4) -> Agreement:
    """Of a draft model with its target, on sequences that were kept out of training."""
    same, shared, count = 0, 0.0, 0
    for first in range(0, len(written), at_once):
        ids, mask, target = _padded(written[first : first + at_once], student.device)
        with _mixed(student.device):
            hidden = student.base_model(input_ids=ids, use_cache=False).last_hidden_state
            head = student.get_output_embeddings()
            ours, theirs = head(hidden[mask]).float(), head(target[mask].to(hidden.dtype)).float()
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        shared += float(torch.minimum(ours.softmax(-1), theirs.softmax(-1)).sum())
        count += int(mask.sum())
    return Agreement(count, same / max(1, count), shared / max(1, count))


def _divergence(student: Any, hidden: torch.Tensor, target: torch.Tensor, compared: torch.Tensor) -> torch.Tensor:
    head = student.get_output_embeddings()
    with torch.no_grad():
        theirs = head(target[compared].to(hidden.dtype)).float().log_softmax(-1)
    ours = head(hidden[compared]).float().log_softmax(-1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _padded(batch: Sequence[Written], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids [rows, longest], which of them are there, hidden states [rows, longest, hidden size])."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(w.tokens) for w in batch], batch_first=True)
    states = torch.nn.utils.rnn.pad_sequence([w.hidden for w in batch], batch_first=True)
    lengths = torch.tensor([len(w.tokens) for w in batch])
    mask = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
    return ids.to(device), mask.to(device), states.to(device)


def _mixed(device: torch.device) -> Any:
    """16-bit products where the device is quickest with them."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=default_dtype(device) == torch.bfloat16)


def _rate(step: int, steps: int) -> float:
    """Rising over the first tenth, then half a cosine down to a tenth."""
    warm = max(1, round(_WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
