"""Serving engines that can be asked for: the discipline that each follows, and what it takes when nothing is said.

Models: defaults of a server by GPU memory and parallelism: token budget, seats, block size, prompts in chunks, prefix
caching, captured graphs, tokens of one pass. Leaves out: memory shares of engines other than vLLM, whose
`gpu_memory_utilization` is used for all. Numbers: sources of vLLM 0.33.0, SGLang 0.5.23 and TensorRT-LLM 1.3, and the
documentation of llama.cpp of mid-2026; those of `static` are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from specsim.disciplines import LLAMACPP, SGLANG, STATIC, TRTLLM, TRTLLM_MAX_UTILIZATION, VLLM, Discipline
from specsim.shapes import Gpu

__all__ = ["ENGINES", "Captured", "Serving", "Sizes"]

_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a server takes for its GPUs when nothing is said."""

    max_num_batched_tokens: int
    max_num_seqs: int
    """Without speculation."""
    max_num_seqs_speculating: int


@dataclass(frozen=True, slots=True)
class Captured:
    """Decode steps with a captured graph, by tokens or by requests; what is in none runs in the slower mode."""

    tokens_max: int = 0
    """Largest captured count of tokens, padded to vLLM's sizes; 0: not by tokens."""
    requests: tuple[int, ...] = ()
    """Captured counts of requests, rising; empty: not by requests."""
    exactly: bool = False
    """Whether a step must have one of those counts, instead of being padded to the next."""


@dataclass(frozen=True, slots=True)
class Serving:
    """One engine."""

    title: str
    """Its name in sentences."""
    version: str
    """What was read."""
    discipline: Discipline
    sizes: Callable[[Gpu, int], Sizes]
    """(GPU, tp) -> defaults."""
    captured: Callable[[Gpu, int, bool], Captured]
    """(GPU, tp, whether speculation is on) -> captured graphs."""
    follows: str
    """What is followed, in one sentence."""
    leaves_out: tuple[str, ...]
    """What of the engine is not."""
    block_size_tokens: int = 16
    pass_tokens: int = 0
    """Most tokens of one pass; a larger step takes several. 0: any."""
    capacity_policies: Mapping[str, Discipline] = field(default_factory=dict)
    """Name of a capacity policy -> discipline, where the engine has several."""
    seats_by_cache: Callable[[int, int], int] | None = None
    """(tokens of the cache, context of the model) -> seats without speculation, where they depend on those."""

    def rules(
        self,
        *,
        capacity_policy: str | None = None,
        chunked_prefill: bool | None = None,
        extra_step: bool | None = None,
    ) -> Discipline:
        """The discipline with choices of a deployment over it; None: the engine's own."""
        found = self.discipline if capacity_policy is None else self.capacity_policies[capacity_policy]
        if chunked_prefill is not None:
            found = replace(found, chunked_prefill=chunked_prefill)
        return found if extra_step is None else replace(found, extra_step=extra_step)

    def seats(self, gpu: Gpu, tp: int, *, speculating: bool, kv_tokens: int, context_tokens: int) -> int:
        """Most requests at once when nothing is said."""
        sizes = self.sizes(gpu, tp)
        if speculating:
            return sizes.max_num_seqs_speculating
        return sizes.max_num_seqs if self.seats_by_cache is None else self.seats_by_cache(kv_tokens, context_tokens)

    def graphs(self, gpu: Gpu, tp: int, *, speculating: bool, largest: int | None = None) -> Captured:
        """Captured graphs, up to `largest` tokens or requests where it is given."""
        found = self.captured(gpu, tp, speculating)
        if largest is None:
            return found
        if found.tokens_max:
            return replace(found, tokens_max=largest)
        sizes = self.captured(gpu, tp, speculating).requests
        step = sizes[-1] - sizes[-2]
        grown = () if found.exactly else tuple(range(sizes[-1] + step, largest, step))
        return replace(found, requests=(*(size for size in (*sizes, *grown) if size < largest), largest))


def _gib(gpu: Gpu) -> float:
    return gpu.memory_bytes / _GIB


def _vllm_sizes(gpu: Gpu, tp: int) -> Sizes:
    """The 0.33 server by GPU memory."""
    if _gib(gpu) >= 160:
        return Sizes(16384, 1024, 1024)
    if _gib(gpu) >= 70 and "A100" not in gpu.name.upper():
        return Sizes(8192, 1024, 1024)
    return Sizes(2048, 256, 256)


_BLACKWELL = ("B200", "B300", "GB200", "GB300")


def _vllm_captured(gpu: Gpu, tp: int, speculating: bool) -> Captured:
    """A ceiling of 1024 tokens on data-centre Blackwell, else of 512."""
    words = gpu.name.upper().replace("NVIDIA", "").replace("-", " ").split()
    return Captured(tokens_max=1024 if words and words[0] in _BLACKWELL else 512)


_SGLANG_BY_MEMORY: tuple[tuple[float, int, int, int], ...] = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)
"""GiB below which: chunked_prefill_size, cuda_graph_max_bs at tp < 4 and at more."""


def _sglang_row(gpu: Gpu, tp: int) -> tuple[int, int]:
    for below, chunk, few, many in _SGLANG_BY_MEMORY:
        if _gib(gpu) < below:
            return chunk, few if tp < 4 else many
    raise AssertionError("unreachable")


def _sglang_sizes(gpu: Gpu, tp: int) -> Sizes:
    return Sizes(_sglang_row(gpu, tp)[0], 2048, 48)


def _sglang_seats(kv_tokens: int, context_tokens: int) -> int:
    """512 times the requests of full context that the cache holds, from 2048 to 4096."""
    return min(max(int(kv_tokens / context_tokens * 512), 2048), 4096)


def _sglang_captured(gpu: Gpu, tp: int, speculating: bool) -> Captured:
    """By requests, denser with speculation."""
    largest = _sglang_row(gpu, tp)[1]
    if speculating:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, largest + 1, 16)]
    found = [size for size in sizes if size < largest]
    return Captured(requests=(*found, largest))


def _trtllm_sizes(gpu: Gpu, tp: int) -> Sizes:
    return Sizes(8192, 2048, 2048)


def _trtllm_captured(gpu: Gpu, tp: int, speculating: bool) -> Captured:
    """Graphs for 1 to 31, 32, 64 and 128 requests and nothing between, as `enable_padding` is off."""
    return Captured(requests=(*range(1, 33), 64, 128), exactly=True)


def _no_graphs(gpu: Gpu, tp: int, speculating: bool) -> Captured:
    return Captured()


_TRTLLM_LEAVES_OUT = (
    "draft_len_schedule, max_concurrency and other switches of TensorRT-LLM, unless a policy stands for them",
    "batch sizes that a draft_len_schedule adds to the captured ones",
    "free_gpu_memory_fraction, which is a share of what weights leave, not of the GPU",
)

ENGINES: Mapping[str, Serving] = {
    "vllm": Serving(
        title="vLLM",
        version="0.33.0",
        discipline=VLLM,
        sizes=_vllm_sizes,
        captured=_vllm_captured,
        follows="vLLM V1: one token budget a step, decoding requests first, prompts in chunks beside them; a request "
        "is let in when its prompt fits, the last admitted is thrown out when blocks run out.",
        leaves_out=(
            "asynchronous scheduling of vLLM unless asked for (--async-scheduling)",
            "first-round placeholders of vLLM",
        ),
    ),
    "sglang": Serving(
        title="SGLang",
        version="0.5.23",
        discipline=SGLANG,
        sizes=_sglang_sizes,
        captured=_sglang_captured,
        seats_by_cache=_sglang_seats,
        block_size_tokens=1,
        follows="SGLang: prompts in steps of their own before any decoding, chunked; a request is let in when its "
        "prompt and output are expected to fit; 48 requests at once with speculation unless --max-num-seqs says more.",
        leaves_out=(
            "mixed chunks of SGLang (--enable-mixed-chunk, off by default)",
            "the clip at 4096 tokens of what each running request is expected to write",
            "mem-fraction-static, for which gpu_memory_utilization stands",
        ),
    ),
    "trtllm": Serving(
        title="TensorRT-LLM",
        version="1.3.0",
        discipline=TRTLLM,
        sizes=_trtllm_sizes,
        captured=_trtllm_captured,
        block_size_tokens=32,
        capacity_policies={"guaranteed_no_evict": TRTLLM, "max_utilization": TRTLLM_MAX_UTILIZATION},
        follows="TensorRT-LLM: generation before context; prompt and asked output reserved when a request starts, so "
        "that nobody is thrown out (or blocks step by step under max_utilization); prompts whole unless chunked.",
        leaves_out=_TRTLLM_LEAVES_OUT,
    ),
    "llamacpp": Serving(
        title="llama.cpp",
        version="2026.6",
        discipline=LLAMACPP,
        sizes=lambda gpu, tp: Sizes(2048, 4, 4),
        captured=_no_graphs,
        block_size_tokens=1,
        pass_tokens=512,
        follows="llama.cpp server: slots of equal context, tokens and drafts of all slots in one batch with prompts up "
        "to -b 2048, computed 512 tokens at a time; a request longer than a slot is refused.",
        leaves_out=(
            "prompts that a slot of llama.cpp keeps from the request before, and its cache in RAM",
            "a unified cache of llama.cpp, in which one slot may use the room of others",
            "order of llama.cpp's slots: prompts are computed in order of arrival",
        ),
    ),
    "static": Serving(
        title="static batching",
        version="",
        discipline=STATIC,
        sizes=lambda gpu, tp: Sizes(65536, 32, 32),
        captured=_no_graphs,
        follows="static batching: a batch is formed when the one before has ended, prompts padded to the longest; "
        "nobody joins, and who has finished stays in it as padding.",
        leaves_out=("anything that a real static server does to fill its batches",),
    ),
}
"""Name of `Deployment.engine` -> engine."""
