"""`specsim calibrate`: measure on this machine, and fit profiles to what was measured."""

from __future__ import annotations

import click

from specsim.cli.calibrate_acceptance import acceptance
from specsim.cli.calibrate_draft import draft
from specsim.cli.calibrate_fit import fit
from specsim.cli.calibrate_latency import latency
from specsim.cli.calibrate_session import session

__all__ = ["calibrate"]


@click.group()
def calibrate() -> None:
    """Measure on this machine, and fit what was measured.

    latency and fit give a profile file for --profile of plan, crossover and simulate, acceptance a file of measured
    requests for their --acceptance-file.
    """


calibrate.add_command(latency)
calibrate.add_command(fit)
calibrate.add_command(acceptance)
calibrate.add_command(draft)
calibrate.add_command(session)
