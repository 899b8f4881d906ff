"""Seconds of one engine step from a latency profile.

Models: one target pass over decoding and prefilling tokens together, weights read once, expert coverage, attention
over cached tokens, graph padding and the slower mode beyond the captured sizes, then the drafter's passes for the
next round in the same step, as vLLM V1 runs them.
Leaves out: overlap of drafting with scheduling, jitter. Numbers: a LatencyProfile; nothing is hard-coded here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepWork"]


@dataclass(slots=True)
class StepWork:
    """What one step contains. Mutable, since an engine reuses one object for millions of steps."""

    decode_requests: int = 0
    """Requests past their prompt, each with one token to compute plus its drafts."""
    draft_tokens: int = 0
    """Drafts verified in this step, summed over requests."""
    kv_tokens: int = 0
    """Cached tokens that decoding requests attend to, summed (before this step's tokens)."""
    windowed_kv_tokens: int = 0
    """The same, each request's share cut at the window; 0 when no layer is windowed."""
    prefill_tokens: int = 0
    """Prompt tokens computed in this step."""
    prefill_rows: int = 0
    """Prefilling requests that reach the end of their prompt and sample a token."""
    prefill_kv_tokens: int = 0
    """Cached tokens in front of this step's chunks, summed over chunks."""
    prefill_pairs: int = 0
    """(query, key) pairs of the chunks under causal attention, summed."""
    prefill_windowed_pairs: int = 0
    """The same, each query's keys cut at the window."""
    next_num_spec_tokens: int = 0
    """Drafts that the drafter makes per request at the end of this step."""
    machinery: bool = False
    """Whether speculation is loaded at all (False only for the policy `off`)."""
