"""Flat batches over slots give what transformers gives for each sequence alone, for every architecture."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from tiny import ARCHITECTURES, VOCAB, causal_lm, flat, reference_logits  # noqa: E402

from calibrate.models import FlatBatch, FlatModel, Part, SlotCache  # noqa: E402
from specsim.errors import InvariantError, ScenarioError  # noqa: E402

CHUNKS = [[20, 1, 4, 1, 1, 5], [1, 1, 3, 3, 3, 1], [17, 2, 2, 2, 9], [20, 1, 4, 1]]
"""Tokens of each pass, by sequence; the first and the last go alike for a while, in neighbouring slots or not."""
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
"""Norms and the eager softmax of transformers work in 32 bits whatever the weights are; a wrong key changes tenths."""


def sequences() -> list[list[int]]:
    source = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB, (sum(chunks),), generator=source).tolist() for chunks in CHUNKS]


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [3, 1, 0, 4]], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_ragged_passes_equal_each_sequence_alone(model_type: str, slots: list[int]) -> None:
    alone = causal_lm(model_type)
    texts = sequences()
    expected = [reference_logits(alone, tokens) for tokens in texts]
    model, cache = FlatModel(alone, name=model_type), SlotCache(5, 40)
    done = [0] * len(texts)
    for step in range(max(map(len, CHUNKS))):
        live = [n for n in (0, 3, 1, 2) if step < len(CHUNKS[n])]
        parts = [Part(slots[n], done[n], CHUNKS[n][step]) for n in live]
        ids = [t for n in live for t in texts[n][done[n] : done[n] + CHUNKS[n][step]]]
        logits = model.logits(model.forward(FlatBatch(ids, parts), cache))
        row = 0
        for n in live:
            count = CHUNKS[n][step]
            torch.testing.assert_close(logits[row : row + count], expected[n][done[n] : done[n] + count], **CLOSE)
            done[n] += count
            row += count
            cache.commit(slots[n], done[n])


def test_neighbours_that_are_alike_are_one_call() -> None:
    from calibrate.models.attention import _calls

    calls = _calls([Part(0, 5, 2), Part(1, 5, 2), Part(2, 5, 1), Part(4, 5, 1), Part(5, 5, 1)])
    assert [(c.row, c.slot, c.count) for c in calls] == [(0, 0, 2), (4, 2, 1), (5, 4, 2)]


def test_rejected_tokens_leave_nothing_behind() -> None:
    alone = causal_lm()
    tokens = sequences()[0][:12]
    expected = reference_logits(alone, tokens)
    model, cache = FlatModel(alone, name="llama"), SlotCache(2, 20)
    slot = cache.acquire()
    model.forward(FlatBatch(tokens[:8], [Part(slot, 0, 8)]), cache)
    cache.commit(slot, 8)
    wrong = [tokens[8], 7, 7, 7]
    model.forward(FlatBatch(wrong, [Part(slot, 8, 4)]), cache)
    cache.commit(slot, 9)
    logits = model.logits(model.forward(FlatBatch(tokens[9:], [Part(slot, 9, 3)]), cache))
    torch.testing.assert_close(logits, expected[9:], **CLOSE)


def test_the_first_layers_share_modules_and_cache() -> None:
    """They equal a model built with fewer layers, and the whole model may read what they wrote."""
    whole = causal_lm()
    fewer = causal_lm(num_hidden_layers=2)
    fewer.load_state_dict(whole.state_dict(), strict=False)
    tokens = sequences()[0][:10]
    expected = reference_logits(fewer, tokens)
    expected_whole = reference_logits(whole, tokens)
    model, cache = FlatModel(whole, name="llama"), SlotCache(2, 20)
    short = model.first_layers(2)
    assert (short.num_layers, model.num_layers) == (2, 3)
    logits = short.logits(short.forward(FlatBatch(tokens, [Part(0, 0, 10)]), cache))
    torch.testing.assert_close(logits, expected, **CLOSE)
    cache.commit(0, 0)
    hidden = model.forward(FlatBatch(tokens, [Part(0, 0, 10)]), cache)
    torch.testing.assert_close(model.logits(hidden), expected_whole, **CLOSE)
    cache.commit(0, 10)
    with pytest.raises(ScenarioError, match="1 to 2 of them, got 3"):
        model.first_layers(3)


def test_a_cache_refuses_what_was_never_written() -> None:
    model, cache = flat(), SlotCache(2, 8)
    with pytest.raises(InvariantError, match="behind 3 tokens, but 0 are committed and 0 written"):
        model.forward(FlatBatch([5], [Part(0, 3, 1)]), cache)
    model.forward(FlatBatch([5, 6, 7], [Part(0, 0, 3)]), cache)
    with pytest.raises(InvariantError, match="cannot commit 4 tokens"):
        cache.commit(0, 4)
    cache.commit(0, 2)
    with pytest.raises(InvariantError, match="cannot commit 1 tokens"):
        cache.commit(0, 1)
    with pytest.raises(ScenarioError, match="does not fit a KV cache of 8 tokens a slot"):
        model.forward(FlatBatch([5] * 7, [Part(0, 2, 7)]), cache)


def test_slots_are_given_lowest_first_and_once() -> None:
    cache = SlotCache(3, 4)
    assert [cache.acquire() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InvariantError, match="all 3 slots"):
        cache.acquire()
    cache.release(2)
    cache.release(0)
    assert cache.acquire() == 0
    with pytest.raises(InvariantError, match="given back twice"):
        cache.release(2)


@pytest.mark.parametrize("parts", [[Part(0, 0, 2)], [Part(0, 0, 0), Part(1, 0, 3)], [Part(0, 0, 1), Part(0, 1, 2)]])
def test_a_batch_that_contradicts_itself_is_refused(parts: list[Part]) -> None:
    with pytest.raises(InvariantError, match="a batch"):
        FlatBatch([1, 2, 3], parts)
