"""Text that a target writes by itself, with its hidden states: all that a drafter of it has to learn from.

A chat model first writes a question, as a user would after the opening of its own template, and then answers it (Xu et
al. 2024, Magpie, arXiv 2406.08464); other models go on from their first token. Given texts are continued as well.
Leaves out: conversations of several turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calibrate.engine.prompts import cut_prompts
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache
from calibrate.rejection import sampling_law

__all__ = ["Written", "continued", "own_prompts"]

_AT_A_TIME = 64
_QUESTION_TOKENS = 40
_PASSAGE_TOKENS = 48
_CONTENT = "\N{SNOWMAN}"
"""Stands for what a user says while the opening of a template is looked for."""


@dataclass(frozen=True)
class Written:
    """One sequence."""

    tokens: tuple[int, ...]
    """Prompt and continuation."""
    hidden: torch.Tensor
    """[tokens, hidden size] of the target behind its last norm, bfloat16; row n is what token n + 1 was drawn from."""


def own_prompts(
    model: FlatModel, tokenizer: Any, count: int, *, texts: Sequence[int], temperature: float, seed: int
) -> list[list[int]]:
    """`count` prompts: every second one a passage of `texts` where there are any, the others made up by the model."""
    passages = count // 2 if texts else 0
    length = min(_PASSAGE_TOKENS, len(texts))
    cut = cut_prompts(texts, [length] * passages, seed=seed)
    opening = _opening(tokenizer)
    asked = continued(
        model, [opening] * (count - passages), _QUESTION_TOKENS, temperature=temperature, seed=seed,
        end=tokenizer.eos_token_id,
    )  # fmt: skip
    made = [_question(tokenizer, opening, written.tokens[len(opening) :]) for written in asked]
    return [prompt for pair in zip(cut, made, strict=False) for prompt in pair] + made[passages:]


def _opening(tokenizer: Any) -> list[int]:
    """What comes before a user's words; without a template, the token that begins a text."""
    if getattr(tokenizer, "chat_template", None):
        text: str = tokenizer.apply_chat_template([{"role": "user", "content": _CONTENT}], tokenize=False)
        found: list[int] = tokenizer.encode(text.split(_CONTENT)[0], add_special_tokens=False)
        if found:
            return found
    return [next(t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if t is not None)]


def _question(tokenizer: Any, opening: list[int], said: Sequence[int]) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return [*opening, *said]
    content = tokenizer.decode(said, skip_special_tokens=True).strip()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


@torch.inference_mode()
def continued(
    model: FlatModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    temperature: float,
    seed: int,
    end: int | None,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Written]:
    """Prompts, each with up to `tokens` tokens that the model adds until `end`; the same seed, the same text.

    Args:
        progress: told how many sequences are finished.
    """
    found: list[Written] = []
    for first in range(0, len(prompts), _AT_A_TIME):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + first)
        found += _together(model, prompts[first : first + _AT_A_TIME], tokens, temperature, generator, end)
        progress(len(found))
    return found


def _together(
    model: FlatModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperature: float,
    generator: torch.Generator,
    end: int | None,
) -> list[Written]:
    cache = SlotCache(len(prompts), max(map(len, prompts)) + tokens)
    texts = [list(prompt) for prompt in prompts]
    states: list[list[torch.Tensor]] = [[] for _ in prompts]
    live, contexts = list(range(len(prompts))), [0] * len(prompts)
    for step in range(tokens + 1):
        parts = [Part(n, contexts[n], len(texts[n]) - contexts[n]) for n in live]
        batch = FlatBatch([t for n in live for t in texts[n][contexts[n] :]], parts)
        hidden = model.forward(batch, cache)
        for n, rows in zip(live, hidden.split([part.num_tokens for part in parts]), strict=True):
            states[n].append(rows.to(torch.bfloat16).cpu())
            contexts[n] = len(texts[n])
            cache.commit(n, contexts[n])
        if step == tokens:
            break
        logits = model.logits(hidden[batch.last_rows]).float()
        law = sampling_law(logits, temperature=temperature) if temperature else None
        drawn = logits.argmax(-1) if law is None else torch.multinomial(law.cpu(), 1, generator=generator)[:, 0]
        for n, token in zip(live, drawn.tolist(), strict=True):
            texts[n].append(token)
        live = [n for n in live if texts[n][-1] != end]
        if not live:
            break
    # a token that ended a text was never computed
    return [Written(tuple(text[: len(h)]), h) for text, h in zip(texts, map(torch.cat, states), strict=True)]
