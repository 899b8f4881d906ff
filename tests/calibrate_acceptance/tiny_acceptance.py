"""A tiny target that lies on the disk like a published model, with a tokenizer of words and a chat template."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

for folder in ("calibrate_models", "reference_engine"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

from tiny import VOCAB, causal_lm  # noqa: E402

__all__ = ["TEMPLATE", "save_model", "write_jsonl"]

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
_NAMES = ["<unk>", "<s>", "</s>", "user", "assistant", "system"]


def save_model(
    folder: Path,
    *,
    template: str | None = TEMPLATE,
    tokenizer: bool = True,
    words: Sequence[str] = (),
    noise: float = 0.0,
    **changes: Any,
) -> Path:
    """A model of `tiny`, 32 bits; its tokens are `w6`, `w7`, ... but for a few names.

    Args:
        words: of the tokens behind the names, instead of `w6`, ...
        noise: how far its weights are moved from those of the model without noise.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    model = causal_lm(dtype=torch.float32, **changes)
    if noise:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(7)
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight += noise * torch.randn_like(weight)
    model.save_pretrained(folder)
    if tokenizer:
        size = changes.get("vocab_size", VOCAB)
        names = [*_NAMES, *(words or [f"w{n}" for n in range(len(_NAMES), size)])]
        fast = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
        fast.pre_tokenizer = WhitespaceSplit()
        wrapped = PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
        wrapped.chat_template = template
        wrapped.save_pretrained(folder)
    return folder


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path
