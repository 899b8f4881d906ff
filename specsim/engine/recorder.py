"""Where replicas write what happened: request times, step totals and gaps, inside the measured window only."""

from __future__ import annotations

from specsim.records import GapHistogram, RequestColumns, RunTotals

__all__ = ["FollowingRecorder", "Recorder"]


class Recorder:
    """Request rows are always kept; totals and gaps only from `measure_from_s` to `measure_until_s`."""

    __slots__ = ("gaps", "measure_from_s", "measure_until_s", "rows", "totals")

    def __init__(
        self, rows: RequestColumns, *, measure_from_s: float = 0.0, measure_until_s: float = float("inf")
    ) -> None:
        self.rows = rows
        self.measure_from_s = measure_from_s
        self.measure_until_s = measure_until_s
        self.totals = RunTotals()
        self.gaps = GapHistogram()

    def measures(self, now_s: float) -> bool:
        """Whether a step that ends now counts."""
        return self.measure_from_s <= now_s <= self.measure_until_s

    def step(
        self,
        seconds: float,
        batch: int,
        used_blocks: int,
        rounds: int,
        draft_rounds: int,
        drafts: int,
        gained: int,
        prefilled: int,
        next_k: int,
    ) -> None:
        """Add one step to the totals. Positional, since it is called once a step."""
        totals = self.totals
        totals.steps += 1
        totals.busy_s += seconds
        totals.batch_time += batch * seconds
        totals.kv_block_time += used_blocks * seconds
        if batch > totals.peak_batch:
            totals.peak_batch = batch
        if used_blocks > totals.peak_kv_blocks:
            totals.peak_kv_blocks = used_blocks
        totals.rounds += rounds
        totals.draft_rounds += draft_rounds
        totals.drafted_tokens += drafts
        totals.accepted_tokens += gained - rounds
        totals.decode_tokens += gained
        totals.prefill_tokens += prefilled
        totals.k_steps[next_k] = totals.k_steps.get(next_k, 0) + 1
        self.gaps.zeros += gained - rounds


class FollowingRecorder(Recorder):
    """One whose window is always that of another: of the pool that does not see completions."""

    __slots__ = ("_leader",)

    def __init__(self, rows: RequestColumns, leader: Recorder) -> None:
        self._leader = leader
        self.rows = rows
        self.totals = RunTotals()
        self.gaps = GapHistogram()

    @property
    def measure_from_s(self) -> float:  # type: ignore[override]
        return self._leader.measure_from_s

    @property
    def measure_until_s(self) -> float:  # type: ignore[override]
        return self._leader.measure_until_s
