"""One batch of packed rows, the only shape in which training data moves. It reads no files and draws no numbers.

Legend: B rows, S tokens a row. Both are fixed by the recipe, so that nothing downstream is ever compiled twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

ROW_PADDING = -1


@dataclass(frozen=True)
class Piece:
    """Tokens start..end of document number `document`; a whole document unless that is longer than a row."""

    document: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


Row = tuple[Piece, ...]


@dataclass(frozen=True)
class Batch:
    """Packed rows: token ids, a 0/1 mask of supervised tokens, and document ids (-1 marks row padding).

    `pieces` names what each row holds, where the rows come from documents.
    """

    input_ids_BS: Tensor
    loss_mask_BS: Tensor
    document_ids_BS: Tensor
    pieces: tuple[Row, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name, value in self.tensors().items():
            if value.dtype != torch.int64 or value.dim() != 2:
                raise ValueError(f"{name} must be int64 [B, S], got {value.dtype} {list(value.shape)}")
            if value.shape != self.input_ids_BS.shape:
                raise ValueError(f"{name} has shape {list(value.shape)}, input_ids_BS {list(self.input_ids_BS.shape)}")

    def tensors(self) -> dict[str, Tensor]:
        """Return the three tensors by field name."""
        return {
            "input_ids_BS": self.input_ids_BS,
            "loss_mask_BS": self.loss_mask_BS,
            "document_ids_BS": self.document_ids_BS,
        }

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on `device`; asynchronous where the source is pinned."""
        moved = (value.to(device, non_blocking=True) for value in self.tensors().values())
        return Batch(*moved, pieces=self.pieces)

    @property
    def num_tokens(self) -> int:
        """Tokens that belong to a document (a host synchronisation if the batch is on a GPU)."""
        return int((self.document_ids_BS != ROW_PADDING).sum())
