"""Prompts: what a row may be, and that every row that cannot be used is counted and explained."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from tiny_acceptance import save_model, write_jsonl  # noqa: E402

from calibrate.acceptance.prompts import PromptFile, lines_of, read_prompts  # noqa: E402
from calibrate.models.vocabulary import find_tokenizer  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402

LIMITS: dict[str, Any] = {"vocab_size": 61, "max_tokens": 8}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return find_tokenizer(save_model(tmp_path_factory.mktemp("model")))


def read(path: Path, rows: list[Any], tokenizer: Any = None, **changes: Any) -> PromptFile:
    return read_prompts(write_jsonl(path / "p.jsonl", rows), tokenizer, **(LIMITS | changes))


def test_a_prompt_is_a_users_message_where_there_is_a_template(tmp_path: Path, tokenizer: Any) -> None:
    rows = [
        {"prompt": "w7 w8", "task": "chat", "id": "a"},
        {"messages": [{"role": "system", "content": "w9"}, {"role": "user", "content": "w7"}], "max_tokens": 3},
        {"token_ids": [9, 8, 9]},
    ]
    found = read(tmp_path, rows, tokenizer)
    assert [p.token_ids for p in found.prompts] == [(3, 7, 8, 4), (5, 9, 3, 7, 4), (9, 8, 9)]
    assert [(p.name, p.task, p.max_tokens) for p in found.prompts] == [("a", "chat", 8), (1, "", 3), (2, "", 8)]
    assert found.templated == 2
    assert list(lines_of(found)) == ["3 prompts, 2 of them through the tokenizer's chat template"]
    assert read(tmp_path, rows, tokenizer, use_template=False).prompts[0].token_ids == (7, 8)


def test_gzip_and_byte_order_mark_read_the_same(tmp_path: Path) -> None:
    plain = write_jsonl(tmp_path / "p.jsonl", [{"token_ids": [7]}, {"token_ids": [8]}])
    packed = tmp_path / "p.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    assert read_prompts(plain, None, **LIMITS).prompts == read_prompts(packed, None, **LIMITS).prompts


BAD = [
    ("[1]", "expected an object, got list"),
    ("{", "not a JSON object"),
    ({"task": "chat"}, "has none of 'prompt', 'messages', 'token_ids'"),
    ({"prompt": ""}, "'prompt' must be a text"),
    ({"prompt": 7}, "'prompt' must be a text"),
    ({"prompt": "w7", "task": 3}, "'task' must be a word"),
    ({"prompt": "w7", "id": True}, "'id' must be a word or a whole number"),
    ({"prompt": "w7", "id": "first"}, "'id' 'first' stands there twice"),
    ({"prompt": "w7", "max_tokens": 0}, "'max_tokens' must be a whole number >= 1"),
    ({"prompt": "w7", "max_tokens": 99}, "exceed the target's context of 64"),
    ({"token_ids": []}, "'token_ids' must be a list of whole numbers"),
    ({"token_ids": [1, "2"]}, "'token_ids' must be a list of whole numbers"),
    ({"token_ids": [1, 61]}, "token 61 is not in the target's vocabulary of 61"),
    ({"messages": []}, "'messages' must be a list of messages"),
    ({"messages": [{"role": "user"}]}, "a message needs 'role' and 'content'"),
    ({"messages": [{"role": "boss", "content": "w7"}]}, "a message's 'role' must be one of"),
]


def test_every_bad_row_is_counted_and_explained(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"prompt": "w7", "id": "first", "note": 1}, *(row for row, _ in BAD)]
    found = read(tmp_path, rows, tokenizer, max_context=64)
    assert len(found.prompts) == 1
    assert len(found.problems) == len(BAD)
    for number, (problem, (_, reason)) in enumerate(zip(found.problems, BAD, strict=True), start=2):
        assert f"p.jsonl: line {number}: " in problem
        assert reason in problem
    lines = list(lines_of(found))
    assert lines[0] == f"{len(BAD)} rows that cannot be used, 1 that can:"
    assert f"  and {len(BAD) - 5} more" in lines
    assert "keys without a meaning here, by rows: 'note' (1)" in lines


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_strict_refuses_the_first(tmp_path: Path, tokenizer: Any, row: Any, reason: str) -> None:
    with pytest.raises(ScenarioError, match="--strict") as error:
        read(tmp_path, [{"prompt": "w7", "id": "first"}, row], tokenizer, max_context=64, strict=True)
    assert reason in str(error.value)


def test_text_needs_a_tokenizer_and_messages_a_template(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="the target has no tokenizer; give 'token_ids'"):
        read(tmp_path, [{"prompt": "w7"}])
    plain = find_tokenizer(save_model(tmp_path / "plain", template=None))
    assert read(tmp_path, [{"prompt": "w7 w8"}], plain).prompts[0].token_ids == (7, 8)
    with pytest.raises(ScenarioError, match="no chat template; give 'prompt' or 'token_ids'"):
        read(tmp_path, [{"messages": [{"role": "user", "content": "w7"}]}], plain)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00", b"\x1f\x8bnot gzip"])
def test_a_file_without_prompts_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"p\.jsonl: ") as error:
        read_prompts(path, None, **LIMITS)
    assert "\n" not in str(error.value)
    with pytest.raises(ScenarioError, match="is a folder"):
        read_prompts(tmp_path, None, **LIMITS)
