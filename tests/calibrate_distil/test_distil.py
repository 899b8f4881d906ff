"""Draft models trained on what a target writes: they learn it, the same seed gives the same weights, and they serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import tokenizers
import torch
import transformers

from calibrate.distil.own_text import Written, continued, own_prompts
from calibrate.distil.train import Training, agreement, begin_student, train
from calibrate.models import FlatModel, load_model, load_tokenizer
from specsim.cli import cli

WORDS = 61
END = 2
TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def a_target(**changes: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=END, pad_token_id=0, **changes,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(config)
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.15)
    return model.eval()


def a_tokenizer(*, template: bool) -> Any:
    vocabulary = {"<p>": 0, "<b>": 1, "<e>": END, "<u>": 3, "<a>": 4} | {f"w{n}": n for n in range(5, WORDS)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<p>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"<.>|w\d+|\s"), "isolated")
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<b>", eos_token="<e>", pad_token="<p>",
        additional_special_tokens=["<u>", "<a>"],
    )  # fmt: skip
    if template:
        found.chat_template = TEMPLATE
    return found


def a_directory(home: Path, *, template: bool = True) -> Path:
    a_target().save_pretrained(home)
    a_tokenizer(template=template).save_pretrained(home)
    return home


def written(count: int, *, seed: int = 0) -> list[Written]:
    rng = torch.Generator().manual_seed(99)
    prompts = [torch.randint(5, WORDS, (4 + n % 3,), generator=rng).tolist() for n in range(count)]
    return continued(FlatModel(a_target(), name="tiny"), prompts, 12, temperature=1.0, seed=seed, end=END)


def test_hidden_states_are_those_that_the_text_was_drawn_from() -> None:
    model = a_target()
    for sequence in written(5):
        with torch.inference_mode():
            hidden = model.model(torch.tensor([sequence.tokens]), use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(sequence.hidden.float(), hidden, rtol=0.02, atol=0.02)
        assert END not in sequence.tokens


def test_a_student_begins_as_layers_of_the_target_and_its_ends_stay() -> None:
    target = a_target()
    student = begin_student(target, 2)
    for mine, theirs in ((0, 0), (1, 3)):
        for ours, other in zip(
            student.model.layers[mine].parameters(), target.model.layers[theirs].parameters(), strict=True
        ):
            assert torch.equal(ours, other)
    train(student, written(8), Training(steps=2, sequences=4))
    assert torch.equal(student.model.embed_tokens.weight, target.model.embed_tokens.weight)
    assert not torch.equal(student.model.layers[0].mlp.up_proj.weight, target.model.layers[0].mlp.up_proj.weight)


def test_training_brings_it_nearer_on_text_that_it_has_not_seen() -> None:
    texts = written(96)
    student = begin_student(a_target(), 2)
    before = agreement(student, texts[:16])
    losses = train(student, texts[16:], Training(steps=60, sequences=16, learning_rate=3e-3))
    after = agreement(student, texts[:16])
    assert losses[-1] < 0.7 * losses[0]
    assert after.overlap > before.overlap + 0.1
    assert after.likeliest > before.likeliest + 0.1
    assert after.positions == sum(len(sequence.tokens) for sequence in texts[:16])


def test_prompts_follow_the_template_and_given_texts_are_half_of_them() -> None:
    model = FlatModel(a_target(), name="tiny")
    tokenizer = a_tokenizer(template=True)
    passage = list(range(5, 55))
    prompts = own_prompts(model, tokenizer, 6, texts=passage, temperature=1.0, seed=1)
    assert len(prompts) == 6
    asked = [prompt for prompt in prompts if prompt[0] == 3]
    assert len(asked) == 3
    assert all(prompt[-1] == 4 and prompt[-2] == END for prompt in asked)
    given = [prompt for prompt in prompts if prompt[0] != 3]
    assert all(prompt == list(range(prompt[0], prompt[0] + 48)) for prompt in given)
    plain = own_prompts(model, a_tokenizer(template=False), 4, texts=(), temperature=1.0, seed=1)
    assert [prompt[0] for prompt in plain] == [1] * 4


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["calibrate", "draft", *words])


def test_the_command_gives_the_same_draft_model_again_and_it_serves(tmp_path: Path) -> None:
    target = a_directory(tmp_path / "target")
    small = ("--sequences", "20", "--tokens", "8", "--steps", "4", "--seed", "3", "--device", "cpu")
    first, second = tmp_path / "a", tmp_path / "b"
    said = run("--target", str(target), "-o", str(first), *small, "--json")
    assert said.exit_code == 0, said.output
    facts = json.loads(said.stdout)
    assert facts["parameters"] < facts["target_parameters"]
    assert facts["held_out_positions"] > 0
    assert run("--target", str(target), "-o", str(second), *small).exit_code == 0
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert json.loads((first / "draft_model.json").read_text("utf-8"))["recipe"]["seed"] == 3
    assert load_model(first).num_layers == 2
    assert load_tokenizer(first).get_vocab() == load_tokenizer(target).get_vocab()
    done = CliRunner().invoke(cli, [
        "calibrate", "latency", "--target", str(target), "--draft", str(first), "--device", "cpu", "--max-batch", "2",
        "--max-context", "16", "--max-chunk", "16", "--k-max", "1", "--budget", "1s", "-o", str(tmp_path / "p.json"),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "p.json").read_text("utf-8"))["covers"]["method"] == "draft_model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs --target"),
        (("--target", "TARGET"), "needs --out"),
        (("--target", "nowhere", "-o", "OUT"), "no directory with safetensors"),
        (("--target", "TARGET", "-o", "TARGET"), "exists already; give --force"),
        (("--target", "TARGET", "-o", "OUT", "--layers", "4"), "the target has 4 layers"),
        (("--target", "TARGET", "-o", "OUT", "--text", "nowhere.txt"), "--text nowhere.txt: cannot be read"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    target = a_directory(tmp_path / "target")
    names = {"TARGET": str(target), "OUT": str(tmp_path / "out")}
    done = run(*(names.get(word, word) for word in words))
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
