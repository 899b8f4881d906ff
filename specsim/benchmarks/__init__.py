"""Result files of benchmark clients: vLLM's, SGLang's, aiperf, guidellm. Read, never run."""

from specsim.benchmarks.model import Acceptance, Benchmark
from specsim.benchmarks.read import read_benchmarks

__all__ = ["Acceptance", "Benchmark", "read_benchmarks"]
