"""Runs what its one argument says, as JSON, on a Ray cluster, and prints what came of it, as JSON.

Commands of specsim one after the other in one process, since connecting takes longer than they do; then the jobs of
`squares`, some of which kill their workers.
"""

from __future__ import annotations

import json
import sys
from collections import deque

from click.testing import CliRunner
from squares import squares

from specsim.cli import cli
from specsim.executors.ray_cluster import RayCluster

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    outputs = []
    for command in asked["commands"]:
        done = CliRunner().invoke(cli, [*command, "--executor", "ray", "--address", asked["address"]])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        outputs.append([done.exit_code, done.stdout, done.stderr])
    jobs: dict[int, list[object]] = {}
    executor = RayCluster(asked["address"])
    with executor.crew(squares, (asked["folder"],)) as crew:
        for one in crew.run(deque(asked["jobs"])):
            jobs[one.job] = [one.value, None if one.error is None else str(one.error)]
    print(json.dumps({"outputs": outputs, "jobs": jobs}))
