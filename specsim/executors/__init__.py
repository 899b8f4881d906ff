"""Executors: where independent jobs run, on local processes or on a Ray cluster; one file each behind `base.Executor`.

What comes out never depends on the executor, the number of workers or the order in which they finish.
"""

from __future__ import annotations

from specsim.executors.base import Crew, Done, Executor
from specsim.executors.local import LocalProcesses, run_jobs

__all__ = ["Crew", "Done", "Executor", "LocalProcesses", "run_jobs"]
