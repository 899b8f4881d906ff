"""`specsim config`: the exact flags and files with which an engine does what a stored plan says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specsim.config import PolicySpec
    from specsim.planner.question import Question

__all__ = ["config"]

SCHEMA_VERSION = 1


@click.command()
@click.argument("id")
@click.option("--engine", metavar="NAME", help="vllm, sglang, trtllm or llamacpp; default: that of the plan.")
@click.option("--engine-version", metavar="X.Y.Z", help="Version to write for; default: that of the plan, or as read.")
@click.option("--policy", metavar="POLICY", help="Another policy: a label of the plan, or as specsim plan takes it.")
@click.option("-o", "--output", metavar="FOLDER", help="Write the command as serve.sh, and its files, into a folder.")
@click.option("--force", is_flag=True, help="Replace what exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--db", metavar="PATH_OR_URL", help="Results database; default SPECSIM_DB or specsim.db here.")
def config(
    id: str,
    engine: str | None,
    engine_version: str | None,
    policy: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
    db: str | None,
) -> None:
    """Flags and files of an engine for a stored plan.

    Written is what the plan recommends, unless --policy says otherwise; where the engine cannot do it, that is said.

    \b
        specsim config latest
        specsim config latest --engine trtllm --engine-version 1.2.0 -o deploy
        specsim config plan-7f3a --engine sglang --policy ema:5
    """
    from specsim.errors import ScenarioError
    from specsim.report.files import check_folder, write_folder

    if output is not None:
        check_folder("-o", output, force=force)
    elif force:
        raise ScenarioError("--force is for -o; leave it out")
    found = _config(id, engine, engine_version, policy, db)
    if output is not None:
        from specsim.report.config import config_files

        files = config_files(found)
        if not files:
            raise ScenarioError(f"nothing to write into {output}: {found['warnings'][0]}")
        write_folder("-o", output, files)
        click.echo(f"wrote {', '.join(files)} to {output}", err=True)
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    elif output is None:
        from specsim.report.config import config_text

        click.echo(config_text(found, color=sys.stdout.isatty()), nl=False)
    else:
        for warning in found["warnings"]:
            click.echo(f"warning: {warning}", err=True)


def _config(id: str, engine: str | None, version: str | None, policy: str | None, db: str | None) -> dict[str, Any]:
    """The configuration, as JSON has it."""
    from db.store import Store
    from scenarios.stored import stored_policies, stored_question
    from specsim.cli.report import complete_plan
    from specsim.errors import ScenarioError
    from specsim.planner.flags import engine_config
    from specsim.profiles import LatencyProfile

    with Store.open(db, mode="read") as store:
        item = store.get(id)
        profiles = {row["sha256"]: row["body"] for row in store.list_profiles()}
    if item["type"] == "run":
        raise ScenarioError(f"{item['id']} is a run; flags are of plans, see specsim runs list")
    if item["kind"] != "plan":
        what = "a what-if over several GPUs" if item["kind"] == "whatif" else "a sweep over several deployments"
        raise ScenarioError(f"{item['id']} is {what}; plan for the one that you choose, then ask for its flags")
    complete_plan(item)
    body = profiles.get(item["result"]["profile"]["sha256"])
    profile = None
    if body is not None and item["inputs"]["deployment"].get("profile") is not None:
        profile = LatencyProfile.from_dict(body, place=f"the profile of {item['id']}")
    question = stored_question(item["inputs"], item["result"], profile=profile)
    known = stored_policies(item["inputs"], item["id"])
    chosen = _policy(policy, known, question, item)
    _check_engine(engine or question.deployment.engine, version)
    found = engine_config(question, chosen, engine=engine, version=version)
    del found["alternatives"]
    return {"schema_version": SCHEMA_VERSION, "plan_id": item["id"], **found}


def _check_engine(engine: str, version: str | None) -> None:
    """Refuse an engine or a version that the record of a deployment would refuse.

    Raises:
        ScenarioError: see there.
    """
    from specsim.config import Deployment
    from specsim.errors import ScenarioError

    try:
        Deployment(engine=engine, engine_version=version)
    except ScenarioError as error:
        raise ScenarioError(str(error).replace("deployment.engine_version", "--engine-version")
                            .replace("deployment.engine", "--engine")) from None  # fmt: skip


def _policy(
    text: str | None, known: Mapping[str, PolicySpec], question: Question, item: Mapping[str, Any]
) -> PolicySpec:
    """The recommended policy, one of the plan by its label, or any other that fits the question.

    Raises:
        ScenarioError: there is no such policy, or it asks for more than the plan's acceptance knows.
    """
    from specsim.errors import ScenarioError
    from specsim.policies import parse_policy

    if text is None:
        return known[item["result"]["recommendation"]["policy"]]
    if text in known:
        return known[text]
    try:
        policy = parse_policy(text)
    except ScenarioError as error:
        labels = ", ".join(f"'{label}'" for label in known)
        raise ScenarioError(f"--policy: {error}; or a label of the plan: {labels}") from None
    question.check_policy(policy)
    return policy
