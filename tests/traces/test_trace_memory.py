"""A million rows stay under 500 MiB in the whole process, with 25 prefix hashes a row too, sorted or not."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

ROWS = 1_000_000
LIMIT_MIB = 500

MEASURE = """
import sys
from specsim.traces import read_trace
from specsim.traces.stats import describe
trace = read_trace(sys.argv[1])
describe(trace)
try:  # getrusage of a child starts at the peak of the process that forked it
    status = open("/proc/self/status").read()
    peak_kib = int(status.split("VmHWM:")[1].split()[0])
except OSError:
    import resource
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
print(len(trace), peak_kib // 1024)
"""


def azure_csv(out):
    rng = random.Random(1)
    out.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
    t = 0.0
    for _ in range(ROWS):
        t += rng.expovariate(20)
        s = int(t)
        clock = f"2023-11-{16 + s // 86400:02d} {s // 3600 % 24:02d}:{s // 60 % 60:02d}:{s % 60:02d}"
        out.write(f"{clock}.{int((t - s) * 1e7):07d},{1 + s % 4000},{1 + s % 400}\r\n")


def mooncake_jsonl(out):
    """Every row has 25 hashes, of which ten are shared; two rows in three are out of order."""
    rng = random.Random(2)
    own = ", ".join(["%d"] * 15)
    shared = [", ".join(str(1000 * n + i) for i in range(10)) for n in range(1000)]
    for i in range(ROWS):
        t = i * 50 + rng.randrange(200)
        ids = own % tuple(range(10**6 + 15 * i, 10**6 + 15 * i + 15))
        out.write(
            f'{{"timestamp": {t}, "input_length": 12700, "output_length": 9,'
            f' "hash_ids": [{rng.choice(shared)}, {ids}]}}\n'
        )


@pytest.mark.slow
@pytest.mark.parametrize("write", [azure_csv, mooncake_jsonl])
def test_a_million_rows_stay_small(tmp_path, write):
    path = tmp_path / "big"
    with open(path, "w", newline="") as out:
        write(out)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    rows, peak_mib = done.stdout.split()
    path.unlink()
    assert int(rows) == ROWS
    assert int(peak_mib) < LIMIT_MIB
