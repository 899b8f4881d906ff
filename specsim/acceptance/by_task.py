"""One acceptance model per content class of a trace (chat, code, maths); each request follows its own.

Leaves out: drift within a request. Numbers: those of the models that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, AcceptanceModel, Luck, conditionals_of, request_offsets
from specsim.errors import ProfileError
from specsim.type_checks import check_types

__all__ = ["ByTask"]


@dataclass(frozen=True)
class ByTask:
    """`models[t]` deals the luck of requests whose task code is t, the last one also that of requests without a task
    (-1); `weights` are the shares of tokens, for means.

    Raises:
        ProfileError: when models and weights do not match.
    """

    models: tuple[AcceptanceModel, ...]
    weights: tuple[float, ...]
    name: str = "by task"

    def __post_init__(self) -> None:
        check_types(self, "acceptance by task", ProfileError)
        if not self.models or len(self.models) != len(self.weights) or min(self.weights) < 0 or not sum(self.weights):
            raise ProfileError(f"acceptance by task needs one non-negative weight a model, got {self.weights!r}")

    @property
    def max_spec_tokens(self) -> int:
        return min(model.max_spec_tokens for model in self.models)

    @property
    def proposal_rate(self) -> float:
        """Weighted mean over the models."""
        return self._mean([model.proposal_rate for model in self.models])

    @property
    def conditional(self) -> tuple[float, ...]:
        """Conditional probabilities whose acceptance lengths are those of the mixture at every k."""
        return conditionals_of(self)

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens a round over all rounds: the harmonic mean, weighted by tokens."""
        return 1.0 / self._mean([1.0 / model.expected_length(num_spec_tokens) for model in self.models])

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """Drafts a round over all rounds; a model's share of the rounds is its tokens over its acceptance length."""
        rounds = [1.0 / model.expected_length(num_spec_tokens) for model in self.models]
        drafts = [model.expected_drafts(num_spec_tokens) for model in self.models]
        return self._mean([r * d for r, d in zip(rounds, drafts, strict=True)]) / self._mean(rounds)

    def with_change(self, delta: float) -> ByTask:
        """Every model moved by `delta`."""
        return ByTask(tuple(m.with_change(delta) for m in self.models), self.weights, f"{self.name} {delta:+g}")

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """See `AcceptanceModel.luck`; `tasks` (codes into `models`) is required."""
        ids = np.arange(first_request_id, first_request_id + len(output_tokens), dtype=np.int64)
        return self.luck_of(seed, ids, output_tokens, tasks)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """See `AcceptanceModel.luck_of`.

        Raises:
            ProfileError: when `tasks` is missing or holds a code without a model.
        """
        known = len(self.models)
        if tasks is None or (len(tasks) and not -1 <= int(np.min(tasks)) <= int(np.max(tasks)) < known):
            raise ProfileError(f"acceptance by task needs a task code -1..{known - 1} for every request")
        codes = np.asarray(tasks, dtype=np.int64) % known
        offsets = request_offsets(output_tokens)
        run = np.zeros(int(offsets[-1]), dtype=np.int8)
        drafts = np.full(len(run), MAX_SPEC_TOKENS, dtype=np.int8)
        always = True
        for code, model in enumerate(self.models):
            chosen = np.flatnonzero(codes == code)
            part = model.luck_of(seed, np.asarray(ids)[chosen], np.asarray(output_tokens)[chosen])
            for i, request in enumerate(chosen.tolist()):
                own, offered = part.of(i)
                place = slice(int(offsets[request]), int(offsets[request + 1]))
                run[place] = np.minimum(own, self.max_spec_tokens)
                if offered is not None:
                    drafts[place] = offered
                    always = False
        return Luck(run, None if always else drafts, offsets)

    def _mean(self, values: list[float]) -> float:
        return sum(w * v for w, v in zip(self.weights, values, strict=True)) / sum(self.weights)
