"""One engine, request by request, on the plain scheduler: slow and obvious, the oracle of `fast_replica`."""

from __future__ import annotations

from specsim.config import ReplicaLimits
from specsim.engine.core import EngineCore
from specsim.engine.dealt_luck import DealtLuck
from specsim.engine.recorder import Recorder
from specsim.latency import StepCost
from specsim.policies import Policy
from specsim.workload import Workload

__all__ = ["PlainReplica"]


class PlainReplica(EngineCore):
    """The shared steps, with their seconds from a cost model and their tokens from luck.

    See `specsim.engine.replica.Replica`.
    """

    def __init__(
        self,
        index: int,
        workload: Workload,
        limits: ReplicaLimits,
        policy: Policy,
        cost: StepCost,
        machinery: bool,
        recorder: Recorder,
    ) -> None:
        super().__init__(index, workload, limits, policy, machinery, cost.window_tokens, recorder)
        self.cost = cost
        self._luck = DealtLuck(workload, spoils=machinery and cost.profile.at_zero_drafts == "stale")

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        return self.cost.step_s(self.work) if self.begin(now_s) else None

    def end_step(self, now_s: float) -> list[int]:
        return self.end(now_s, self._luck.emitted(self.plan, self.next_k), self._luck.drafts)
