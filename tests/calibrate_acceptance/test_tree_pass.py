"""Trees of drafts in one pass, the branch that is kept, the rule that accepts over them, and shapes of trees."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_models"))

from tiny import VOCAB, causal_lm, reference_logits  # noqa: E402

from calibrate.drafters.planting import CHAIN, DynamicTree, StaticTree, full_tree, grow, read_tree  # noqa: E402
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache  # noqa: E402
from calibrate.models.flat_batch import tree_branches  # noqa: E402
from calibrate.rejection import accept_tree  # noqa: E402
from specsim.errors import InvariantError, ProfileError, ScenarioError  # noqa: E402

PARENTS = (-1, -1, 0, 0, 1, 2, 5)
"""Two drafts behind the text; two, one and one more below, the deepest branch four long."""


def branch(node: int) -> list[int]:
    """Drafts from the text to a node, itself the last."""
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_every_node_sees_its_branch_alone(model_type: str) -> None:
    """Beside a text in the same pass, with windows, soft caps, sinks and latent attention; then the kept branch goes on
    as a text that was computed token by token."""
    alone = causal_lm(model_type)
    model, cache = FlatModel(causal_lm(model_type), name=model_type), SlotCache(2, 64)
    draws = torch.Generator().manual_seed(3)
    text, other, drafts = (torch.randint(3, VOCAB, (n,), generator=draws).tolist() for n in (11, 6, len(PARENTS)))
    model.forward(FlatBatch(text[:9], [Part(1, 0, 9)]), cache)
    cache.commit(1, 9)
    parts = [Part(0, 0, 6), Part(1, 9, 2 + len(drafts), tree_branches(9, 2, PARENTS))]
    logits = model.logits(model.forward(FlatBatch([*other, *text[9:], *drafts], parts), cache))
    close = {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(logits[:6], reference_logits(alone, other), **close)
    torch.testing.assert_close(logits[6:8], reference_logits(alone, text)[9:], **close)
    for node in range(len(drafts)):
        own = [*text, *(drafts[n] for n in branch(node))]
        torch.testing.assert_close(logits[8 + node], reference_logits(alone, own)[-1], **close)
    kept = branch(6)
    cache.keep(1, 9, [0, 1, *(2 + n for n in kept)])
    assert cache.committed[1] == 15
    more = model.logits(model.forward(FlatBatch([5, 8], [Part(1, 15, 2)]), cache))
    wanted = reference_logits(alone, [*text, *(drafts[n] for n in kept), 5, 8])[-2:]
    torch.testing.assert_close(more, wanted, **close)


def test_rows_and_masks_that_do_not_fit_are_refused() -> None:
    cache = SlotCache(1, 8)
    cache.extend(0, 0, 3)
    with pytest.raises(InvariantError, match="were not all written"):
        cache.keep(0, 0, [0, 3])
    with pytest.raises(InvariantError, match="branches of 3 tokens"):
        FlatBatch([1, 2, 3], [Part(0, 0, 3, tree_branches(0, 1, (-1,)))])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


TARGET = torch.tensor(
    [[0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.1, 0.3], [0.25, 0.25, 0.3, 0.2], [0.05, 0.05, 0.1, 0.8]], dtype=torch.float64
)
DRAFT = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64
)
"""Laws of the next token by the last one; the drafter is far from the target."""


@pytest.mark.parametrize("shape", ["static", "drawn", "scored"])
def test_two_tokens_over_a_tree_follow_the_target(shape: str) -> None:
    """A first-order chain from token 0: the joint law of the first two tokens, chi-square at 1e-6 over 16 outcomes,
    1500 texts. Drafts: the likeliest; drawn without replacement; grown by probability."""
    planting = DynamicTree(5, 2) if shape == "scored" else full_tree([3, 2])
    law = (lambda logits: logits.softmax(-1)) if shape == "drawn" else None
    source, counts, accepted = generator(5), torch.zeros(4, 4), 0
    for _ in range(1500):
        out: list[int] = []
        while len(out) < 2:
            last = out[-1] if out else 0

            def look(level, rows, trees, last=last):  # type: ignore[no-untyped-def]
                return DRAFT[[last if node < 0 else trees[0][node].token for _, node in rows]].log()

            proposal = grow([source], 2, planting, law, look)[0]
            parents = proposal.parents or tuple(range(-1, len(proposal.tokens) - 1))
            rows = TARGET[[last, *proposal.tokens]]
            found = accept_tree(rows, proposal.probs, proposal.tokens, parents, generator=source)
            accepted += len(found.nodes)
            out += found.tokens
        counts[out[0], out[1]] += 1
    wanted = TARGET[0][:, None] * TARGET * 1500
    assert accepted > 700
    assert stats.chisquare(counts.flatten().numpy(), wanted.flatten().numpy()).pvalue > 1e-6


def test_a_rule_that_does_not_take_rejected_siblings_away_is_seen() -> None:
    """Guard for the test above: siblings judged against the whole law accept the likelier tokens too often."""
    source, counts = generator(6), torch.zeros(4)
    for _ in range(4000):
        token = next(
            (t for t in (0, 1) if float(torch.rand(1, generator=source)) < TARGET[0, t]), None
        )  # both against the same law
        rest = TARGET[0].clone()
        rest[:2] = 0
        counts[int(torch.multinomial(rest, 1, generator=source)) if token is None else token] += 1
    assert stats.chisquare(counts.numpy(), (TARGET[0] * 4000).numpy()).pvalue < 1e-6


def test_more_siblings_accept_more() -> None:
    lengths = []
    for width in (1, 2, 3):
        source = generator(7)
        draws = [TARGET[0].topk(width).indices.tolist() for _ in range(600)]
        rows = TARGET[0].repeat(width + 1, 1)
        lengths.append(sum(len(accept_tree(rows, None, d, (-1,) * width, generator=source).nodes) for d in draws) / 600)
    assert lengths == pytest.approx([0.4, 0.7, 0.9], abs=0.06), "the mass of the siblings"


def test_bad_trees_are_refused() -> None:
    rows = TARGET[:3]
    with pytest.raises(ProfileError, match="does not come before it"):
        accept_tree(rows, None, (1, 2), (1, -1), generator=generator(0))
    with pytest.raises(ProfileError, match="as a sibling of it is"):
        accept_tree(rows, None, (1, 1), (-1, -1), generator=generator(0))
    with pytest.raises(ProfileError, match="needs target_probs"):
        accept_tree(rows, None, (1,), (-1,), generator=generator(0))
    sure = torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    with pytest.raises(ProfileError, match="probability 0"):
        accept_tree(rows, sure, (0, 1), (-1, 0), generator=generator(0))


def test_grown_trees_are_the_most_probable_ones() -> None:
    """Of all nodes of a first-order drafter down to three levels, those with the largest products of probabilities."""
    found = grow(
        [generator(0)], 3, DynamicTree(6, 3), None,
        lambda level, rows, trees: DRAFT[[0 if node < 0 else trees[0][node].token for _, node in rows]].log(),
    )[0]  # fmt: skip
    products: dict[tuple[int, ...], float] = {}
    for a in range(4):
        products[a,] = float(DRAFT[0, a])
        for b in range(4):
            products[a, b] = products[a,] * float(DRAFT[a, b])
            for c in range(4):
                products[a, b, c] = products[a, b] * float(DRAFT[b, c])
    assert found.parents is not None
    texts: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        texts.append((*(texts[parent] if parent >= 0 else ()), token))
    best = sorted(products.values(), reverse=True)[:6]
    assert sorted((products[text] for text in texts), reverse=True) == pytest.approx(best)


def test_trees_are_read_and_refused(tmp_path: Path) -> None:
    assert read_tree("chain") is CHAIN
    tree = read_tree("3x2")
    assert isinstance(tree, StaticTree)
    assert (tree.deepest, tree.widest(0), tree.widest(1), tree.most_nodes(1), tree.most_nodes(9)) == (2, 3, 2, 3, 9)
    file = tmp_path / "paths.json"
    file.write_text("[[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]")
    paths = read_tree(str(file))
    assert isinstance(paths, StaticTree)
    assert [paths.count(path) for path in ((), (0,), (1,), (0, 0), (0, 1))] == [2, 2, 1, 1, 0]
    for content, said in (
        ("[[0], [1, 0]]", r"path \[1, 0\] is there without \[1\]"),
        ("[[0], [0]]", r"has the path \[0\] twice; give each once"),
        ("[[0], [2]]", r"path \[2\] is there without the likelier one that ends in 1"),
        ("[]", "must hold 1..1024 paths, holds 0"),
        ('{"a": 1}', "must hold a list of paths"),
        ("[[0], [true]]", "must hold a list of paths"),
        ("[", "nor a readable JSON file of paths"),
    ):
        file.write_text(content)
        with pytest.raises(ScenarioError, match=said):
            read_tree(str(file))
    with pytest.raises(ScenarioError, match=r"nor a readable JSON file of paths \(No such file"):
        read_tree("4,8,8")
    with pytest.raises(ScenarioError, match="needs widths >= 1 and at most 1024 nodes"):
        read_tree("40x40")
    with pytest.raises(ScenarioError, match=r"1\.\.1024 nodes and topk 1\.\.64"):
        DynamicTree(0, 4)
