"""What every engine's flags have in common: names of checkpoints, and what the engine does not offer.

Facts: none of its own; drafters (`specsim.drafters`) and policies say which engine offers them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.config import PolicySpec
from specsim.drafters import EngineName
from specsim.planner.question import Question
from specsim.policies.registry import kind_of
from specsim.serving import ENGINES

__all__ = ["Flags", "Writer", "batch_table", "yaml_text"]

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


class Writer:
    """Collects the words of a command and its warnings; knows what the engine offers of question and policy."""

    def __init__(self, engine: str, checked: str, question: Question, policy: PolicySpec) -> None:
        self.engine, self.title = engine, TITLES[engine]
        self.question, self.policy = question, policy
        self.deployment, self.limits = question.deployment, question.side(policy).limits
        self.words: list[str] = []
        self.warnings: list[str] = []
        self.files: dict[str, str] = {}
        own = self.deployment.engine == engine
        self.version = self.deployment.version if own else checked
        if not self.version.startswith(checked.rpartition(".")[0] or checked):
            self.warn(f"These flags were checked for {self.title} {checked}; {self.version} may name or default some "
                      f"differently.")  # fmt: skip
        if "target_repo" not in question.names:
            self.warn(f"'{self.deployment.target}' is your name: put the repository or path of the checkpoint there.")
        if self.deployment.weight_dtype in ("int8", "int4", "mxfp4", "nvfp4"):
            self.warn(f"Weights in {self.deployment.weight_dtype} need a checkpoint that is stored so: name it in the "
                      f"command.")  # fmt: skip

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
        return Flags(self.version, shlex.join(self.words), speculative, tuple(self.warnings), self.files)


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
            text = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"{'  ' * indent}{key}: {text}\n")
    return "".join(lines)
