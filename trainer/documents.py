"""Tokenised documents with their supervision, and the one file that stores a set of them. It tokenises nothing.

Legend: S tokens of one document.
"""

from __future__ import annotations

import hashlib
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


def supervised(input_ids: Sequence[int] | Tensor, *, start: int = 0) -> Document:
    """Return a document whose tokens from `start` on are supervised; none where `start` is its length."""
    ids_S = torch.as_tensor(input_ids, dtype=torch.int64)
    mask_S = torch.ones_like(ids_S)
    mask_S[:start] = 0
    return Document(ids_S, mask_S)


def save_documents(path: Path, documents: Sequence[Document]) -> None:
    """Write documents atomically, as one safetensors file."""
    tensors = {
        "input_ids": _join(document.input_ids_S for document in documents),
        "loss_mask": _join(document.loss_mask_S for document in documents).to(torch.uint8),
        "lengths": torch.tensor([len(document) for document in documents], dtype=torch.int64),
    }
    write_atomically(path, save(tensors))


def load_documents(path: Path) -> tuple[Document, ...]:
    """Return the documents that `save_documents` wrote."""
    tensors = load_file(path)
    lengths = tensors["lengths"].tolist()
    ids = torch.split(tensors["input_ids"], lengths)
    masks = torch.split(tensors["loss_mask"].to(torch.int64), lengths)
    return tuple(Document(*pair) for pair in zip(ids, masks, strict=True))


def documents_digest(documents: Iterable[Document]) -> str:
    """Return a hash of all tokens, in order and document by document."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document).to_bytes(8, "little"))
        digest.update(document.input_ids_S.numpy().tobytes())
    return digest.hexdigest()


def _join(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])
