"""A mixture of kinds of requests whose text moves between regimes of acceptance: spread between requests, and memory.

Each request is of one kind, which depends on its own luck and output length. Its text moves from output position to
output position between regimes (nothing matches, hard, easy, copied), by a Markov chain of its kind. A draft for a
position matches with the chance of the regime there and of its place in the draft, and as in `PerPosition` each output
position owns one uniform, so that every k meets the same text: what a small k leaves of an easy stretch is found again
by the next round. Rounds of one request are independent given the regimes. The chain may drift with the output
position, alike in all requests: lookups find little in the first tokens, a drafter fails beyond the context that it can
see.
Leaves out: that a lookup's long proposals match better than short ones; prompts, which are context too.
Numbers: fitted to measured requests (`specsim.acceptance.fit_mixture`), or of the catalogue.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.acceptance.base import MAX_SPEC_TOKENS, Luck, conditionals_of, request_offsets, shifted
from specsim.acceptance.regime_chain import RoundSums, drifted, round_sums
from specsim.errors import ProfileError
from specsim.rng import Purpose
from specsim.type_checks import check_types

__all__ = ["Mixture"]

_SUM_ERROR = 1e-6


@dataclass(frozen=True)
class Mixture:
    """Kinds of requests, regimes of text. A request draws its kind and its first regime, then for each position and
    `max_spec_tokens` more the uniforms of a match, of a move and, for lookups, of a proposal.

    Raises:
        ProfileError: when shapes do not fit, a probability is outside 0..1, or a row of chances does not sum to 1.
    """

    accept: tuple[tuple[float, ...], ...]
    """[regime][draft]: chance that draft 1, 2, ... matches at a position of that regime, given that it was proposed and
    that those before it matched; the last value is carried on."""
    moves: tuple[tuple[tuple[float, ...], ...], ...]
    """[kind][regime][regime]: chance of the next position's regime."""
    starts: tuple[tuple[float, ...], ...]
    """[kind][regime]: chance of the first position's regime."""
    shares: tuple[tuple[float, ...], ...]
    """[length][kind]: share of kinds among requests of `share_tokens[length]` output tokens; between these lengths
    straight in the logarithm, beyond them as at the end."""
    share_tokens: tuple[float, ...]
    outputs: tuple[tuple[int, float], ...]
    """(output tokens, weight): the requests over which `expected_length` is a mean."""
    proposes: tuple[float, ...] = ()
    """[regime]: chance that a lookup proposes anything to a round that starts there; empty: always."""
    max_spec_tokens: int = 20
    name: str = "mixture"
    drift: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(output position, weight of each regime): from there to the next such position, moves into a regime are so many
    times as likely as at first, before each row is made to sum to 1 again. Empty: no drift."""

    def __post_init__(self) -> None:
        check_types(self, "mixture", ProfileError)
        regimes, kinds = len(self.accept), len(self.moves)
        if not regimes or not kinds or not all(self.accept):
            raise ProfileError("a mixture needs at least one regime, one draft position and one kind of request")
        shapes = (
            ("starts", self.starts, kinds, regimes),
            ("shares", self.shares, len(self.share_tokens), kinds),
            *((f"moves of kind {c}", rows, regimes, regimes) for c, rows in enumerate(self.moves)),
        )
        for what, rows, high, wide in shapes:
            if len(rows) != high or not rows or any(len(row) != wide for row in rows):
                raise ProfileError(f"mixture: {what} must have {high} rows of {wide} chances")
            for row in rows:
                _chances(what, row)
                if abs(math.fsum(row) - 1.0) > _SUM_ERROR:
                    raise ProfileError(f"mixture: a row of {what} sums to {math.fsum(row):.6g}; it must sum to 1")
        for row in self.accept:
            _chances("accept", row)
        _chances("proposes", self.proposes)
        if self.proposes and len(self.proposes) != regimes:
            raise ProfileError(f"mixture: proposes has {len(self.proposes)} values for {regimes} regimes")
        if not 1 <= self.max_spec_tokens <= MAX_SPEC_TOKENS:
            raise ProfileError(f"max_spec_tokens must be 1..{MAX_SPEC_TOKENS}, got {self.max_spec_tokens!r}")
        if any(b <= a for a, b in itertools.pairwise(self.bands)):
            raise ProfileError(f"mixture: positions of drift must rise and be positive, got {self.bands[1:]!r}")
        if any(len(w) != regimes or not all(0.0 < x < math.inf for x in w) for _, w in self.drift):
            raise ProfileError(f"mixture: drift must have {regimes} positive weights, got {self.drift!r}")
        if min(self.share_tokens) <= 0 or any(b <= a for a, b in itertools.pairwise(self.share_tokens)):
            raise ProfileError(f"mixture: share_tokens must rise and be positive, got {self.share_tokens!r}")
        if not self.outputs or any(n < 1 or not w > 0 for n, w in self.outputs):
            raise ProfileError("mixture: outputs must be (tokens >= 1, weight > 0)")

    @functools.cached_property
    def conditional(self) -> tuple[float, ...]:
        """Conditional probabilities whose acceptance lengths are those of this model at every static k."""
        return conditionals_of(self)

    @functools.cached_property
    def proposal_rate(self) -> float:
        """Share of plain decoding steps (one position each) at which something is proposed."""
        if not self.proposes:
            return 1.0
        return self._mean(0, "proposals") / self._mean(0, "rounds")

    def expected_length(self, num_spec_tokens: int) -> float:
        """Tokens a round over all rounds of the requests in `outputs`, exact for that many drafts."""
        return self._mean(num_spec_tokens, "tokens") / self._mean(num_spec_tokens, "rounds")

    def expected_drafts(self, num_spec_tokens: int) -> float:
        """All k in rounds in which something is proposed."""
        if not self.proposes:
            return float(num_spec_tokens)
        share = self._mean(num_spec_tokens, "proposals") / self._mean(num_spec_tokens, "rounds")
        return num_spec_tokens * share

    def with_change(self, delta: float) -> Mixture:
        """Each conditional probability of every regime moved by `delta` and clipped; moves and proposals stay."""
        accept = tuple(tuple(min(1.0, max(0.0, a + delta)) for a in row) for row in self.accept)
        return dataclasses.replace(self, accept=accept, name=f"{self.name} {delta:+g}")

    def with_logit_shift(self, shift: float) -> Mixture:
        """Each conditional probability of every regime moved by `shift` on the logit scale."""
        accept = tuple(tuple(shifted(a, shift) for a in row) for row in self.accept)
        return dataclasses.replace(self, accept=accept)

    def with_fewer_proposals(self, factor: float) -> Mixture:
        """A lookup that proposes `factor` times as often in every regime; nothing changes where one always does."""
        return dataclasses.replace(self, proposes=tuple(p * factor for p in self.proposes))

    def kinds_at(self, output_tokens: np.ndarray) -> np.ndarray:
        """Share of each kind among requests of these output lengths, [n, kinds]."""
        at = np.log(np.asarray(output_tokens, dtype=np.float64))
        shares = np.asarray(self.shares)
        places = np.log(self.share_tokens)
        return np.stack([np.interp(at, places, column) for column in shares.T], axis=1)

    def luck(
        self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None = None
    ) -> Luck:
        """See `AcceptanceModel.luck`; `tasks` is ignored."""
        ids = np.arange(first_request_id, first_request_id + len(output_tokens), dtype=np.int64)
        return self.luck_of(seed, ids, output_tokens)

    def luck_of(self, seed: int, ids: np.ndarray, output_tokens: np.ndarray, tasks: np.ndarray | None = None) -> Luck:
        """See `AcceptanceModel.luck_of`; `tasks` is ignored."""
        from specsim.acceptance import mixture_kernels  # where it is used, since what it needs takes long to load
        from specsim.rng_kernels import round_keys

        offsets, ids = request_offsets(output_tokens), np.asarray(ids, dtype=np.int64)
        run = np.empty(int(offsets[-1]), dtype=np.int8)
        drafts = np.empty(len(run), dtype=np.int8) if self.proposes else None
        keys, first = round_keys(seed, Purpose.ACCEPTANCE), np.empty((2, len(ids)))
        mixture_kernels.heads(keys, ids, first)
        kinds = _pick(self.kinds_at(np.diff(offsets)), first[0])
        regimes = _pick(np.asarray(self.starts)[kinds], first[1])
        mixture_kernels.deal(
            keys, ids, kinds, regimes, offsets, np.array(self.bands), *self._chain, self._chances,
            np.array(self.proposes, dtype=np.float64), (self.max_spec_tokens, MAX_SPEC_TOKENS), run,
            run[:0] if drafts is None else drafts,
        )  # fmt: skip
        return Luck(run, drafts, offsets)

    @functools.cached_property
    def _chain(self) -> tuple[np.ndarray, np.ndarray]:
        """Chances of staying in a regime [bands, kinds, regimes], and of the next one once it is left, running sums."""
        moves = self.moves_by_band()
        onward = moves * (1.0 - np.eye(moves.shape[2]))
        total = onward.sum(axis=3, keepdims=True)
        onward = np.cumsum(np.divide(onward, total, out=np.zeros_like(onward), where=total > 0), axis=3)
        return np.ascontiguousarray(np.diagonal(moves, axis1=2, axis2=3)), onward

    @functools.cached_property
    def _chances(self) -> np.ndarray:
        """[drafts, regimes]: acceptance by place in the draft."""
        return np.ascontiguousarray(self.by_depth(self.max_spec_tokens).T)

    def by_depth(self, num_spec_tokens: int) -> np.ndarray:
        """[regimes, num_spec_tokens]: acceptance, carried on."""
        rows = [row[:num_spec_tokens] + row[-1:] * max(0, num_spec_tokens - len(row)) for row in self.accept]
        return np.asarray(rows, dtype=np.float64).reshape(len(rows), num_spec_tokens)

    @property
    def bands(self) -> tuple[int, ...]:
        """First output position of each stretch of the output with moves of its own."""
        return (0, *(position for position, _ in self.drift))

    def moves_by_band(self) -> np.ndarray:
        """[bands, kinds, regimes, regimes]: chance of the next position's regime."""
        moves = np.asarray(self.moves)
        return drifted(moves, np.array([[1.0] * moves.shape[2], *(weights for _, weights in self.drift)]))

    def _mean(self, num_spec_tokens: int, what: str) -> float:
        """One of the sums over rounds, over all requests in `outputs`."""
        sums = self._sums(min(num_spec_tokens, self.max_spec_tokens))
        lengths, weights = (np.asarray(column, dtype=np.float64) for column in zip(*self.outputs, strict=True))
        values: np.ndarray = getattr(sums, what)
        return float(weights @ (values * self.kinds_at(lengths)).sum(axis=1))

    def _sums(self, num_spec_tokens: int) -> RoundSums:
        return _sums_of(self, num_spec_tokens)


@functools.lru_cache(maxsize=512)
def _sums_of(model: Mixture, num_spec_tokens: int) -> RoundSums:
    regimes = len(model.accept)
    return round_sums(
        model.by_depth(num_spec_tokens),
        np.asarray(model.proposes) if model.proposes else np.ones(regimes),
        model.moves_by_band(),
        np.asarray(model.starts),
        np.asarray([tokens for tokens, _ in model.outputs]),
        model.bands,
    )


def _pick(rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """int64 [n]: for each row of chances the place where its running sum passes u."""
    sums = np.cumsum(rows, axis=1)
    return np.asarray((u[:, None] >= sums[:, :-1]).sum(axis=1))


def _chances(what: str, row: Sequence[float]) -> None:
    for a in row:
        if isinstance(a, bool) or not isinstance(a, int | float) or not 0.0 <= a <= 1.0:
            raise ProfileError(f"mixture: {what} must lie in 0..1, got {a!r}")
