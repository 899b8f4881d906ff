"""What every engine's flags have in common: names of checkpoints, and what the engine does not offer.

Facts: none of its own; drafters (`specsim.drafters`) and policies say which engine offers them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specsim.config import PolicySpec
from specsim.drafters import EngineName
from specsim.planner.flags.versions import version_of
from specsim.planner.question import Question
from specsim.policies.registry import kind_of
from specsim.serving import ENGINES

__all__ = ["Flags", "Role", "Writer", "batch_table", "yaml_text"]

_PLAIN = re.compile(r"[A-Za-z][\w./-]*\Z", re.ASCII)
_NO_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""Words that YAML does not read as text."""

TITLES = {name: engine.title for name, engine in ENGINES.items()}
"""Names for sentences."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What is to be pasted, and what is to be known."""

    version: str
    command: str
    speculative: dict[str, Any] | None
    """As the engine takes it; None for off."""
    warnings: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Name of a file that the command reads -> its text."""
    graphs: str = ""
    """What captured graphs cover, as a sentence; empty where there are none."""
    admission: str = ""
    """How much the engine lets in at once, as a sentence."""


Role = Literal["prefill", "decode"]
"""What a server does where prefill and decode are apart."""


class Writer:
    """Collects the words of a command and its warnings; knows what the engine offers of question and policy."""

    def __init__(
        self, engine: str, checked: str, question: Question, policy: PolicySpec, version: str | None = None
    ) -> None:
        self.engine, self.title = engine, TITLES[engine]
        self.question, self.policy = question, policy
        self.deployment, self.limits = question.deployment, question.side(policy).limits
        self.words: list[str] = []
        self.warnings: list[str] = []
        self.files: dict[str, str] = {}
        self.graphs, self.admission = "", ""
        self.is_own = self.deployment.engine == engine
        """Whether the plan is about this engine."""
        self.version = version or (self.deployment.version if self.is_own else checked)
        self._version, self._checked = version_of(self.version), version_of(checked)
        self._compare(checked)
        if "target_repo" not in question.names:
            self.warn(f"'{self.deployment.target}' is your name: put the repository or path of the checkpoint there.")
        if self.deployment.weight_dtype in ("int8", "int4", "mxfp4", "nvfp4"):
            self.warn(f"Weights in {self.deployment.weight_dtype} need a checkpoint that is stored so: name it in the "
                      f"command.")  # fmt: skip

    def _compare(self, checked: str) -> None:
        """Say what is not known of the version, and where it is not that of the plan."""
        known = f"These flags were checked for {self.title} {checked}"
        if self._version is None or self._checked is None:
            if self.version != checked:
                self.warn(f"{known}; what '{self.version}' names or defaults differently is not known.")
        elif self._version.numbers[:2] > self._checked.numbers[:2]:
            self.warn(f"{known}; {self.version} is newer than anything specsim knows of it, so names or defaults may "
                      f"have changed: look at --help.")  # fmt: skip
        elif self._version.numbers[:2] < self._checked.numbers[:2]:
            self.warn(f"{known}; {self.version} is older and may name or default some differently.")
        if not self.is_own:
            plan = TITLES[self.deployment.engine]
            self.warn(f"The plan was simulated under {plan}, and {self.title} schedules differently: specsim plan "
                      f"--engine {self.engine} plans for it.")  # fmt: skip
        elif self.version != self.deployment.version:
            self.warn(f"The plan was simulated for {self.title} {self.deployment.version}.")
        if self.deployment.replicas > 1:
            self.warn(f"The plan has {self.deployment.replicas} replicas behind a router ({self.deployment.router}): "
                      f"start as many of these servers.")  # fmt: skip

    def is_before(self, version: str) -> bool:
        """Whether the engine is older than that; one without an order counts as the version that was read."""
        bound, mine = version_of(version), self._version or self._checked
        return bound is not None and mine is not None and mine < bound

    @property
    def target(self) -> str:
        """Repository or path of the target."""
        return self.question.names.get("target_repo") or self.deployment.target

    @property
    def num_spec_tokens(self) -> int:
        return self.policy.num_spec_tokens

    @property
    def tree(self) -> tuple[int, int] | None:
        """(drafts, most children of a node) of the tree that a round verifies; None: a chain."""
        k = self.num_spec_tokens
        nodes = self.question.tree_nodes(k)
        if nodes is None:
            return None
        tree = self.question.on.trees[k - 1]
        return nodes, max(tree.expanded) if k > 1 else tree.levels[0]

    def add(self, *words: object) -> None:
        """Words of the command, in order."""
        self.words += [str(word) for word in words]

    def warn(self, said: str) -> None:
        """A sentence for the reader, once."""
        if said not in self.warnings:
            self.warnings.append(said)

    def offered(self) -> EngineName | None:
        """How the engine offers the drafter; None, with a warning, where it does not, or the policy is off."""
        if self.policy.kind == "off":
            return None
        drafter = self.question.speculation.drafter
        found = drafter.engines.get(self.engine)
        if found is None:
            others = [TITLES.get(name, name) for name in drafter.engines]
            known = f"{' and '.join(others)} may" if others else "nor does another engine that specsim knows"
            self.warn(f"{self.title} does not offer {drafter.name}; {known}. The command leaves speculation out.")
        elif found.remark:
            self.warn(found.remark)
        if self.question.speculation.draft_sampling == "probabilistic" and self.engine != "vllm":
            self.warn(f"The command does not ask {self.title} to draw drafts by probability; its own default holds.")
        return found

    def drafter(self, offered: EngineName) -> str | None:
        """Repository or path of the drafter; None where the engine takes none."""
        if not offered.takes_model:
            return None
        names = self.question.names
        draft = names.get("draft", "DRAFT")
        if "draft_repo" not in names:
            self.warn(f"'{draft}' is specsim's name: put the repository or path of your drafter there.")
        return names.get("draft_repo", draft)

    def rule(self) -> None:
        """Warn when the engine has no such policy."""
        kind = kind_of(self.policy.kind)
        if self.engine not in kind.engines:
            instead = "use a schedule instead" if self.engine == "vllm" else "the command drafts at every step"
            self.warn(f"{self.title} cannot be told to follow '{self.policy.label}'; {instead}.")

    def done(self, speculative: dict[str, Any] | None) -> Flags:
        command = shlex.join(self.words)
        return Flags(self.version, command, speculative, tuple(self.warnings), self.files, self.graphs, self.admission)


def batch_table(policy: PolicySpec, max_num_seqs: int) -> list[tuple[int, int, int]] | None:
    """Rows (first, last, k) by requests in a step of a policy that goes by them; None for others."""
    if policy.kind == "schedule":
        return list(policy.table)
    if policy.kind != "off_above":
        return None
    if policy.batch_limit == 0:
        return [(1, max_num_seqs, 0)]
    return [(1, policy.batch_limit, policy.num_spec_tokens), (policy.batch_limit + 1, max_num_seqs, 0)]


def yaml_text(values: Mapping[str, Any], indent: int = 0) -> str:
    """Nested mappings of numbers, words and booleans as YAML."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{'  ' * indent}{key}:\n{yaml_text(value, indent + 1)}"]
        else:
            lines.append(f"{'  ' * indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    """A number, word or boolean as YAML; a text that would be read as something else in quotes, as JSON writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (not _PLAIN.match(value) or value.lower() in _NO_TEXT):
        return json.dumps(value)
    return str(value)
