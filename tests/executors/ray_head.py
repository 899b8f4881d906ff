"""Starts a Ray cluster of two workers on this machine, says its address, and ends it when standard input closes."""

from __future__ import annotations

import sys

import ray

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()
