"""One run of one policy on a whole trace, with what decides its identity and what is to be said of it.

Models nothing by itself: the run is that of `specsim.engine`, the figures are those of `specsim.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from specsim.config import PolicySpec
from specsim.engine.observe import Observer
from specsim.engine.simulator import simulate
from specsim.errors import ScenarioError, TraceError
from specsim.metrics import summarise
from specsim.planner.compare import BUSY_METRICS, SATURATED_BUSY, SATURATED_GROWTH
from specsim.planner.parts import kv_link
from specsim.planner.plan import not_modelled
from specsim.planner.points import plain_numbers
from specsim.planner.question import Question, Side, acceptance_fingerprint
from specsim.records import RunResult
from specsim.traces.model import Trace
from specsim.type_checks import check_types
from specsim.workload import Workload

__all__ = ["SCHEMA_VERSION", "SingleRun"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SingleRun:
    """A run before it is simulated.

    Raises:
        ScenarioError: when the trace is empty, or the policy drafts more than the acceptance model knows.
    """

    question: Question
    trace: Trace
    policy: PolicySpec
    seed: int = 0
    warmup_share: float = 0.1
    concurrency: int | None = None
    """Requests kept in flight; None: arrival times of the trace."""
    rate_scale: float = 1.0
    """How many times as fast as in the trace requests arrive."""
    plain: bool = False
    """Whether the slow scheduler runs instead of the fast one."""

    def __post_init__(self) -> None:
        check_types(self, "run")
        self.question.check_policy(self.policy)
        if self.concurrency is not None and not 1 <= self.concurrency <= 65536:
            raise ScenarioError(f"concurrency must be a whole number in 1..65536, got {self.concurrency}")
        if not 1e-6 <= self.rate_scale <= 1e6:
            raise ScenarioError(f"arrivals must be 1e-6 to 1e6 times as fast as in the trace, got {self.rate_scale!r}")
        if not len(self.trace):
            raise ScenarioError(f"{self.trace.meta.source}: no request is left to simulate; widen the slice")

    @property
    def side(self) -> Side:
        """Costs and limits of the policy."""
        return self.question.side(self.policy)

    @property
    def without_speculation(self) -> SingleRun:
        """The same requests with speculation off."""
        return replace(self, policy=PolicySpec("off"))

    def simulate(self, observers: Sequence[Observer] = (), *, workload: Workload | None = None) -> RunResult:
        """Run it, with `observers` looking on; `workload` is the trace with its luck, where that is dealt already.

        Raises:
            TraceError: when every request was refused, since such a run says nothing.
        """
        deployment, side = self.question.deployment, self.side
        arrivals = (self.trace.arrival_s - self.trace.arrival_s[0]) / self.rate_scale
        result = simulate(
            workload or Workload(self.trace, self.question.acceptance, seed=self.seed),
            side.cost,
            limits=side.limits,
            policy=self.policy,
            arrival_s=arrivals,
            concurrency=self.concurrency,
            replicas=deployment.replicas,
            disaggregation=side.disaggregation,
            router=deployment.router,
            warmup_share=self.warmup_share,
            plain=self.plain,
            observers=observers,
        )
        if result.requests.rejected.all():
            shortest = int((self.trace.prompt_tokens.astype(np.int64) + self.trace.output_tokens).min())
            room = side.limits.num_kv_blocks * side.limits.block_size_tokens
            way_out = "choose a model or GPU with more room"
            if side.limits.max_model_len < min(shortest, room):
                way_out = "raise --max-model-len, or choose a model with a longer context"
            raise TraceError(
                f"{self.trace.meta.source}: every request is longer than is served here (shortest {shortest} tokens, "
                f"max_model_len {side.limits.max_model_len}, cache {room} tokens); {way_out}"
            )
        return result

    def metrics(self, result: RunResult) -> dict[str, Any]:
        """Every figure of `specsim.metrics.RunMetrics`, nan as None."""
        return plain_numbers(asdict(summarise(result, self.question.slo)))

    def identity(self) -> dict[str, Any]:
        """What, beside trace, profile, policy and seed, decides the result."""
        deployment = self.question.deployment
        drafts = self.policy.kind != "off"
        return {
            "limits": asdict(self.side.limits) | {"trees": [asdict(tree) for tree in self.side.trees]},
            "replicas": deployment.replicas,
            "router": deployment.router,
            "disaggregation": None if self.side.disaggregation is None else asdict(self.side.disaggregation),
            "slo": asdict(self.question.slo),
            "warmup_share": self.warmup_share,
            "concurrency": self.concurrency,
            "rate_scale": self.rate_scale,
            "plain": self.plain,
            # Without speculation no draft is ever drawn, so runs are shared by all acceptance models.
            "acceptance": acceptance_fingerprint(self.question.acceptance) if drafts else "",
        }

    def describe(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The JSON form of the run: metrics, where its numbers came from, warnings."""
        question, profile, trace = self.question, self.side.profile, self.trace
        k = self.policy.num_spec_tokens
        return {
            "schema_version": SCHEMA_VERSION,
            "policy": {**asdict(self.policy), "label": self.policy.label},
            "seed": self.seed,
            "load": {
                "requests": len(trace),
                "rate_per_s": trace.rate_per_s * self.rate_scale
                if self.concurrency is None and trace.rate_per_s
                else None,
                "concurrency": self.concurrency,
                "warmup_share": self.warmup_share,
            },
            "trace": {
                "source": trace.meta.source,
                "format": trace.meta.format,
                "time_unit": trace.meta.time_unit,
                "rows_read": trace.meta.rows_read,
                "rows_kept": trace.meta.rows_kept,
                "dropped": dict(trace.meta.dropped),
                "notes": list(trace.meta.notes),
            },
            "deployment": {
                **asdict(question.deployment),
                "engine_version": question.deployment.version,
                "names": dict(question.names),
                "kv_link": kv_link(self.side),
            },
            "speculation": asdict(question.speculation),
            "slo": asdict(question.slo),
            "limits": asdict(self.side.limits),
            "profile": {
                "name": profile.name,
                "kind": profile.kind,
                "sha256": profile.sha256,
                "relative_error": profile.relative_error,
                "covers": dict(profile.covers),
                "notes": list(profile.notes),
            },
            "acceptance": None
            if not k
            else {
                "source": question.acceptance_source,
                "expected_length": question.acceptance.expected_length(k),
                "relative_error": question.acceptance_error,
            },
            "engine": "plain" if self.plain else "fast",
            "metrics": metrics,
            "warnings": self._warnings(metrics),
            "assumed": list(question.assumed),
            "not_modelled": not_modelled(question.deployment),
        }

    def _extrapolated(self, metrics: dict[str, Any]) -> tuple[str, ...]:
        k = self.policy.num_spec_tokens
        prompts = self.trace.prompt_tokens.astype(np.int64)
        return self.side.extrapolated(
            requests=metrics["peak_batch"],
            width=1 + self.question.verified_drafts(k) if k else 1,
            context_tokens=int((prompts + self.trace.output_tokens).max()),
            prompt_tokens=int(prompts.max()),
        )

    def _warnings(self, metrics: dict[str, Any]) -> list[str]:
        found = [*self.trace.meta.warnings, *self.side.notes, *self._extrapolated(metrics)]
        if metrics["rejected"]:
            found.append(
                f"{metrics['rejected']} requests were refused: longer than {self.side.limits.max_model_len} tokens or "
                f"than the whole cache."
            )
        offered, served = metrics["offered_requests_per_s"], metrics["served_requests_per_s"]
        growth, busy = metrics["backlog_growth_share"], max(metrics[name] or 0.0 for name in BUSY_METRICS)
        behind = growth is not None and growth > SATURATED_GROWTH and busy >= SATURATED_BUSY
        if self.concurrency is None and behind:
            found.append(
                f"The fleet falls behind: {served:.3g} of {offered:.3g} requests/s are served, so latencies grow with "
                f"the length of the trace."
            )
        if metrics["preemptions"]:
            found.append(f"The cache ran out {metrics['preemptions']} times (preemptions, recomputed later).")
        if metrics["requests"] < 100:
            found.append(f"Only {metrics['requests']} requests were measured: percentiles say little.")
        return found
