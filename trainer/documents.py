"""Tokenised documents with their supervision, and the one file that stores a set of them. It tokenises nothing.

Legend: S tokens of one document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from trainer.files import write_atomically


@dataclass(frozen=True)
class Document:
    """Token ids and a 0/1 mask of the tokens that are supervised, both int64 of one length."""

    input_ids_S: Tensor
    loss_mask_S: Tensor

    def __post_init__(self) -> None:
        if self.input_ids_S.shape != self.loss_mask_S.shape or self.input_ids_S.dim() != 1:
            raise ValueError(
                f"input_ids {list(self.input_ids_S.shape)} and loss_mask {list(self.loss_mask_S.shape)} "
                "must be lists of the same length"
            )

    def __len__(self) -> int:
        return len(self.input_ids_S)


@dataclass(frozen=True)
class DocumentSet:
    """Documents to train on, and prompts held out for measuring."""

    documents: tuple[Document, ...]
    prompts: tuple[Tensor, ...]


def supervised(input_ids: Sequence[int] | Tensor, *, start: int = 0) -> Document:
    """Return a document whose tokens from `start` on are supervised."""
    ids_S = torch.as_tensor(input_ids, dtype=torch.int64)
    mask_S = torch.ones_like(ids_S)
    mask_S[:start] = 0
    return Document(ids_S, mask_S)


def save_documents(path: Path, documents: DocumentSet) -> None:
    """Write a set of documents atomically, as one safetensors file."""
    tensors = {
        "input_ids": _join(document.input_ids_S for document in documents.documents),
        "loss_mask": _join(document.loss_mask_S for document in documents.documents).to(torch.uint8),
        "lengths": torch.tensor([len(document) for document in documents.documents], dtype=torch.int64),
        "prompt_ids": _join(documents.prompts),
        "prompt_lengths": torch.tensor([len(prompt) for prompt in documents.prompts], dtype=torch.int64),
    }
    write_atomically(path, save(tensors))


def load_documents(path: Path) -> DocumentSet:
    """Return the set that `save_documents` wrote."""
    tensors = load_file(path)
    ids = _split(tensors["input_ids"], tensors["lengths"])
    masks = _split(tensors["loss_mask"].to(torch.int64), tensors["lengths"])
    documents = tuple(Document(*pair) for pair in zip(ids, masks, strict=True))
    return DocumentSet(documents, _split(tensors["prompt_ids"], tensors["prompt_lengths"]))


def _join(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def _split(joined: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return torch.split(joined, lengths.tolist())
