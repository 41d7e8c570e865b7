"""Documents, packing and the stream of batches: nothing lost, nothing torn, the same again after a resume."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from trainer.batch import ROW_PADDING, Batch
from trainer.corpus import answered, first_supervised, prompts_of, read_source, source_digest
from trainer.data import PackedRows
from trainer.documents import Document, load_documents, save_documents, supervised
from trainer.errors import ConfigError
from trainer.jsonl import conversation, read_jsonl
from trainer.packing import plan_rows
from trainer.sections import CorpusConfig, DataConfig

HF: Any = transformers
LENGTHS = (5, 9, 3, 16, 16, 1, 40, 7, 12, 2, 8)
PAD = 99
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def documents(lengths: tuple[int, ...] = LENGTHS) -> list[Document]:
    """Documents whose tokens say where they come from: 1000 * number + place; the second half is supervised."""
    return [supervised(1000 * n + torch.arange(length), start=length // 2) for n, length in enumerate(lengths)]


def stream(**choices: Any) -> PackedRows:
    """Return a stream of two rows of 16 tokens."""
    return PackedRows(DataConfig(rows=2, row_tokens=16, pad_id=PAD), documents(), **{"seed": 4, **choices})


def take(rows: PackedRows, count: int) -> list[Batch]:
    """Return the next `count` batches."""
    return [batch for batch, _ in itertools.islice(rows, count)]


def same(first: list[Batch], second: list[Batch]) -> bool:
    """Whether two runs of batches are equal, tensor for tensor."""
    return len(first) == len(second) and all(
        a.tensors()[name].equal(b.tensors()[name]) for a, b in zip(first, second, strict=True) for name in a.tensors()
    )


# Packing.


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 20), st.randoms())
def test_every_token_lands_once_and_whole_documents_stay_whole(
    lengths: list[int], row_tokens: int, random: Any
) -> None:
    order = list(range(len(lengths)))
    random.shuffle(order)
    rows = plan_rows(lengths, order, row_tokens=row_tokens)
    assert all(sum(map(len, row)) <= row_tokens for row in rows)
    assert all(rows)
    pieces = sorted(
        ((piece.document, piece.start, piece.end) for row in rows for piece in row), key=lambda piece: piece[:2]
    )
    places = [(document, place) for document, start, end in pieces for place in range(start, end)]
    assert places == [(document, place) for document, length in enumerate(lengths) for place in range(length)]
    whole = {document for document, start, end in pieces if end - start == lengths[document]}
    assert whole == {document for document, length in enumerate(lengths) if 0 < length <= row_tokens}


def test_packing_leaves_little_room() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(50, 900, (400,), generator=generator).tolist()
    rows = plan_rows(lengths, range(400), row_tokens=1024)
    assert sum(lengths) / (len(rows) * 1024) > 0.93


# The stream.


def test_a_batch_has_the_fixed_shape_and_marks_padding() -> None:
    for batch in take(stream(), 20):
        assert batch.input_ids_BS.shape == (2, 16)
        padding_BS = batch.document_ids_BS == ROW_PADDING
        assert (batch.input_ids_BS[padding_BS] == PAD).all()
        assert not batch.loss_mask_BS[padding_BS].any()
        assert (batch.input_ids_BS[~padding_BS] != PAD).all()


def test_an_epoch_holds_every_token_with_its_supervision_once() -> None:
    rows, seen = stream(), []
    while rows.epoch == 0:
        batch = next(iter(rows))[0]
        real_BS = batch.document_ids_BS != ROW_PADDING
        seen += list(zip(batch.input_ids_BS[real_BS].tolist(), batch.loss_mask_BS[real_BS].tolist(), strict=True))
    expected = [
        pair for one in documents() for pair in zip(one.input_ids_S.tolist(), one.loss_mask_S.tolist(), strict=True)
    ]
    assert len(seen) - len(expected) <= 32  # the last batch may run on into the next epoch
    assert sorted(set(seen)) == sorted(expected)


def test_document_ids_tell_neighbours_apart() -> None:
    for batch in take(stream(), 8):
        for ids_S, document_S in zip(batch.input_ids_BS, batch.document_ids_BS, strict=True):
            real_S = document_S != ROW_PADDING
            by_id = {int(number): set((ids_S[document_S == number] // 1000).tolist()) for number in document_S[real_S]}
            assert all(len(sources) == 1 for sources in by_id.values())
            assert document_S[real_S].diff().ge(0).all()


def test_epochs_differ_and_seeds_differ_and_both_repeat() -> None:
    rows = stream()
    first = take(rows, 4)
    while rows.epoch == 0:
        take(rows, 1)
    assert not same(first, take(rows, 4))
    assert same(first, take(stream(), 4))
    assert not same(first, take(stream(seed=5), 4))


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 11])
def test_a_resumed_stream_goes_on_with_the_very_next_batch(steps: int) -> None:
    rows = stream()
    take(rows, steps)
    state = json.loads(json.dumps(rows.state_dict()))
    resumed = stream()
    resumed.load_state_dict(state)
    assert same(take(rows, 9), take(resumed, 9))


def test_the_state_that_comes_with_a_batch_is_the_one_after_it() -> None:
    rows = stream()
    for batch, state in itertools.islice(rows, 3):
        assert state == rows.state_dict()
        assert batch.num_tokens > 0


def test_ranks_share_the_stream_without_overlap() -> None:
    whole = PackedRows(DataConfig(rows=4, row_tokens=16, pad_id=PAD), documents(), 4)
    ranks = [stream(rank=rank, world_size=2) for rank in range(2)]
    for batch, _ in itertools.islice(whole, 7):
        shares = [take(rank, 1)[0].input_ids_BS for rank in ranks]
        assert torch.cat(shares).equal(batch.input_ids_BS)
        assert ranks[0].state_dict() == ranks[1].state_dict() == whole.state_dict()


@pytest.mark.parametrize(("name", "other"), [("seed", {"seed": 5}), ("documents", {})])
def test_a_position_in_other_data_is_refused(name: str, other: dict[str, int]) -> None:
    state = {**stream(**other).state_dict(), **({} if other else {"documents": 3})}
    with pytest.raises(ValueError, match=f"saved with {name} {state[name]}"):
        stream().load_state_dict(state)


@pytest.mark.parametrize("nothing", [[], documents((0, 0))])
def test_no_tokens_are_refused(nothing: list[Document]) -> None:
    with pytest.raises(ValueError, match="no documents to train on"):
        PackedRows(DataConfig(), nothing, 0)


@pytest.mark.parametrize("choices", [{"rows": 0}, {"row_tokens": 0}, {"pad_id": -1}])
def test_shapes_that_make_no_sense_are_refused_by_name(choices: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(choices))):
        DataConfig(**choices)


# Documents on disk.


def test_documents_come_back_as_saved(tmp_path: Path) -> None:
    made = documents()
    path = tmp_path / "new" / "documents.safetensors"
    path.parent.mkdir()
    save_documents(path, made)
    back = load_documents(path)
    assert [one.input_ids_S.tolist() for one in back] == [one.input_ids_S.tolist() for one in made]
    assert [one.loss_mask_S.tolist() for one in back] == [one.loss_mask_S.tolist() for one in made]
    assert list(path.parent.iterdir()) == [path]


def test_only_responses_are_supervised() -> None:
    (one,) = answered([torch.tensor([1, 2, 3])], [[4, 5]])
    assert one.input_ids_S.tolist() == [1, 2, 3, 4, 5]
    assert one.loss_mask_S.tolist() == [0, 0, 0, 1, 1]
    assert first_supervised(one) == 3


# JSON lines.


def word_tokenizer() -> Any:
    """A tokenizer of words with a chat template."""
    words = [
        "[UNK]",
        "<|im_start|>",
        "<|im_end|>",
        "user",
        "assistant",
        "what",
        "is",
        "one",
        "two",
        "three",
        "why",
        "so",
    ]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = HF.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    tokenizer.chat_template = CHATML.replace("<|im_start|>", "<|im_start|> ")
    return tokenizer


TALK = [
    {"role": "user", "content": "what is one"},
    {"role": "assistant", "content": "one is one"},
    {"role": "user", "content": "why"},
    {"role": "assistant", "content": "so so"},
]


def words_where(document: Document, value: int) -> str:
    """The words whose mask has this value."""
    return str(word_tokenizer().decode(document.input_ids_S[document.loss_mask_S == value]))


def test_a_conversation_is_supervised_where_the_assistant_speaks() -> None:
    document = conversation(TALK, word_tokenizer())
    assert words_where(document, 1) == "one is one <|im_end|> so so <|im_end|>"
    assert words_where(document, 0) == (
        "<|im_start|> user what is one <|im_end|> <|im_start|> assistant "
        "<|im_start|> user why <|im_end|> <|im_start|> assistant"
    )


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{% if loop.last or loop.index0 % 2 == 0 %}" + (
        "{{ message.role }} {{ message.content }} {% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="renders turn 1 differently"):
        conversation(TALK, tokenizer)


def test_each_kind_of_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}, {"conversations": TALK}, {"text": "one two"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    ids, talk, text = read_jsonl(path, word_tokenizer())
    assert (ids.input_ids_S.tolist(), ids.loss_mask_S.tolist()) == ([5, 6, 7], [0, 1, 1])
    assert talk.input_ids_S.equal(conversation(TALK, word_tokenizer()).input_ids_S)
    assert (text.input_ids_S.tolist(), text.loss_mask_S.tolist()) == ([7, 8], [1, 1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ("[1]", "must be an object"),
        ('{"prompt": "x"}', "needs input_ids with loss_mask, or conversations, or text"),
        ('{"input_ids": [1, 2]}', "loss_mask"),
        ('{"input_ids": [1, 2], "loss_mask": [1]}', "same length"),
        ('{"input_ids": ["a"], "loss_mask": [1]}', "str"),
        ('{"conversations": [{"content": "x"}]}', "role"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "one"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=rf"data\.jsonl:2: .*{message}"):
        list(read_jsonl(path, word_tokenizer()))


# Sources.


def jsonl_corpus(tmp_path: Path, count: int = 40, **choices: Any) -> CorpusConfig:
    """A corpus of `count` lines of ids: a prompt of 1 to 5 tokens, then an answer of two."""
    path = tmp_path / "data.jsonl"
    lines = [{"input_ids": [n, *[1] * (n % 5), 2, 3], "loss_mask": [0] * (n % 5 + 1) + [1, 1]} for n in range(count)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return CorpusConfig(source="jsonl", path=path, held_out_one_in=2, **choices)


def test_a_split_is_stable_and_complete(tmp_path: Path) -> None:
    config = jsonl_corpus(tmp_path)
    split, again = read_source(config, None), read_source(config, None)
    names = [sorted(int(one.input_ids_S[0]) for one in part) for part in (split.train, split.held_out)]
    assert sorted(names[0] + names[1]) == list(range(40))
    assert 10 <= len(split.held_out) <= 30
    assert [len(one) for one in again.held_out] == [len(one) for one in split.held_out]


def test_a_source_too_small_to_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both must be at least 1"):
        read_source(jsonl_corpus(tmp_path, count=1), None)


def test_prompts_end_where_the_answer_starts_and_long_ones_are_left_out() -> None:
    made = [
        supervised([7, 8, 9, 1], start=3),
        supervised([5, 1], start=1),
        supervised([1, 2]),
        supervised([4, 4, 1], start=2),
    ]
    found = prompts_of(made, num_prompts=9, prompt_tokens=2, is_text=False, seed=0)
    assert [prompt.tolist() for prompt in found] == [[5], [4, 4]]


def test_windows_lie_within_one_document_and_reach_all_of_it() -> None:
    found = prompts_of(documents((12, 3, 30)), num_prompts=600, prompt_tokens=5, is_text=True, seed=1)
    starts = {int(window[0]) for window in found}
    assert all(is_run(window) and len(window) == 5 for window in found)
    assert starts == {*range(8), *(2000 + place for place in range(26))}


def is_run(window: Tensor) -> bool:
    """Whether each token is one more than the last."""
    return bool((window.diff() == 1).all())


def test_windows_longer_than_any_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="no text is 50 tokens long"):
        prompts_of(documents(), num_prompts=1, prompt_tokens=50, is_text=True, seed=0)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    config = jsonl_corpus(tmp_path)
    before = source_digest(config)
    assert config.path is not None
    with config.path.open("a") as file:
        file.write("\n")
    assert source_digest(config) != before
    assert source_digest(CorpusConfig()) == source_digest(CorpusConfig(seed=9)) != before


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.path: cannot read .*missing\.jsonl: No such file"):
        source_digest(CorpusConfig(source="jsonl", path=tmp_path / "missing.jsonl"))


@pytest.mark.parametrize(
    "choices",
    [{"path": Path("x")}, {"source": "jsonl"}, {"num_prompts": 0}, {"held_out_one_in": 1}, {"response_tokens": 0}],
)
def test_corpus_choices_that_make_no_sense_are_refused_by_name(choices: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="path" if "source" in choices else next(iter(choices))):
        CorpusConfig(**choices)
