"""`specsim profile`: latency profiles that ship with specsim, are stored, or lie in files."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.profile_input import StoredProfiles, points_file

if TYPE_CHECKING:
    from calibrate.points import Point
    from specsim.profiles import LatencyProfile

__all__ = ["profile"]

_db_option = click.option(
    "--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.group()
def profile() -> None:
    """Latency profiles: list, show, compare, transfer, export, import.

    NAME is one that ships with specsim, a file, or the name or beginning of the hash of a stored one.
    """


@profile.command("list")
@click.option("--all", "show_all", is_flag=True, help="Analytic ones of stored plans too.")
@_db_option
@_json_option
def list_profiles(show_all: bool, db: str | None, as_json: bool) -> None:
    """List profiles that ship with specsim and those that are stored."""
    from scenarios.profiles import load_profile, profile_names
    from specsim.report.text import Page, percent

    rows: list[dict[str, Any]] = []
    for name in profile_names():
        rows.append({"name": name, "where": "shipped", **_summary(load_profile(name))})
    for stored in StoredProfiles(db).profiles:
        if show_all or stored.kind != "analytic":
            rows.append({"name": stored.name, "where": stored.sha256[:12], **_summary(stored)})
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "profiles": rows}, indent=2))
        return
    page = Page()
    page.table(
        ("name", "where", "kind", "points", "held-out", "batch to"),
        [
            (
                row["name"][:34], row["where"], row["kind"], str(row["points"] or "-"),
                percent(row["holdout_median"]) if row["holdout_points"] else "-", str(row["requests_max"] or "-"),
            )
            for row in rows
        ],
    )  # fmt: skip
    click.echo(page.text().rstrip("\n"))


def _summary(item: LatencyProfile) -> dict[str, Any]:
    e = item.evidence
    return {
        "title": item.name,
        "kind": item.kind,
        "sha256": item.sha256,
        "target": item.covers.get("target"),
        "method": item.covers.get("method"),
        "gpu": item.covers.get("gpu"),
        "relative_error": item.relative_error,
        "points": 0 if e is None else e.points,
        "holdout_points": 0 if e is None else e.holdout_points,
        "holdout_median": None if e is None else e.holdout_median,
        "requests_max": None if e is None or "requests" not in e.ranges else int(e.ranges["requests"][1]),
    }


@profile.command("show")
@click.argument("name")
@click.option("--points", metavar="FILE.jsonl", help="Its measured points.  [default: those beside its file]")
@click.option("--full", is_flag=True, help="Show every point.")
@click.option("-o", "--out", metavar="FILE.svg|png", help="Draw points against the fit (needs matplotlib).")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@_db_option
@_json_option
def show(
    name: str, points: str | None, full: bool, out: str | None, force: bool, db: str | None, as_json: bool
) -> None:
    """Show a profile and the points it rests on.

    Terms with intervals, the error at held-out points, and every measured point against the fit.
    """
    from specsim.report.files import check_file
    from specsim.report.profile import profile_text

    if out is not None:
        check_file("-o", out, (".svg", ".png"), force=force)
    found = StoredProfiles(db).find(name)
    measured = _points(name, points)
    if out is not None:
        from specsim.report.profile_figure import write_figure

        write_figure(found, measured, out)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    click.echo(profile_text(found, points=measured, full=full).rstrip("\n"))


@profile.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--context", type=click.IntRange(min=1), default=512, show_default=True, help="Cached tokens a request.")
@_db_option
def compare(a: str, b: str, context: int, db: str | None) -> None:
    """Compare two profiles: step times by batch and k, and terms."""
    from specsim.report.profile import comparison_text

    click.echo(
        comparison_text(StoredProfiles(db).find(a), StoredProfiles(db).find(b), context_tokens=context).rstrip("\n")
    )


@profile.command("transfer")
@click.argument("name")
@click.option("--to", "gpu", metavar="GPU", help="GPU of the catalogue.  [default: where it was measured]")
@click.option("--tp", type=click.IntRange(min=1), metavar="N", help="GPUs of a replica; default: as measured.")
@click.option("--dtype", metavar="DTYPE", help="Of the weights; default: as measured.")
@click.option("-o", "--out", metavar="FILE.json", help="Write the profile.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@_db_option
def transfer(
    name: str, gpu: str | None, tp: int | None, dtype: str | None, out: str | None, force: bool, db: str | None
) -> None:
    """Carry a measured profile to another GPU.

    Each term moves by the ratio of datasheet rooflines; launches and host time stay. The result is labelled
    transferred, has a wider band, and says what of the attention kernel does not carry.

    \b
        specsim profile transfer mine.json --to h200-sxm -o mine-h200.json
    """
    from scenarios.carried import carried_to
    from scenarios.hardware import gpu as find_gpu
    from scenarios.hardware import known_gpu
    from specsim.cli.calibrate_fit import write_profile
    from specsim.errors import ProfileError
    from specsim.report.files import check_file
    from specsim.report.profile import profile_text

    if out is not None:
        check_file("-o", out, (".json",), force=force)
    elif force:
        raise ProfileError("--force is for -o; leave it out")
    found = StoredProfiles(db).find(name)
    if found.kind == "analytic":
        raise ProfileError(
            f"profile '{found.name}' is analytic, and so would be its like for another GPU: leave --profile out there"
        )
    device = known_gpu(found.covers.get("gpu", ""))
    if gpu is None and device is None:
        where = found.covers.get("gpu", "an unnamed device")
        raise ProfileError(
            f"profile '{found.name}' was measured on '{where}', which the catalogue does not list: it cannot be "
            "carried. A profile of a GPU that specsim hardware list shows can, with --to GPU; elsewhere measure with "
            "specsim calibrate latency"
        )
    to = device if gpu is None else find_gpu(gpu)
    assert to is not None
    carried = carried_to(found, to, tp=tp, weight_dtype=dtype)
    if carried is found:
        raise ProfileError(
            f"profile '{found.name}' is of that already; say what is to change with --to, --tp or --dtype"
        )
    if out is not None:
        write_profile(carried, out)
    click.echo(profile_text(carried).rstrip("\n"))


@profile.command("export")
@click.argument("name")
@click.option("-o", "--out", required=True, metavar="FILE.json", help="Where to write it.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@_db_option
def export(name: str, out: str, force: bool, db: str | None) -> None:
    """Write a shipped or stored profile to a file.

    For --profile, or for another machine.
    """
    from specsim.cli.calibrate_fit import write_profile
    from specsim.report.files import check_file

    check_file("-o", out, (".json",), force=force)
    write_profile(StoredProfiles(db).find(name), out)


@profile.command("import")
@click.argument("file")
@click.option("--target", metavar="MODEL", help="Of vllm bench forward: the model that was served.")
@click.option("--gpu", metavar="NAME", help="Likewise: the GPU of the catalogue.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Likewise: tensor parallelism.")
@click.option("--dtype", default="bf16", show_default=True, help="Likewise: of the weights.")
@click.option(
    "--method", default="ngram", show_default=True, help="Likewise: drafter without a model of its own, or none."
)
@click.option("--attention-backend", default="unknown", show_default=True, help="Likewise.")
@click.option("--engine-version", default="unknown", show_default=True, help="Likewise.")
@click.option("-o", "--out", metavar="FILE.json", help="Write the profile; its points are kept beside it.")
@click.option("--force", is_flag=True, help="Replace the file of -o.")
@_db_option
def import_profile(file: str, out: str | None, force: bool, db: str | None, **values: Any) -> None:
    """Store a profile of a file, or one of a benchmark.

    What vllm bench forward --output-json writes is fitted first.

    \b
        specsim profile import from-the-gpu-box.json
        specsim profile import forward.json --target llama-3.1-8b --gpu h100-sxm -o mine.json
    """
    from db.store import Store
    from specsim.errors import ProfileError
    from specsim.report.files import check_file

    if out is not None:
        check_file("-o", out, (".json",), force=force)
    if _is_profile(file):
        from scenarios.profiles import load_profile

        context = click.get_current_context()
        given = [f"--{name.replace('_', '-')}" for name in values
                 if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]  # fmt: skip
        if given:
            raise ProfileError(f"{file} is a profile and says itself what it is for; leave out {', '.join(given)}")
        found = load_profile(file)
    else:
        found = _fitted(file, values, out)
    if out is not None:
        from specsim.cli.calibrate_fit import write_profile

        write_profile(found, out)
    with Store.open(db) as store:
        store.save_profile(found.sha256, name=found.name, kind=found.kind, body=found.to_dict())
        click.echo(f"Stored {found.sha256[:12]} in {store.name}: {found.name}")


def _is_profile(file: str) -> bool:
    """Whether a file says that it is a profile, so that anything else is taken for a benchmark's."""
    from scenarios.profiles import profile_path

    try:
        with open(profile_path(file), encoding="utf-8") as opened:
            data = json.load(opened)
    except (OSError, ValueError, RecursionError):
        return True  # its own reader says what is wrong
    return isinstance(data, dict) and "profile_version" in data


def _fitted(file: str, values: dict[str, Any], out: str | None) -> LatencyProfile:
    from calibrate.bench_forward import read_bench_forward
    from calibrate.points import PointFile, Setup, points_sha256
    from scenarios.hardware import gpu
    from scenarios.models import model
    from specsim.cli.calibrate_fit import fitted_profile
    from specsim.drafters import drafter
    from specsim.errors import ProfileError

    for name in ("target", "gpu"):
        if values[name] is None:
            raise ProfileError(f"{file}: a benchmark does not say its {name}; give --{name}")
    shape = model(values["target"])
    method = "none" if values["method"] == "none" else drafter(values["method"]).name
    if method != "none" and drafter(method).runs_model:
        raise ProfileError(
            f"--method {method} runs a model, of which vllm bench forward says nothing; give ngram or none"
        )
    setup = Setup(
        target=shape.name, device=gpu(values["gpu"]).name, backend="imported", clock="device", dtype=values["dtype"],
        attention_backend=values["attention_backend"], engine=f"vllm {values['engine_version']}",
        methods=() if method == "none" else (method,), tp=values["tp"], num_layers=shape.num_layers,
        shapes={"target": asdict(shape)},
    )  # fmt: skip
    points = read_bench_forward(file)
    if out is not None:
        beside = out.removesuffix(".json") + ".points.jsonl"
        with PointFile(beside, setup) as kept:
            known = {point.key for point in kept.points}
            for point in points:
                if point.key not in known:
                    kept.add(point)
    return fitted_profile(setup, points, method, sha256=points_sha256(setup, points))


def _points(name: str, points: str | None) -> list[Point]:
    from calibrate.points import read_points

    if points is None:
        beside = points_file(name)
        if beside is None:
            return []
        points = str(beside)
    return read_points(points)[1]
