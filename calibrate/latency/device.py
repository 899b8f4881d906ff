"""The device at hand: which it is, what it tells of itself, how its work is waited for, and how time is taken on it.

Models: CUDA and ROCm (both `cuda` to torch), MPS, CPU. What a driver does not tell is recorded as unknown.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from specsim.errors import CapacityError, ScenarioError

__all__ = ["CLOCKS", "Device", "find_device", "is_out_of_memory", "memory_suffices"]

CLOCKS: Mapping[str, str] = {
    "wall": "time on the wall, the device waited for",
    "device": "events on the device itself",
    "cpu": "processor time of this process, so that other programs on the same cores do not count",
}
_SMI = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_SMI_FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "pstate")
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Device:
    """A torch device with a clock."""

    torch_device: torch.device
    name: str
    backend: str
    """cuda, rocm, mps or cpu."""
    clock: str
    """One of `CLOCKS`."""
    threads: int
    """Threads of the CPU backend; 0 elsewhere."""
    memory_bytes: float
    facts: Mapping[str, str]
    """Driver, versions, limits."""

    def synchronise(self) -> None:
        """Wait until everything that was launched is done."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)
        elif self.torch_device.type == "mps":
            torch.mps.synchronize()

    def time_s(self, work: Callable[[], object]) -> float:
        """Seconds of one call, waited for, on the device's clock."""
        self.synchronise()
        if self.clock == "device":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        now = time.process_time if self.clock == "cpu" else time.perf_counter
        start = now()
        work()
        self.synchronise()
        return now() - start

    def state(self) -> dict[str, float]:
        """Clocks in MHz, power in W, temperature in degrees Celsius, as far as the driver tells."""
        return _numbers(_smi(_SMI)) if self.backend == "cuda" else {}

    def free_bytes(self) -> float:
        """Memory that is free now."""
        if self.torch_device.type == "cuda":
            return float(torch.cuda.mem_get_info(self.torch_device)[0])
        if self.torch_device.type == "mps":
            return self.memory_bytes - float(torch.mps.driver_allocated_memory())
        return _meminfo("MemAvailable") or self.memory_bytes

    def release(self) -> None:
        """Give cached memory back."""
        if self.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.torch_device.type == "mps":
            torch.mps.empty_cache()

    @property
    def captures(self) -> bool:
        """Whether it has graphs."""
        return self.torch_device.type == "cuda"

    def captured(self, work: Callable[[], object]) -> Callable[[], object] | None:
        """A call that replays `work` as one graph launch; None where graphs do not exist or the work cannot be one."""
        if not self.captures:
            return None
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # work that waits for the host, such as routing of experts in a loop
            torch.cuda.synchronize()
            return None
        return graph.replay


def find_device(wanted: str = "auto", *, clock: str = "auto", threads: int | None = None) -> Device:
    """The device to measure on.

    Args:
        wanted: auto (cuda, then mps, then cpu), or a torch device such as `cuda:1`.
        clock: auto (events on a GPU, else the wall), or one of `CLOCKS`.
        threads: of the CPU backend; None: as torch chooses.

    Raises:
        ScenarioError: a device that is not there, or a clock that it does not have.
    """
    has_mps = torch.backends.mps.is_available()
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ScenarioError(f"--device {wanted!r} is no device; give cuda, cuda:1, mps or cpu") from None
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": has_mps}
    if not here.get(device.type, False):
        have = ", ".join(name for name, present in here.items() if present)
        raise ScenarioError(f"--device {wanted}: torch {torch.__version__} finds no such device here; it finds {have}")
    if clock == "auto":
        clock = "device" if device.type == "cuda" else "wall"
    if clock not in CLOCKS:
        raise ScenarioError(f"--clock {clock!r} is not auto, {', '.join(CLOCKS)}")
    if clock == "device" and device.type != "cuda":
        raise ScenarioError(f"--clock device needs a GPU with events, and the device is {device.type}; use wall or cpu")
    if clock == "cpu" and device.type != "cpu":
        raise ScenarioError(f"--clock cpu sees nothing of work on {device.type}; use device or wall")
    if threads is not None and device.type != "cpu":
        raise ScenarioError(f"--threads is for --device cpu; on {device.type} leave it out")
    if threads is not None:
        torch.set_num_threads(threads)
    if clock == "cpu" and torch.get_num_threads() != 1:
        raise ScenarioError("--clock cpu adds up the time of all threads; give --threads 1 with it")
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        properties = torch.cuda.get_device_properties(index)
        backend = "rocm" if torch.version.hip else "cuda"
        facts = versions | {"runtime": str(torch.version.hip or torch.version.cuda)}
        if backend == "cuda":
            facts |= _smi(_SMI_FACTS)
        return Device(
            torch.device("cuda", index), properties.name, backend, clock, 0, float(properties.total_memory), facts
        )
    if device.type == "mps":
        memory = float(torch.mps.recommended_max_memory())
        return Device(device, f"Apple GPU, {platform.machine()}", "mps", clock, 0, memory, versions)
    count = torch.get_num_threads()
    name = f"{_cpu_name()}, {count} thread{'s' if count > 1 else ''}"
    memory = _meminfo("MemTotal") or 8e9
    facts = versions | {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "cores": str(os.cpu_count())}
    return Device(device, name, "cpu", clock, count, memory, facts)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device's memory does not suffice."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


@contextmanager
def memory_suffices(way_out: str) -> Iterator[None]:
    """Says in one line that the memory of the device does not suffice for the work within.

    Raises:
        CapacityError: it does not; with `way_out`.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(f"out of memory on the device; {way_out}") from None


def _smi(fields: tuple[str, ...]) -> dict[str, str]:
    """Answers of nvidia-smi for the first GPU; `unknown` where there is none or it does not tell."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        values = [text.strip() for text in done.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError):
        values = []
    values += [_UNKNOWN] * (len(fields) - len(values))
    return {name: _UNKNOWN if "N/A" in value else value for name, value in zip(fields, values, strict=True)}


def _numbers(texts: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name, text in texts.items():
        try:
            found[name] = float(text)
        except ValueError:
            continue
    return found


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _meminfo(name: str) -> float | None:
    """Bytes of a line of /proc/meminfo, where there is one."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
