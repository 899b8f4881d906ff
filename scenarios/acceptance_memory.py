"""Spread between requests and memory between rounds of catalogue acceptance: mixtures fitted to measured requests.

Models: the mixture of an entry of `acceptance.toml` whose method, target and task were measured request by request; it
is steady (requests of all output lengths are alike) and meets the entry's acceptance lengths.
Leaves out: every entry for which only means were published. Numbers: `catalogue/acceptance_memory.toml`, written by
`python -m scenarios.acceptance_memory` from the measured requests in `examples/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from scenarios.lookup import check_keys, packaged_toml
from specsim.acceptance import Mixture, fit_mixture, read_measured, steady_regimes, with_proposals
from specsim.errors import CatalogueError

__all__ = ["fitted_memory", "memory_of"]

_KEYS = ("method", "target", "task", "requests", "output_tokens", "shares", "accept", "moves")
_KINDS, _REGIMES = 6, 4
_MOST = 20
"""Longest run that is dealt, as for the entries without memory."""
_RATE_K = 3
"""Proposal rates of the catalogue are shares of rounds at this k."""
_CUT_TOKENS = 8000
"""Measured outputs were cut at 8192 tokens, which four requests reached by repeating themselves. They hold a seventh of
all tokens; a steady mixture would make every seventh request one of them, so that they are left out of the fit."""
_TARGET = "llama-3.1-8b"
_FILES = {"chat": "acceptance_llama31_8b_sharegpt.jsonl.gz", "math": "acceptance_llama31_8b_gsm8k.jsonl.gz"}
_HEAD = """\
# Mixtures that give entries of acceptance.toml spread between requests and memory between rounds (specsim.acceptance,
# Mixture). Written by `python -m scenarios.acceptance_memory` from the measured requests in examples/, which were
# derived from the acceptance profile published with arXiv 2601.11580; do not edit. accept: [regime][draft position];
# moves: [kind][regime][next regime]; shares: of kinds, by tokens; output_tokens: mean output of the measured requests.
# Requests whose output was cut at 8192 tokens (4 of 310) are not in the fit; they are in the entries' lengths.
schema_version = 1
"""


@cache
def memory_of(method: str, target: str, task: str, proposal_rate: float = 1.0) -> Mixture | None:
    """The mixture of a catalogue entry, None when its requests were not measured one by one.

    Raises:
        CatalogueError: when the file does not hold what it should.
    """
    for row in packaged_toml("acceptance_memory.toml")["memory"]:
        if (row.get("method"), row.get("target"), row.get("task")) == (method, target, task):
            check_keys(row, _KEYS, f"acceptance_memory.toml, {method} {target} {task}")
            return with_proposals(_mixture(row, f"{method} {target} {task}"), proposal_rate, _RATE_K)
    return None


def _mixture(row: dict, name: str) -> Mixture:  # type: ignore[type-arg]
    moves = np.asarray(row["moves"], dtype=np.float64)
    if moves.ndim != 3 or moves.shape[1] != moves.shape[2] or not (moves.sum(axis=2) > 0).all():
        raise CatalogueError(f"acceptance_memory.toml, {name}: moves must be [kind][regime][regime]")
    moves /= moves.sum(axis=2, keepdims=True)
    shares = np.asarray(row["shares"], dtype=np.float64)
    return Mixture(
        accept=tuple(tuple(map(float, line)) for line in row["accept"]),
        moves=tuple(tuple(tuple(line) for line in kind) for kind in moves.tolist()),
        starts=tuple(tuple(line) for line in steady_regimes(moves).tolist()),
        shares=(tuple((shares / shares.sum()).tolist()),),
        share_tokens=(float(row["output_tokens"]),),
        outputs=((int(row["output_tokens"]), 1.0),),
        max_spec_tokens=_MOST,
        name=name,
    )


def fitted_memory(method: str, task: str, examples: Path) -> str:
    """One table of `acceptance_memory.toml`, fitted anew to the measured requests in the folder `examples`."""
    lengths = next(
        row["lengths"]
        for row in packaged_toml("acceptance.toml")["acceptance"]
        if (row["method"], row["target"], row["task"]) == (method, _TARGET, task)
    )
    measured = read_measured(examples / _FILES[task], drafter=method)
    runs = [run for run in measured.runs if len(run) < _CUT_TOKENS]
    mean = round(sum(map(len, runs)) / len(runs))
    model = fit_mixture(runs, kinds=_KINDS, regimes=_REGIMES, steady_lengths=lengths, output_tokens=mean)
    rows = [
        "[[memory]]",
        f'method = "{method}"',
        f'target = "{_TARGET}"',
        f'task = "{task}"',
        f"requests = {len(runs)}",
        f"output_tokens = {mean}",
        f"shares = {_list(model.shares[0], 4)}",
        f"accept = [{', '.join(_list(row, 5) for row in model.by_depth(10).tolist())}]",
        "moves = [",
        *(f"  [{', '.join(_list(row, 4) for row in kind)}]," for kind in model.moves),
        "]",
    ]
    return "\n".join(rows) + "\n"


def _list(values: Sequence[float], digits: int) -> str:
    return f"[{', '.join(f'{value:.{digits}f}'.rstrip('0').rstrip('.') or '0' for value in values)}]"


if __name__ == "__main__":
    _root = Path(__file__).resolve().parent
    _tables = [
        fitted_memory(method, task, _root.parent / "examples") for method in ("eagle", "ngram") for task in _FILES
    ]
    (_root / "catalogue" / "acceptance_memory.toml").write_text("\n".join([_HEAD, *_tables]), encoding="utf-8")
