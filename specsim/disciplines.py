"""Scheduling disciplines: what an engine does with its waiting and running requests, as a record of rules.

Models: order of prompts and decoding, chunks, what is reserved when, whom an engine lets in, whom it throws out, and
what it does beside the bare round (a step too many, placeholders). One plain scheduler and one fast replica follow any
such record. Leaves out: seconds (a LatencyProfile) and sizes (ReplicaLimits). Numbers: none; each discipline says which
engine's source it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specsim.type_checks import check_types

__all__ = [
    "DISCIPLINES",
    "LLAMACPP",
    "SGLANG",
    "STATIC",
    "TRTLLM",
    "TRTLLM_MAX_UTILIZATION",
    "VLLM",
    "Discipline",
]


@dataclass(frozen=True, slots=True)
class Discipline:
    """Rules of one engine. The defaults are those of vLLM V1."""

    name: str = "vllm"
    order: Literal["mixed", "prompts_first", "batch"] = "mixed"
    """mixed: decoding requests first, prompts take what they leave of the step; prompts_first: prompts run in steps of
    their own, before any decoding; batch: a whole batch at a time, its prompts computed together and padded to the
    longest, which nobody joins and whose finished requests stay in it to the end."""
    chunked_prefill: bool = True
    """Whether a prompt may take several steps; if not, one that is longer than the token budget is refused."""
    chunk_by_block: bool = False
    """Whether a chunk that does not end its prompt is cut to whole blocks."""
    decode_budget: Literal["cut", "seats", "none"] = "cut"
    """What the token budget means to decoding requests. cut: drafts are cut and requests left out at its end; seats: no
    more requests run than have room in it with all their drafts; none: nothing."""
    reserve: Literal["step", "whole", "slot"] = "step"
    """What a request holds: step: what its next step may write, more from step to step; whole: room for its prompt and
    all that it asked for, from admission on; slot: an equal share of the cache."""
    admission: Literal["chunk", "prompt", "estimate"] = "prompt"
    """Under `reserve` step, whom the blocks that are free let in: chunk: whose first chunk fits; prompt: whose prompt
    fits; estimate: whose prompt and output fit beside what the running ones are expected to write yet."""
    victim: Literal["last", "least_output"] = "last"
    """Who goes when blocks run out: the last admitted, or the one with least output (of those the longest prompt)."""
    requeue: Literal["head", "tail"] = "head"
    """Where in the queue it waits."""
    lookahead: Literal["drafts", "next_round"] = "drafts"
    """Room kept behind a round: drafts: as many tokens as a drafter with a cache of its own writes ahead; next_round:
    that of one more whole round."""
    prefix_caching: bool = True
    """Whether prompts can share cached prefixes at all."""
    extra_step: bool = False
    """Whether a request that has finished is in one more step, since that was scheduled before it was known."""
    first_round_placeholders: bool = False
    """Whether a request that needs one token only (everything else is cached) enters with k placeholders that are
    rejected, so that the step keeps its graph; under a constant k, and where no prompt is in the step. They are
    computed, but take no blocks."""
    hand_over: Literal["recompute", "token"] = "recompute"
    """What a decode replica does first with a prompt that a prefill replica has computed. recompute: it computes the
    last prompt token again and samples the first token itself; token: the first token came with the cache, and goes out
    when the request joins the decoding ones."""
    kept_for_decode_tokens: int = 0
    """Room that a decode replica keeps for each of its requests when it makes room for another's prompt."""

    def __post_init__(self) -> None:
        check_types(self, "discipline")


VLLM = Discipline()
"""vLLM V1 (0.33.0 sources): one budget, no phases. Asynchronous scheduling is a choice (`extra_step`)."""

SGLANG = Discipline(
    name="sglang",
    order="prompts_first",
    chunk_by_block=True,
    decode_budget="none",
    admission="estimate",
    victim="least_output",
    requeue="tail",
    lookahead="next_round",
    extra_step=True,
    hand_over="token",
    kept_for_decode_tokens=512,
)
"""SGLang (0.5 sources): prefill batches before decode batches, admission by an estimate of what is to come, retraction.
With speculation it retracts from the end of the batch, which is the last admitted."""

TRTLLM = Discipline(
    name="trtllm",
    chunked_prefill=False,
    chunk_by_block=True,
    decode_budget="seats",
    reserve="whole",
    extra_step=True,
    hand_over="token",
)
"""TensorRT-LLM, GUARANTEED_NO_EVICT: what a request may need is reserved when it starts, so nobody is thrown out."""

TRTLLM_MAX_UTILIZATION = Discipline(
    name="trtllm max_utilization",
    chunked_prefill=False,
    chunk_by_block=True,
    decode_budget="seats",
    extra_step=True,
    hand_over="token",
)
"""TensorRT-LLM, MAX_UTILIZATION: blocks step by step; when they run out the last started is paused."""

LLAMACPP = Discipline(name="llamacpp", decode_budget="none", reserve="slot", prefix_caching=False)
"""llama.cpp server: slots of equal context; sampled tokens and drafts of all slots first, then prompts up to `-b`."""

STATIC = Discipline(
    name="static", order="batch", chunked_prefill=False, decode_budget="none", reserve="whole", prefix_caching=False
)
"""Static batching, as before continuous batching (Orca, OSDI 2022, describes it as request-level scheduling)."""

DISCIPLINES: dict[str, Discipline] = {
    d.name: d for d in (VLLM, SGLANG, TRTLLM, TRTLLM_MAX_UTILIZATION, LLAMACPP, STATIC)
}
"""All of them by name."""
