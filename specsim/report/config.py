"""Ready configuration as text for a terminal and as files, from its JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specsim.report.text import Page, visible
from specsim.serving import ENGINES

__all__ = ["PREFILL_SCRIPT", "SCRIPT", "config_files", "config_text", "followed", "to_know"]

SCRIPT = "serve.sh"
"""File with the command; of a decode server where prefill and decode are apart."""
PREFILL_SCRIPT = "serve-prefill.sh"
"""File with the command of a prefill server."""


def config_text(config: Mapping[str, Any], *, color: bool = False) -> str:
    """Command, files, what graphs and admission cover, and warnings."""
    page = Page(color=color)
    page.heading(f"{_title(config)}: {followed(config)}, of {config['plan_id']}")
    if config.get("prefill_command"):
        page.line("Each prefill server:")
        page.verbatim(config["prefill_command"])
        page.line("Each decode server:")
    if config["command"]:
        page.verbatim(config["command"])
    for name, text in config["files"].items():
        page.heading(name)
        for line in text.splitlines():
            page.verbatim(line)
    page.heading("To know")
    for said in to_know(config):
        page.line(f"- {said}")
    return page.text()


def config_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of the command as a script, which says what is to be known, and of the files that it reads."""
    if not config["command"]:
        return {}
    remarks = [f"# {_title(config)}: {followed(config)}, of {config['plan_id']} by specsim"]
    remarks += [f"# - {visible(said)}" for said in to_know(config)]
    commands = {SCRIPT: config["command"], PREFILL_SCRIPT: config.get("prefill_command")}
    scripts = {
        name: "\n".join(["#!/bin/sh", *remarks, f"exec {command}", ""]) for name, command in commands.items() if command
    }
    return {**scripts, **config["files"]}


def followed(config: Mapping[str, Any]) -> str:
    """What a server started by the command does: the policy, or no speculation where the engine cannot follow it."""
    if config["policy"] == "off" or config["speculative_config"] is not None or not config["command"]:
        return str(config["policy"])
    return f"no speculation, instead of {config['policy']}"


def _title(config: Mapping[str, Any]) -> str:
    return f"{ENGINES[config['engine']].title} {config['engine_version']}".strip()


def to_know(config: Mapping[str, Any]) -> Iterator[str]:
    """What graphs cover, what is let in, and the warnings."""
    yield from filter(None, (config.get("graphs"), config.get("admission")))
    yield from config["warnings"]
