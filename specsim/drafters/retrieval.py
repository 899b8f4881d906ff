"""Retrieval from a datastore (REST): continuations found in a large body of text, verified as a tree.

Models: a search on the host and a tree of the most frequent continuations.
Leaves out: memory of the datastore on the host; how often nothing is found, which nobody publishes: such rounds are in
the mean acceptance, and cost a full tree. Numbers: 64 nodes as in REST.
"""

from __future__ import annotations

from specsim.drafters.base import Drafter, EngineName, PerDraft, UsualTree

__all__ = ["DRAFTER"]

DRAFTER = Drafter(
    name="retrieval",
    title="retrieval from a datastore (REST), verified as a tree",
    aliases=("REST", "retrieval-based", "retrieval based speculative decoding", "datastore", "ngram-cache"),
    source="He et al. 2023, REST (arXiv 2311.08252)",
    mode="none",
    loads="nothing",
    looks_up=True,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    varies=True,
    trees=True,
    usual_tree=UsualTree(nodes=63, topk=8),
    usual_k=5,
    engines={
        "llamacpp": EngineName("ngram-cache", takes_model=False, remark="llama.cpp's ngram-cache looks up a file of "
                               "n-grams and drafts a chain, not a tree."),
    },
    borrows=("ngram",),
    notes="A tree of at most 64 verified tokens, as in REST; --tree-nodes changes it. How often a search finds nothing "
          "is not published: as a tree, such rounds are in the mean acceptance and cost a whole tree; a chain of "
          "measured runs (--acceptance-file) knows them.",
)  # fmt: skip
