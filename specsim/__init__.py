"""specsim: where speculative decoding stops paying, on a real trace and given hardware.

    from specsim import read_trace, simulate

Names are imported on first use, so that `import specsim` is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "LatencyProfile": "specsim.profiles",
    "PolicySpec": "specsim.config",
    "ReplicaLimits": "specsim.config",
    "Slo": "specsim.config",
    "StepCost": "specsim.latency",
    "Trace": "specsim.traces.model",
    "Workload": "specsim.workload",
    "read_trace": "specsim.traces",
    "simulate": "specsim.engine.simulator",
    "summarise": "specsim.metrics",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specsim' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
