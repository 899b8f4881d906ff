"""Flat batches over slots give what transformers gives for each sequence alone, for every architecture."""

from __future__ import annotations

from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

import torch.nn.functional as F  # noqa: E402
from tiny import ARCHITECTURES, VOCAB, causal_lm, flat, reference_logits  # noqa: E402

from calibrate.models import FlatBatch, FlatModel, Part, SlotCache, attention_paged  # noqa: E402
from calibrate.models.attention_loop import Loop  # noqa: E402
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
    runs = Loop([Part(0, 5, 2), Part(1, 5, 2), Part(2, 5, 1), Part(4, 5, 1), Part(5, 5, 1)]).runs
    assert [[(c.row, c.width, c.slot, c.count) for c in run.calls] for run in runs] == [
        [(0, 2, 0, 2), (4, 1, 2, 1), (5, 1, 4, 2)]
    ]


def test_parts_of_any_widths_are_one_run_but_for_prompt_chunks() -> None:
    runs = Loop([Part(0, 9, 4), Part(3, 7, 1), Part(1, 5, 2), Part(2, 0, 40), Part(5, 3, 1)]).runs
    assert [(run.row, run.tokens) for run in runs] == [(0, 7), (7, 40), (47, 1)]
    assert [[call.row for call in run.calls] for run in runs] == [[0, 4, 5], [0], [0]]


def varlen_attn(q, keys, values, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa, seqused_k, block_table):  # type: ignore[no-untyped-def]
    """What torch documents of its kernel, written out: pages by block table, queries aligned with the last keys."""
    assert cu_k is None
    assert int(cu_q.diff().max()) == max_q
    assert int(seqused_k.max()) == max_k
    assert enable_gqa == (q.shape[1] != keys.shape[2])
    out = []
    for n, (first, end) in enumerate(zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), strict=True)):
        held = int(seqused_k[n])
        k, v = (pool[block_table[n].long()].flatten(0, 1)[:held].transpose(0, 1) for pool in (keys, values))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[0], 0) for x in (k, v))
        place = torch.arange(held - (end - first), held)[:, None]
        key = torch.arange(held)[None, :]
        seen = (key <= place) & ((window_size[0] < 0) | (key >= place - window_size[0]))
        out.append(F.scaled_dot_product_attention(q[first:end].transpose(0, 1), k, v, attn_mask=seen, scale=scale))
    return torch.cat([piece.transpose(0, 1) for piece in out])


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3"])
def test_slots_read_as_pages_give_the_same(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to a GPU's kernel, run through a kernel that does what is documented."""
    calls = mock.Mock(side_effect=varlen_attn)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", calls)
    model, texts = flat(model_type), sequences()
    ids = [t for text in texts for t in text[:12]]
    found = []
    for paged in (False, True):
        monkeypatch.setattr(attention_paged, "works", lambda device, dtype, paged=paged: paged)
        slots = SlotCache(5, 300)
        model.forward(FlatBatch([t for text in texts for t in text[:9]], [Part(n, 0, 9) for n in range(4)]), slots)
        for n in range(4):
            slots.commit(n, 7 + n % 2)
        parts = [Part(3, 8, 4), Part(0, 7, 5), Part(2, 7, 1)]
        found.append(model.forward(FlatBatch(ids[:10], parts), slots))
    assert calls.call_count == 2 * model.num_layers
    torch.testing.assert_close(found[0], found[1], **CLOSE)


def test_a_device_without_the_kernel_goes_slot_by_slot() -> None:
    assert not attention_paged.works(torch.device("cpu"), torch.bfloat16)
    assert flat().attention_backend.endswith("scaled_dot_product_attention by slot on cpu")


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
