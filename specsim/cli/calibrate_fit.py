"""`specsim calibrate fit`: measured points to a latency profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calibrate.points import Point, Setup
    from specsim.profiles import LatencyProfile

__all__ = ["fit", "fitted_profile", "link_latency", "write_profile"]


@click.command()
@click.argument("points")
@click.option("--method", metavar="NAME", help="Drafter, or none.  [default: the first that was measured]")
@click.option("--link-gpu", metavar="NAME", help="Catalogue GPU whose link carries collectives, when tp is above 1.")
@click.option("--name", metavar="TEXT", help="Of the profile.  [default: target, device and method]")
@click.option("-o", "--out", metavar="FILE.json", help="Write the profile; without it only the fit is shown.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON instead of text.")
def fit(
    points: str,
    method: str | None,
    link_gpu: str | None,
    name: str | None,
    out: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a latency profile to measured points.

    POINTS is a file of specsim calibrate latency, or of specsim profile import.

    \b
        specsim calibrate fit smollm2.points.jsonl --method layer_skip -o smollm2-layer_skip.json
    """
    from calibrate.points import read_points
    from specsim.report.files import check_file
    from specsim.report.profile import profile_text

    if out is not None:
        check_file("-o", out, (".json",), force=force)
    setup, found, sha256 = read_points(points)
    chosen = method or (setup.methods[0] if setup.methods else "none")
    profile = fitted_profile(setup, found, chosen, sha256=sha256, name=name, link_gpu=link_gpu)
    if out is not None:
        write_profile(profile, out)
    click.echo(json.dumps(profile.to_dict()) if as_json else profile_text(profile, points=found).rstrip("\n"))


def fitted_profile(
    setup: Setup,
    points: Sequence[Point],
    method: str,
    *,
    sha256: str,
    name: str | None = None,
    options: Mapping[str, int] | None = None,
    link_gpu: str | None = None,
) -> LatencyProfile:
    """The profile of one method, collectives from link data included.

    Raises:
        ProfileError: see `calibrate.fit.assemble.fit_profile`.
        CatalogueError: unknown GPU.
    """
    from dataclasses import replace

    from calibrate.fit.assemble import fit_profile
    from calibrate.fit.priors import priors_of
    from specsim.drafters import drafter
    from specsim.errors import ProfileError

    chosen = "none" if method == "none" else drafter(method).name
    title = name or f"measured {setup.target} {setup.dtype} {setup.device} tp{setup.tp} {chosen}"
    imported = setup.backend == "imported"
    profile = fit_profile(
        setup, points, method=chosen, name=title, kind="imported" if imported else "measured", points_sha256=sha256,
        options=options, priors=priors_of(setup, points),
    ).profile  # fmt: skip
    if setup.tp == 1 or imported:
        if link_gpu is not None:
            raise ProfileError(f"--link-gpu {link_gpu}: the points were measured with all their collectives (tp "
                               f"{setup.tp}); leave it out")  # fmt: skip
        return profile
    if link_gpu is None:
        return replace(profile, notes=(*profile.notes, "Collectives are left out: no link was named (--link-gpu)."))
    latency_s, token_s = link_latency(setup, link_gpu)
    target = replace(profile.target, fixed_s=profile.target.fixed_s + latency_s, collective_token_s=token_s)
    note = f"Collectives of tp {setup.tp} are not measured: modelled from the link of {link_gpu} in the catalogue."
    return replace(
        profile, target=target, notes=(*profile.notes, note),
        sources={**profile.sources, "collective_token_s": f"modelled from link data of {link_gpu}"},
    )  # fmt: skip


def link_latency(setup: Setup, link_gpu: str) -> tuple[float, float]:
    """(seconds a pass, seconds a token) of the collectives of a setup over the link of a catalogue GPU."""
    from scenarios.hardware import gpu
    from specsim.analytic import collectives_s
    from specsim.shapes import ModelShape

    shape = ModelShape(**{**setup.shapes["target"], "doubtful": ()})
    return collectives_s(shape, gpu(link_gpu), setup.tp)


def write_profile(profile: LatencyProfile, out: str) -> None:
    """Write a profile file, whole or not at all."""
    from specsim.report.files import whole_file

    with whole_file("-o", out) as file:
        file.write(json.dumps(profile.to_dict(), indent=1) + "\n")
    click.echo(f"Wrote {Path(out)}; use it with --profile {out}", err=True)
