"""The reference engine: a small continuous-batching server that really computes, to hold the simulator against.

Read in this order: `engine.py` (the loop), `model_runner.py` (one step on a real model), `verify.py` (what a round
emits). Scheduling is that of `specsim.engine.core`, shared with the simulator.
"""

from calibrate.engine.clock import Clock, ProcessorClock, RealClock, VirtualClock
from calibrate.engine.engine import serve
from calibrate.engine.model_runner import ModelRunner
from calibrate.engine.recorded_runner import RecordedRunner
from calibrate.engine.records import RoundRecord, Served, StepRecord
from calibrate.engine.runner import Outcome, Runner
from calibrate.engine.verify import Sampling

__all__ = [
    "Clock",
    "ModelRunner",
    "Outcome",
    "ProcessorClock",
    "RealClock",
    "RecordedRunner",
    "RoundRecord",
    "Runner",
    "Sampling",
    "Served",
    "StepRecord",
    "VirtualClock",
    "serve",
]
