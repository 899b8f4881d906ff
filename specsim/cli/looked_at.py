"""What a single run is looked at for beside its metrics: a file of requests, an explanation, a timeline.

None of it is stored, so a run that is known is simulated again for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specsim.errors import ScenarioError
from specsim.report.files import check_file, whole_file
from specsim.traces.options import parse_window

if TYPE_CHECKING:
    from specsim.explain.timeline import Timeline
    from specsim.planner.single import SingleRun

__all__ = ["TIMELINE_MB", "LookedAt"]

TIMELINE_MB = 50.0
"""Size at which a timeline ends unless the user says otherwise."""
_SUFFIXES = {"--requests-out": (".csv", ".jsonl"), "--timeline": (".json",)}


@dataclass(frozen=True)
class LookedAt:
    """What was asked for. False when nothing was."""

    requests_out: str | None = None
    explain: bool = False
    timeline: str | None = None
    window: str | None = None
    max_mb: float | None = None

    def __bool__(self) -> bool:
        return bool(self.requests_out or self.explain or self.timeline)

    @property
    def files(self) -> dict[str, str]:
        """Flag -> file that it writes."""
        named = {"--requests-out": self.requests_out, "--timeline": self.timeline}
        return {flag: path for flag, path in named.items() if path is not None}

    def check(self, *, force: bool) -> None:
        """Refuse what could not be done, before anything is simulated.

        Raises:
            ScenarioError: a file that cannot be written or may not be replaced, a flag without its use, a bad window.
        """
        for flag, path in self.files.items():
            check_file(flag, path, _SUFFIXES[flag], force=force)
        if force and not self.files:
            raise ScenarioError("--force does nothing without --requests-out or --timeline; leave it out")
        for flag, value in (("--timeline-window", self.window), ("--timeline-mb", self.max_mb)):
            if value is not None and self.timeline is None:
                raise ScenarioError(f"{flag} does nothing without --timeline; leave it out")
        if self.max_mb is not None and not 0.1 <= self.max_mb <= 10_000:
            raise ScenarioError(f"--timeline-mb must be a number of megabytes in 0.1..10000, got {self.max_mb!r}")
        if self.window is not None:
            parse_window(self.window)

    def simulate(self, run: SingleRun) -> tuple[dict[str, Any], dict[str, Any]]:
        """(metrics, what else was asked for, by its name in the JSON of the run)."""
        found: dict[str, Any] = {}
        with self._drawing(run, found) as observers:
            if self.explain:
                from specsim.explain.explanation import explain

                result, found["explain"] = explain(run, observers)
            else:
                result = run.simulate(observers)
            for observer in observers:
                observer.close(result.end_s)
        if self.requests_out is not None:
            from specsim.report.run import write_requests

            write_requests(result, self.requests_out)
        return run.metrics(result), found

    @contextmanager
    def _drawing(self, run: SingleRun, found: dict[str, Any]) -> Iterator[list[Timeline]]:
        """A timeline that looks on, if one was asked for; what is to be said of it goes to `found`."""
        if self.timeline is None:
            yield []
            return
        from specsim.explain.timeline import Timeline

        start_s, end_s = (0.0, math.inf) if self.window is None else parse_window(self.window)
        max_mb = TIMELINE_MB if self.max_mb is None else self.max_mb
        with whole_file("--timeline", self.timeline) as out:
            timeline = Timeline(
                out,
                run.side.cost,
                prompt_tokens=run.trace.prompt_tokens,
                output_tokens=run.trace.output_tokens,
                start_s=start_s,
                end_s=end_s,
                max_bytes=int(max_mb * 1e6),
                prefill_replicas=run.question.deployment.prefill_replicas or 0,
            )
            yield [timeline]
        found["timeline"] = {"file": self.timeline, **timeline.facts()}
