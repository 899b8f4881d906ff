"""Seconds of one pass of one model: matrix work, output head and attention, compiled from a PassCost.

Models: reading weights against computing (the knee), expert coverage, cached keys against query-key pairs.
Leaves out: everything that belongs to a step rather than a pass (`specsim.latency`). Numbers: a PassCost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Protocol

from specsim.profiles import PassCost

__all__ = ["ChunkWork", "CompiledPass", "size_factor"]


class ChunkWork(Protocol):
    """The prompt chunks of a step, as `specsim.latency.StepWork` describes them."""

    prefill_tokens: int
    prefill_kv_tokens: int
    prefill_pairs: int
    prefill_windowed_pairs: int


def _joined(memory: float, compute: float, knee: float) -> float:
    """Seconds of reading and computing that overlap: 1 adds them, more takes more of the larger one, 0 just that."""
    if memory == 0.0 or compute == 0.0:
        return memory + compute
    low, high = (memory, compute) if memory < compute else (compute, memory)
    # scaled by the larger one, so that no power overflows or underflows
    return high * (1.0 + (low / high) ** knee) ** (1.0 / knee) if knee else high


def size_factor(table: Sequence[tuple[int, float]], size: float) -> float:
    """Factor at `size` from (size, factor) pairs: straight between logarithms, at both ends what the end says."""
    if not table:
        return 1.0
    if size <= table[0][0]:
        return table[0][1]
    for (low, first), (high, second) in itertools.pairwise(table):
        if size <= high:
            share = math.log(size / low) / math.log(high / low)
            return first ** (1.0 - share) * second**share
    return table[-1][1]


class CompiledPass:
    """One model's pass, compiled: matrix and head seconds by token count are remembered."""

    __slots__ = ("_heads", "_matrices", "_passes", "cost")

    def __init__(self, cost: PassCost) -> None:
        self.cost = cost
        self._matrices: dict[tuple[int, float], float] = {(0, 0.0): 0.0}
        self._heads: dict[int, float] = {0: 0.0}
        self._passes: dict[tuple[int, int], float] = {}

    def memory_s(self, tokens: int, alike: float = 0.0) -> float:
        """Read weights and the experts that `tokens` tokens are expected to touch, `alike` of them nothing new."""
        c = self.cost
        if c.experts_s <= 0.0 or c.num_experts <= 0:
            return c.weights_s + c.experts_s
        return c.weights_s + c.experts_s * (1.0 - (1.0 - c.experts_per_token / c.num_experts) ** (tokens - alike))

    def alike(self, requests: int, drafts: int) -> float:
        """Tokens that need not be counted since neighbours in a text share experts: w verified tokens of one request
        touch as many experts as `w ** expert_sharing` independent ones."""
        c = self.cost
        if not c.num_experts or not drafts or c.expert_sharing == 1.0:
            return 0.0
        width = 1.0 + drafts / requests
        return requests * (width - width**c.expert_sharing)

    def knee(self, memory: float, compute: float) -> float:
        return _joined(memory, compute, self.cost.knee)

    def matrix(self, tokens: int, alike: float = 0.0) -> float:
        """Everything but head and attention of a pass over `tokens` tokens, seconds; 0 for an empty pass."""
        key = (tokens, alike)
        value = self._matrices.get(key)
        if value is None:
            c = self.cost
            memory = self.memory_s(tokens, alike)
            value = self.knee(memory, tokens * c.token_s) * size_factor(c.size_factors, tokens)
            value += tokens * c.collective_token_s + c.fixed_s
            self._matrices[key] = value
        return value

    def matrix_partly(self, tokens: int, worked: float, alike: float = 0.0) -> float:
        """As `matrix`, where only `worked` of the tokens' work is left to do; not remembered."""
        c = self.cost
        if not tokens:
            return 0.0
        matrix = self.knee(self.memory_s(tokens, alike), worked * c.token_s) * size_factor(c.size_factors, tokens)
        return matrix + worked * c.collective_token_s + c.fixed_s

    def head(self, rows: int) -> float:
        """Output head and sampling of `rows` rows of logits, seconds."""
        value = self._heads.get(rows)
        if value is None:
            c = self.cost
            value = self.knee(c.head_weights_s, rows * c.head_row_s) * size_factor(c.head_factors, rows)
            value += rows * c.sample_row_s
            self._heads[rows] = value
        return value

    def drafting(self, requests: int, nodes: int) -> float:
        """Matrix work and head of a pass over `nodes` tokens of each request, all of them sampled from."""
        key = (requests, nodes)
        value = self._passes.get(key)
        if value is None:
            alike = self.alike(requests, requests * (nodes - 1))
            value = self._passes[key] = self.matrix(requests * nodes, alike) + self.head(requests * nodes)
        return value

    def kv_rates(self, width: float, unsplit: float, *, read_once: bool) -> tuple[float, float]:
        """Attention seconds per cached token in full and in windowed layers, for `width` queries a request."""
        c = self.cost
        reads = unsplit if read_once else unsplit * width
        full = _joined(c.kv_token_s * reads, width * (c.decode_kv_pair_s or c.kv_pair_s), c.attention_knee)
        windowed = _joined(c.windowed_kv_token_s * reads, width * c.windowed_kv_pair_s, c.attention_knee)
        return full, windowed

    def prefill(self, work: ChunkWork) -> float:
        """Attention of this step's prompt chunks, seconds; windowed layers read at most one window of the cache."""
        c = self.cost
        full = _joined(work.prefill_kv_tokens * c.kv_token_s, work.prefill_pairs * c.kv_pair_s, c.attention_knee)
        if not c.window_tokens:
            return full
        pairs = work.prefill_windowed_pairs or min(work.prefill_pairs, work.prefill_tokens * c.window_tokens)
        reads = min(work.prefill_kv_tokens, c.window_tokens)
        return full + _joined(reads * c.windowed_kv_token_s, pairs * c.windowed_kv_pair_s, c.attention_knee)
