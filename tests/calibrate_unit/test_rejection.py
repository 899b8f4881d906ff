"""The accept-or-reject rule: the worked numbers, the output law, and greedy decoding token for token."""

from __future__ import annotations

import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")

from calibrate.rejection import accept, sampling_law  # noqa: E402
from specsim.errors import ProfileError  # noqa: E402

DRAFT = torch.tensor([0.8, 0.2], dtype=torch.float64)
TARGET = torch.tensor([0.6, 0.4], dtype=torch.float64)
ROUNDS = 20_000


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_worked_example() -> None:
    """Draft (0.8, 0.2), target (0.6, 0.4): A is accepted with 0.75, B always, and the output is exactly (0.6, 0.4).

    Binomial tests at 1e-6 a side on 20,000 rounds.
    """
    source = generator(1)
    drafts = torch.multinomial(DRAFT, ROUNDS, replacement=True, generator=source)
    accepted, seen, first = [0, 0], [0, 0], [0, 0]
    for token in drafts.tolist():
        result = accept(TARGET.repeat(2, 1), DRAFT[None], torch.tensor([token]), generator=source)
        seen[token] += 1
        accepted[token] += result.num_accepted
        first[result.tokens[0]] += 1
    assert accepted[1] == seen[1] > 0
    assert stats.binomtest(accepted[0], seen[0], 0.75).pvalue > 1e-6
    assert stats.binomtest(first[0], ROUNDS, 0.6).pvalue > 1e-6


def test_output_follows_the_target_over_several_positions() -> None:
    """Three tokens of a first-order chain: the joint law of the first three emitted tokens is the target's.

    Chi-square at 1e-6 over the 27 sequences; the drafter is far from the target, so rejections are common.
    """
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    wrong = torch.tensor([[0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.6, 0.1, 0.3]], dtype=torch.float64)
    source, k = generator(2), 3
    counts = torch.zeros(3, 3, 3)
    rejections = 0
    for _ in range(8_000):
        out = [0]
        while len(out) < 4:
            drafts: list[int] = []
            for _ in range(k):
                last = drafts[-1] if drafts else out[-1]
                drafts.append(int(torch.multinomial(wrong[last], 1, generator=source)))
            before = [out[-1], *drafts]
            result = accept(rows[before], wrong[before[:-1]], torch.tensor(drafts), generator=source)
            rejections += result.num_accepted < k
            out += result.tokens
        counts[tuple(out[1:4])] += 1
    law = rows[0][:, None, None] * rows[:, :, None] * rows[None, :, :]
    assert rejections > 1000
    assert stats.chisquare(counts.flatten().numpy(), (law / law.sum() * 8_000).flatten().numpy()).pvalue > 1e-6


def test_greedy_is_token_identical() -> None:
    """At temperature 0 a round emits the agreed prefix and then the target's own token."""
    source = generator(3)
    logits = torch.randn(5, 11, generator=source)
    target = sampling_law(logits, temperature=0)
    best = logits.argmax(-1).tolist()
    for wrong_at in range(5):
        drafts = [best[j] if j < wrong_at else (best[j] + 1) % 11 for j in range(4)]
        laws = torch.zeros(4, 11, dtype=torch.float64)
        laws[range(4), drafts] = 1.0
        result = accept(target, laws, torch.tensor(drafts), generator=source)
        assert list(result.tokens) == best[: wrong_at + 1]
        assert result.is_bonus == (wrong_at == 4)


def test_a_round_without_drafts_is_plain_sampling() -> None:
    result = accept(TARGET[None], torch.empty(0, 2), torch.empty(0, dtype=torch.int64), generator=generator(4))
    assert len(result.tokens) == 1
    assert result.num_accepted == 0


def test_sampling_law() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    torch.testing.assert_close(sampling_law(logits), torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64))
    top_two = sampling_law(logits, top_k=2)
    torch.testing.assert_close(top_two, torch.tensor([0.625, 0.375, 0, 0], dtype=torch.float64))
    nucleus = sampling_law(logits, top_p=0.6)
    torch.testing.assert_close(nucleus, torch.tensor([0.625, 0.375, 0, 0], dtype=torch.float64))
    hot = sampling_law(logits, temperature=2.0)
    root = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).sqrt()
    torch.testing.assert_close(hot, root / root.sum())


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}])
def test_bad_sampling_parameters(bad: dict) -> None:
    with pytest.raises(ProfileError, match="sampling needs"):
        sampling_law(torch.zeros(3), **bad)


def test_bad_rounds() -> None:
    with pytest.raises(ProfileError, match="logits hold nan"):
        sampling_law(torch.tensor([float("nan"), 0.0]))
    with pytest.raises(ProfileError, match="need target_probs"):
        accept(TARGET[None], DRAFT[None], torch.tensor([0]), generator=generator(0))
    sure = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ProfileError, match="probability 0"):
        accept(TARGET.repeat(2, 1), sure, torch.tensor([1]), generator=generator(0))
