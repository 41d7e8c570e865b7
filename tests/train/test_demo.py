"""Preparation: a language model that learns, artefacts that stand or do not exist, and recipes that load."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.until import until
from trainer.byte_tokenizer import BEGIN_ID, END_ID, MASK_ID, VOCAB_SIZE, byte_tokenizer
from trainer.demo_verifier import schedule, train_demo_verifier
from trainer.errors import ConfigError
from trainer.generate import greedy_responses
from trainer.locks import exclusive
from trainer.prepare import Prepared, prepare
from trainer.progress import Progress, Talk
from trainer.python_text import is_held_out, python_texts
from trainer.recipe import load_recipe
from trainer.sections import CorpusConfig, DemoVerifierConfig, VerifierConfig
from trainer.signals import StopRequested
from trainer.verifier import Verifier, verifier_shape

QUIET = Talk(lambda _: None)
CONFIGS = Path(__file__).parents[2] / "configs"
TINY = DemoVerifierConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    steps=3,
    rows=2,
    row_tokens=32,
    report_every=2,
)


def tiny_corpus(folder: Path, **choices: Any) -> CorpusConfig:
    """A corpus that takes a second to make."""
    sizes = {"num_prompts": 6, "prompt_tokens": 16, "response_tokens": 8, "generate_rows": 4, "num_eval_prompts": 3}
    return CorpusConfig(data_dir=folder, **{**sizes, **choices})


def made(folder: Path, demo: DemoVerifierConfig = TINY, *, talk: Talk = QUIET, **choices: Any) -> Prepared:
    """Prepare the tiny demo in a folder."""
    return prepare(tiny_corpus(folder, **choices), VerifierConfig(demo=demo), talk=talk)


def names(folder: Path) -> set[str]:
    """The kinds of artefact under a folder."""
    return {path.name.partition("-")[0] for path in folder.iterdir()}


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny demo prepared in it."""
    folder = tmp_path_factory.mktemp("data")
    made(folder)
    return folder


# What is made.


def test_documents_are_prompts_with_the_verifiers_own_answers(demo_folder: Path) -> None:
    prepared = made(demo_folder)
    verifier = Verifier.load(prepared.verifier_path, (0,))
    assert len(prepared.documents) == 6
    for document in prepared.documents:
        assert document.loss_mask_S.tolist() == [0] * 16 + [1] * (len(document) - 16)
        (answer,) = greedy_responses(verifier, [document.input_ids_S[:16]], max_new_tokens=8, rows=1, talk=QUIET)
        assert document.input_ids_S[16:].tolist() == answer


def test_measuring_prompts_come_from_held_out_text(demo_folder: Path) -> None:
    prepared = made(demo_folder)
    split = {True: "", False: ""}
    for text in python_texts():
        split[is_held_out(text.name, one_in=12)] += text.text
    assert len(prepared.prompts) == 3
    for prompt in prepared.prompts:
        assert bytes(prompt.tolist()).decode() in split[True]
    for document in prepared.documents:
        assert bytes(document.input_ids_S[:16].tolist()).decode() in split[False]


def test_the_folder_is_an_ordinary_one_with_the_shape_that_the_recipe_says(demo_folder: Path) -> None:
    path = Path(made(demo_folder).verifier_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in path.iterdir()}
    verifier = Verifier.load(path, (0, 1))
    assert verifier.shape == verifier_shape(VerifierConfig(demo=TINY))
    assert verifier.shape.vocab_size == VOCAB_SIZE > MASK_ID
    assert verifier.end_ids == {END_ID}


def test_it_can_be_given_by_path_like_any_other_model(demo_folder: Path, tmp_path: Path) -> None:
    path = made(demo_folder).verifier_path
    prepared = prepare(tiny_corpus(tmp_path), VerifierConfig(path=path), talk=QUIET)
    assert prepared.verifier_path == path
    assert [one.input_ids_S.tolist() for one in prepared.documents] == [
        one.input_ids_S.tolist() for one in made(demo_folder).documents
    ]


def test_plain_text_is_supervised_throughout(demo_folder: Path) -> None:
    prepared = made(demo_folder, responses="corpus")
    assert len(prepared.documents) > 20
    assert all(document.loss_mask_S.all() for document in prepared.documents)


def test_a_language_model_learns() -> None:
    losses: list[float] = []
    talk = Talk(print, lambda progress: losses.append(progress.loss or math.nan))
    texts = [torch.tensor(list(b"the quick brown fox jumps over the lazy dog. " * 40))]
    train_demo_verifier(dataclasses.replace(TINY, steps=120, rows=4, report_every=1), texts, talk=talk)
    assert losses[0] == pytest.approx(math.log(VOCAB_SIZE), abs=0.3)
    assert losses[-1] < 1.0


def test_training_repeats_by_seed_and_leaves_the_global_generator_alone() -> None:
    texts = [torch.arange(200) % 90]
    before = torch.get_rng_state()
    weights = [
        train_demo_verifier(dataclasses.replace(TINY, seed=seed), texts, talk=QUIET).state_dict() for seed in (0, 0, 1)
    ]
    assert torch.get_rng_state().equal(before)
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert not all(weights[0][name].equal(weights[2][name]) for name in weights[0])


def test_progress_counts_every_step_and_ends_with_the_last(tmp_path: Path) -> None:
    reports: list[Progress] = []
    made(tmp_path, talk=Talk(print, reports.append))
    assert [(one.phase, one.step, one.num_steps) for one in reports] == [
        ("verifier", 2, 3),
        ("verifier", 3, 3),
        ("responses", 4, 6),
        ("responses", 6, 6),
    ]
    assert all(one.tokens_per_s > 0 for one in reports)
    assert [one.loss is None for one in reports] == [False, False, True, True]


# What stands.


def test_what_stands_is_used_again(demo_folder: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in demo_folder.rglob("*") if path.is_file()}
    prepared = made(demo_folder)
    assert (prepared.reused_verifier, prepared.reused_documents) == (True, True)
    assert files == {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize(
    ("demo", "choices", "reused"),
    [
        (dataclasses.replace(TINY, report_every=1), {"generate_rows": 3}, (True, True)),
        (TINY, {"num_eval_prompts": 2}, (True, True)),
        (TINY, {"response_tokens": 7}, (True, False)),
        (TINY, {"seed": 1}, (True, False)),
        (dataclasses.replace(TINY, steps=2), {}, (False, False)),
        (dataclasses.replace(TINY, seed=1), {}, (False, False)),
    ],
)
def test_what_determines_an_artefact_is_in_its_name(
    demo_folder: Path, demo: DemoVerifierConfig, choices: dict[str, Any], reused: tuple[bool, bool]
) -> None:
    prepared = made(demo_folder, demo, **choices)
    assert (prepared.reused_verifier, prepared.reused_documents) == reused


@pytest.mark.parametrize(("allowed", "standing"), [(1, {"prepare.lock"}), (5, {"prepare.lock", "verifier", "prompts"})])
def test_stopping_leaves_whole_artefacts_only(tmp_path: Path, allowed: int, standing: set[str]) -> None:
    polls = iter([False] * allowed + [True] * 99)
    with pytest.raises(StopRequested, match=r"while (training|generating)"):
        made(tmp_path / "data", talk=Talk(print, should_stop=lambda: next(polls)))
    assert names(tmp_path / "data") == standing
    assert made(tmp_path / "data").reused_verifier is ("verifier" in standing)


def test_a_leftover_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    folder = Path(made(tmp_path).verifier_path)
    folder.rename(folder.with_name(folder.name + ".part"))
    prepared = made(tmp_path)
    assert not prepared.reused_verifier
    assert Verifier.load(prepared.verifier_path, (0,)).shape.hidden_size == 32
    assert not list(tmp_path.glob("*.part"))


HOLDER = """
import sys, pathlib
from trainer.locks import exclusive
from trainer.progress import Talk
with exclusive(pathlib.Path(sys.argv[1]), Talk(print)):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_take_turns_and_the_lock_dies_with_its_owner(tmp_path: Path) -> None:
    lock = tmp_path / "prepare.lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(StopRequested, match="while waiting for"),
            exclusive(lock, Talk(print, should_stop=lambda: True)),
        ):
            pass
        holder.kill()
        until(lambda: holder.poll() is not None)
        with exclusive(lock, Talk(print, should_stop=lambda: True)):
            pass


# What it is made from.


def test_a_token_is_a_byte() -> None:
    tokenizer = byte_tokenizer()
    text = "naïve — \t\n\x00 日本 <|mask" + "".join(map(chr, range(0x20, 0x180)))
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.convert_tokens_to_ids(["<|begin|>", "<|end|>", "<|mask|>"]) == [BEGIN_ID, END_ID, MASK_ID]


def test_the_text_is_there_and_splits() -> None:
    texts = python_texts()
    held_out = [text for text in texts if is_held_out(text.name, one_in=12)]
    assert sum(len(text.text) for text in texts) > 200_000
    assert 0 < len(held_out) < len(texts) / 4


def test_docstrings_stand_in_for_a_missing_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    texts = python_texts()
    assert sum(len(text.text) for text in texts) > 200_000
    assert "Abstract Base Classes" in next(text.text for text in texts if text.name == "abc")


def test_the_rate_rises_stays_and_falls() -> None:
    config = dataclasses.replace(TINY, steps=100, warmup=0.1, decay=0.5)
    rates = [schedule(step, config) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[10:51] == [1.0] * 41
    assert rates[-1] == 0.02
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[50:]))


@pytest.mark.parametrize(
    "choices",
    [{"hidden_size": 0}, {"num_attention_heads": 5}, {"num_key_value_heads": 2}, {"warmup": 1.5}, {"decay": -0.1}],
)
def test_sizes_that_do_not_fit_are_refused_by_name(choices: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(choices))):
        DemoVerifierConfig(**choices)


def test_a_verifier_folder_without_a_tokenizer_is_named(demo_folder: Path, tmp_path: Path) -> None:
    path = Path(made(demo_folder).verifier_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((path / name).read_bytes())
    with pytest.raises(ConfigError, match=r"verifier\.path: cannot load a tokenizer from .*bare"):
        prepare(tiny_corpus(tmp_path / "data"), VerifierConfig(path=str(bare)), talk=QUIET)


# Recipes.


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_loads_and_stands_in_the_table(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert f"`{path.name}`" in (CONFIGS / "README.md").read_text()


def test_the_demo_fits_its_verifier_and_its_vocabulary() -> None:
    recipe = load_recipe(CONFIGS / "demo.yaml")
    drafter = recipe.drafter_config()
    assert drafter.mask_token_id == MASK_ID
    assert drafter.vocab_size == VOCAB_SIZE
    assert recipe.data.row_tokens % (recipe.corpus.prompt_tokens + recipe.corpus.response_tokens) == 0


def test_the_published_choices_are_kept_for_the_real_model() -> None:
    recipe = load_recipe(CONFIGS / "qwen3-8b.yaml")
    assert recipe.drafter.target_layer_ids == (1, 9, 17, 25, 33)
    assert (recipe.drafter.block_size, recipe.drafter.num_layers, recipe.loss.gamma) == (16, 5, 7.0)
    assert (recipe.optim.lr, recipe.data.row_tokens, recipe.optim.warmup_share) == (6e-4, 3072, 0.04)
    with pytest.raises(ConfigError, match=r"verifier\.path: models/Qwen3-8B is not a folder"):
        recipe.drafter_config()
