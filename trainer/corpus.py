"""What to train on: documents and prompts from text that Python ships, or from JSON lines. It runs no model.

Legend: S tokens of one document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.documents import Document, supervised
from trainer.errors import ConfigError
from trainer.jsonl import read_jsonl
from trainer.python_text import is_held_out, python_texts
from trainer.sections import CorpusConfig


@dataclass(frozen=True)
class Split:
    """Documents to train on, and those held out for measuring."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def source_digest(config: CorpusConfig) -> str:
    """Return a hash of the source's content; raises ConfigError where it cannot be read."""
    if config.path is None:
        text = "\0".join(f"{text.name}\0{text.text}" for text in python_texts())
        return hashlib.sha256(text.encode()).hexdigest()
    try:
        with config.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"corpus.path: cannot read {config.path}: {error.strerror}") from error


def read_source(config: CorpusConfig, tokenizer: Any) -> Split:
    """Return the source's documents, tokenised; a document's name (or line number) decides whether it is held out."""
    train: list[Document] = []
    held_out: list[Document] = []
    for name, document in _named_documents(config, tokenizer):
        (held_out if is_held_out(name, one_in=config.held_out_one_in) else train).append(document)
    if not train or not held_out:
        raise ConfigError(
            f"corpus: {len(train)} documents to train on and {len(held_out)} held out; both must be at least 1 "
            "(give more documents, or a smaller held_out_one_in)"
        )
    return Split(tuple(train), tuple(held_out))


def _named_documents(config: CorpusConfig, tokenizer: Any) -> Iterator[tuple[str, Document]]:
    if config.path is None:
        for text in python_texts():
            yield text.name, supervised(tokenizer(text.text, add_special_tokens=False)["input_ids"])
        return
    for number, document in enumerate(read_jsonl(config.path, tokenizer)):
        yield str(number), document


def prompts_of(
    documents: Sequence[Document], *, num_prompts: int, prompt_tokens: int, is_text: bool, seed: int
) -> tuple[Tensor, ...]:
    """Return up to `num_prompts` prompts: windows at random places of text, or what stands before the first answer."""
    if is_text:
        return _windows(documents, num_prompts, prompt_tokens, seed)
    prompts = (document.input_ids_S[: first_supervised(document)] for document in documents)
    return tuple(prompt for prompt in prompts if 1 <= len(prompt) <= prompt_tokens)[:num_prompts]


def first_supervised(document: Document) -> int:
    """Return the place of a document's first supervised token, its length if there is none."""
    places = document.loss_mask_S.nonzero()
    return int(places[0, 0]) if len(places) else len(document)


def _windows(documents: Sequence[Document], num_windows: int, window_tokens: int, seed: int) -> tuple[Tensor, ...]:
    """Return windows whose places are uniform over all places of all documents; none crosses a document's end."""
    places_D = torch.tensor([max(0, len(document) - window_tokens + 1) for document in documents])
    if not places_D.any():
        raise ConfigError(f"corpus.prompt_tokens: no text is {window_tokens} tokens long")
    ends_D = places_D.cumsum(0)
    generator = torch.Generator().manual_seed(seed)
    drawn_W = torch.randint(int(ends_D[-1]), (num_windows,), generator=generator)
    document_W = torch.searchsorted(ends_D, drawn_W, right=True)
    start_W = drawn_W - (ends_D - places_D)[document_W]
    return tuple(
        documents[index].input_ids_S[start : start + window_tokens]
        for index, start in zip(document_W.tolist(), start_W.tolist(), strict=True)
    )


def answered(prompts: Iterable[Tensor], responses: Iterable[Sequence[int]]) -> tuple[Document, ...]:
    """Return one document a prompt: the prompt, then its response, which alone is supervised."""
    return tuple(
        supervised(torch.cat((prompt, torch.tensor(response, dtype=torch.int64))), start=len(prompt))
        for prompt, response in zip(prompts, responses, strict=True)
    )
