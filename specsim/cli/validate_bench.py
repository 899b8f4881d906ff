"""`specsim validate bench`: results of benchmark clients held against predictions of the same requests and load."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from specsim.cli.scenario_options import deployment_options, speculation_options
from specsim.cli.validation_kept import append_row, kept_validation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specsim.planner.benched import Arm

__all__ = ["bench"]


@click.command(short_help="Hold predictions against results of a benchmark client.")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--on", multiple=True, metavar="FILE", help="A result with speculation, where the file does not say.")
@click.option("--off", multiple=True, metavar="FILE", help="A result without speculation, likewise.")
@click.option("--scenario", metavar="SCENARIO", help="Deployment and speculation of a scenario; flags overrule it.")
@click.option("--policy", metavar="POLICY", help="What the engine followed.  [default: static:K]")
@deployment_options
@speculation_options
@click.option("--luck", type=click.IntRange(1, 100), default=5, show_default=True, help="Simulations of each load.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of luck and drawn arrivals.")
@click.option("--append-to", metavar="FILE.jsonl", help="Add the result to the rows that validation pages print.")
@click.option("--db", envvar="SPECSIM_DB", metavar="PATH|URL", help="Results database.  [default: specsim.db]")
@click.option("--store/--no-store", default=True, show_default=True, help="Keep the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def bench(
    files: tuple[str, ...], on: tuple[str, ...], off: tuple[str, ...], luck: int, seed: int, append_to: str | None,
    db: str | None, store: bool, as_json: bool, **values: Any,
) -> None:  # fmt: skip
    """Hold predictions against results of a benchmark client.

    FILEs are results of vllm bench serve (--save-result), sglang bench_serving, aiperf (profile_export_aiperf.json) or
    guidellm. Load, lengths, and acceptance where the engine counted it, come from the file; flags say the rest. The
    same requests are simulated, and signed errors are printed beside the noise between files of the same settings.
    Files with and without speculation give its speed-up. What the client saw of queues is not used.

    \b
        specsim validate bench off.json on.json --gpu h100-sxm --method eagle3
    """
    from specsim.cli.bench_input import arms_of, runs_of
    from specsim.cli.profile_input import StoredProfiles
    from specsim.planner.benched import held_against
    from specsim.report.benched import benched_text
    from specsim.report.files import check_file

    if append_to is not None:
        check_file("--append-to", append_to, (".jsonl",), force=True)
    arms = arms_of(runs_of(files, on, off, values), values, StoredProfiles(db, read=store))
    if sys.stderr.isatty() and not as_json:
        with click.progressbar(length=len(arms), label="simulating", file=sys.stderr) as bar:
            found = held_against(arms, luck=luck, seed=seed, progress=bar.update)
    else:
        found = held_against(arms, luck=luck, seed=seed)
    result = _result(arms, found)
    if store:
        profile = next((arm.question.on for arm in arms if arm.policy.kind != "off"), arms[0].question.off).profile
        result = {"validation_id": kept_validation(db, result, kind="bench", profile=profile), **result}
    if append_to is not None:
        append_row(append_to, result)
    click.echo(json.dumps(result, allow_nan=False) if as_json
               else benched_text(result, color=sys.stdout.isatty()).rstrip("\n"))  # fmt: skip


def _result(arms: Sequence[Arm], found: dict[str, Any]) -> dict[str, Any]:
    from specsim.planner.benched import SCHEMA_VERSION, deployment_of

    main = next((arm for arm in arms if arm.policy.kind != "off"), arms[0])
    question, drafts = main.question, main.policy.kind != "off"
    deployment = question.deployment
    names = question.names
    subject = names["target"] + (f", {question.speculation.method} {main.policy.label}," if drafts else "")
    subject += f" on {deployment.tp if deployment.tp > 1 else ''}{' x ' if deployment.tp > 1 else ''}{names['gpu']}"
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "bench",
        "date": datetime.now(UTC).date().isoformat(),
        "status": "complete",
        "subject": f"{subject}, {deployment.engine}",
        "checks": [*question.assumed, *found.pop("range")],
        **deployment_of(question),
        **found,
    }
