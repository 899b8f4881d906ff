"""Whom an engine lets in, and how much it reserves: the arithmetic of `specsim.disciplines`, without queues or clock.

Models: room for a round and for a whole request, seats, chunks, batches of a static server, SGLang's expectation of
what running requests will write. Leaves out: prefixes, which belong to the cache. Numbers: SGLang's constants, from its
sources.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specsim.config import ReplicaLimits

__all__ = ["NewTokenRatio", "asked_tokens", "batch_of", "chunk_of", "never_fits", "placeholders_of", "seats",
           "whole_room"]  # fmt: skip


def seats(limits: ReplicaLimits, num_spec_tokens: int) -> int:
    """Most requests that run at once."""
    if limits.discipline.decode_budget != "seats":
        return limits.max_num_seqs
    width = 1 + (
        limits.tree_nodes[min(num_spec_tokens, len(limits.tree_nodes) - 1)] if limits.tree_nodes else num_spec_tokens
    )
    return min(limits.max_num_seqs, max(1, limits.max_num_batched_tokens // width))


def placeholders_of(limits: ReplicaLimits, num_spec_tokens: int) -> int:
    """Placeholder drafts of a request that enters with one token, under a constant k; 0 where no step has room."""
    room = limits.max_num_batched_tokens - limits.draft_slots
    return num_spec_tokens if limits.discipline.first_round_placeholders and 1 + num_spec_tokens <= room else 0


def asked_tokens(output_tokens: np.ndarray, limits: ReplicaLimits) -> np.ndarray:
    """max_tokens of requests with these outputs, int64."""
    asked: np.ndarray = np.maximum(np.asarray(output_tokens, dtype=np.int64), limits.asked_output_tokens)
    return asked


def whole_room(
    prompt_tokens: np.ndarray | int, asked_output_tokens: np.ndarray | int, limits: ReplicaLimits, num_spec_tokens: int
) -> np.ndarray:
    """Tokens that requests can ever hold, drafts and lookahead included, int64."""
    room = np.asarray(prompt_tokens, dtype=np.int64) + asked_output_tokens + num_spec_tokens
    if limits.discipline.reserve == "slot":
        return np.full_like(room, limits.max_model_len)
    if limits.discipline.order != "batch":  # padding of a batch may reach beyond the model's length
        room = np.minimum(room, limits.max_model_len)
    found: np.ndarray = room + limits.lookahead_tokens(num_spec_tokens)
    return found


def never_fits(
    prompt_tokens: np.ndarray | int, output_tokens: np.ndarray | int, limits: ReplicaLimits, num_spec_tokens: int
) -> np.ndarray:
    """Which requests are refused at arrival: longer than `max_model_len` or than the whole cache, or with a prompt
    that no step can take.

    Arrays of length n in, bool [n] out. `output_tokens` stands for a request's max_tokens where clients ask for no more
    than they get (`ReplicaLimits.asked_output_tokens`).
    """
    prompt, output = np.asarray(prompt_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64)
    wanted = output if limits.discipline.reserve == "step" else asked_tokens(output, limits)
    room = whole_room(prompt, wanted, limits, num_spec_tokens)
    blocks = -(-room // limits.block_size_tokens) + limits.fixed_blocks_per_request
    found: np.ndarray = (prompt + output > limits.max_model_len) | (blocks > limits.num_kv_blocks)
    if not limits.discipline.chunked_prefill:
        found = found | (prompt > limits.max_num_batched_tokens - limits.draft_slots)
    return found


def chunk_of(left_tokens: int, budget_tokens: int, limits: ReplicaLimits, *, whole: bool) -> int:
    """Tokens of a prompt with `left_tokens` to compute that a step with `budget_tokens` left takes; 0: none yet.

    `whole`: it must not be cut.
    """
    if left_tokens <= budget_tokens:
        return left_tokens
    if whole or budget_tokens <= 0:
        return 0
    if limits.discipline.chunk_by_block and limits.block_size_tokens <= limits.max_num_batched_tokens:
        return budget_tokens // limits.block_size_tokens * limits.block_size_tokens
    return budget_tokens


def batch_of(waiting: Iterable[tuple[int, int]], limits: ReplicaLimits, num_spec_tokens: int) -> tuple[int, int, int]:
    """(requests of the next static batch, prompt tokens of each with padding, tokens reserved for each).

    `waiting`: (prompt tokens, asked output tokens) in order of arrival. A request joins while there are seats, all
    prompts padded to the longest fit the token budget, and all fit the empty cache at the longest prompt and output.
    """
    count = longest = most = room = 0
    for prompt, asked in waiting:
        if count == limits.max_num_seqs:
            break
        padded, output = max(longest, prompt), max(most, asked)
        tokens = int(whole_room(padded, output, limits, num_spec_tokens))
        blocks = -(-tokens // limits.block_size_tokens) + limits.fixed_blocks_per_request
        more = count + 1
        if more * padded > limits.max_num_batched_tokens or more * blocks > limits.num_kv_blocks:
            break
        count, longest, most, room = more, padded, output, tokens
    return count, longest, room


class NewTokenRatio:
    """SGLang's guess of the share of what running requests have asked for that they will still write.

    It starts at 0.7 and falls by equal steps to 0.14 of that within 600 decode steps; a retraction sets it from what
    the batch has written; an idle engine starts over (SGLang 0.5 sources: SGLANG_INIT_NEW_TOKEN_RATIO,
    SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS, SGLANG_RETRACT_DECODE_STEPS,
    SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION).
    """

    START = 0.7
    LEAST = 0.7 * 0.14
    STEPS = 600
    RETRACT_STEPS = 20
    MOST_NEW_TOKENS = 4096
    """What a new request is expected to write at most."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = self.START

    def idle(self) -> None:
        """Nothing is there."""
        self.value = self.START

    def decoded(self) -> None:
        """A decode step went through."""
        self.value = max(self.value - (self.START - self.LEAST) / self.STEPS, self.LEAST)

    def retracted(self, emitted_tokens: int, asked_output_tokens: int, running: int) -> None:
        """Requests were thrown out; the sums are over those that stay."""
        self.value = min(1.0, (emitted_tokens + self.RETRACT_STEPS * running) / (asked_output_tokens + 1))

    def admits(
        self, new_tokens: int, own_output_tokens: int, promised_tokens: int, running_output_tokens: int,
        free_tokens: int, block_size_tokens: int,
    ) -> bool:  # fmt: skip
        """Whether a request may join others.

        Args:
            new_tokens: prompt tokens that it must compute.
            own_output_tokens: what it may still write.
            promised_tokens: what those admitted in this step may still write.
            running_output_tokens: what those running before it may still write, summed.
            free_tokens: room in the cache.
        """
        own = new_tokens + min(own_output_tokens, self.MOST_NEW_TOKENS) + block_size_tokens
        return own + promised_tokens + self.value * running_output_tokens < free_tokens
