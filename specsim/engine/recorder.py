"""Where replicas write what happened: request times, step totals and gaps, inside the measured window only."""

from __future__ import annotations

import math

import numpy as np

from specsim.engine import decode_kernels as at
from specsim.records import GapHistogram, RequestColumns, RunTotals

__all__ = ["FollowingRecorder", "Recorder"]


class Recorder:
    """Request rows are always kept; totals and gaps only from `measure_from_s` to `measure_until_s`."""

    __slots__ = ("cached_tokens", "measure_from_s", "measure_until_s", "preemptions", "record", "rows")

    def __init__(
        self, rows: RequestColumns, *, measure_from_s: float = 0.0, measure_until_s: float = float("inf")
    ) -> None:
        self.measure_from_s = measure_from_s
        self.measure_until_s = measure_until_s
        self._open(rows)

    def _open(self, rows: RequestColumns) -> None:
        self.rows = rows
        self.preemptions = self.cached_tokens = 0
        self.record = np.zeros(at.GAPS + GapHistogram.SIZE)
        """Totals, steps by k and gaps, where compiled loops add to them too; places as `decode_kernels` names them."""
        self.record[at.GAP_LOW], self.record[at.GAP_BINS_PER_E] = GapHistogram.LOW_S, GapHistogram.BINS_PER_E

    def measures(self, now_s: float) -> bool:
        """Whether a step that ends now counts."""
        return self.measure_from_s <= now_s <= self.measure_until_s

    def step(
        self,
        seconds: float,
        *,
        batch: int,
        used_blocks: int,
        rounds: int,
        draft_rounds: int,
        drafts: int,
        gained: int,
        prefilled: int,
        next_k: int,
    ) -> None:
        """Add one step to the totals."""
        record = self.record
        for place, more in (
            (at.STEPS, 1),
            (at.BUSY, seconds),
            (at.BATCH_TIME, batch * seconds),
            (at.KV_TIME, used_blocks * seconds),
            (at.ROUNDS, rounds),
            (at.DRAFT_ROUNDED, draft_rounds),
            (at.DRAFTED, drafts),
            (at.ACCEPTED, gained - rounds),
            (at.DECODED, gained),
            (at.PREFILLED, prefilled),
            (at.K_STEPS + next_k, 1),
            (at.ZEROS, gained - rounds),
        ):
            record[place] += more
        record[at.PEAK_BATCH] = max(record[at.PEAK_BATCH], batch)
        record[at.PEAK_BLOCKS] = max(record[at.PEAK_BLOCKS], used_blocks)

    def gap(self, gap_s: float, count: int = 1) -> None:
        """Count `count` gaps of `gap_s` seconds; gaps outside the range go to the first or last bin."""
        low_s = GapHistogram.LOW_S
        place = int(math.log(gap_s / low_s) * GapHistogram.BINS_PER_E) if gap_s > low_s else 0
        self.record[at.GAPS + min(place, GapHistogram.SIZE - 1)] += count

    def totals(self) -> RunTotals:
        """What was added up so far."""
        found = self.record.tolist()

        def whole(place: int) -> int:
            return int(found[place])

        return RunTotals(
            steps=whole(at.STEPS),
            busy_s=found[at.BUSY],
            batch_time=found[at.BATCH_TIME],
            kv_block_time=found[at.KV_TIME],
            peak_batch=whole(at.PEAK_BATCH),
            peak_kv_blocks=whole(at.PEAK_BLOCKS),
            rounds=whole(at.ROUNDS),
            draft_rounds=whole(at.DRAFT_ROUNDED),
            drafted_tokens=whole(at.DRAFTED),
            accepted_tokens=whole(at.ACCEPTED),
            decode_tokens=whole(at.DECODED),
            prefill_tokens=whole(at.PREFILLED),
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            k_steps={k: int(n) for k, n in enumerate(found[at.K_STEPS : at.GAP_LOW]) if n},
        )

    def gaps(self) -> GapHistogram:
        """Gaps counted so far."""
        gaps = GapHistogram()
        gaps.counts = [int(n) for n in self.record[at.GAPS :].tolist()]
        gaps.zeros = int(self.record[at.ZEROS])
        return gaps


class FollowingRecorder(Recorder):
    """One whose window is always that of another: of the pool that does not see completions."""

    __slots__ = ("_leader",)

    def __init__(self, rows: RequestColumns, leader: Recorder) -> None:
        self._leader = leader
        self._open(rows)

    @property
    def measure_from_s(self) -> float:  # type: ignore[override]
        return self._leader.measure_from_s

    @property
    def measure_until_s(self) -> float:  # type: ignore[override]
        return self._leader.measure_until_s
