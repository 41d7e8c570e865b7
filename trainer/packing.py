"""Lays documents into rows of a fixed number of tokens, best fit, whole where they fit. Pure: nothing is drawn.

Legend: S tokens a row (row_tokens).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trainer.batch import ROW_PADDING, Batch, Piece, Row
from trainer.documents import Document


def cut(document: int, length: int, row_tokens: int) -> tuple[Piece, ...]:
    """Return a document's pieces: itself, or runs of a whole row and a rest where it is longer than a row.

    >>> [len(piece) for piece in cut(0, 10, 4)]
    [4, 4, 2]
    """
    starts = range(0, length, row_tokens)
    return tuple(Piece(document, start, min(start + row_tokens, length)) for start in starts)


def plan_rows(lengths: Sequence[int], order: Iterable[int], *, row_tokens: int) -> list[Row]:
    """Return rows that hold every document, each piece put where it leaves the least room, in the given order.

    >>> rows = plan_rows([6, 5, 4, 3], range(4), row_tokens=9)
    >>> [[piece.document for piece in row] for row in rows]
    [[0, 3], [1, 2]]
    """
    rows: list[list[Piece]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted, so that the tightest fit is a bisection away
    for document in order:
        for piece in cut(document, lengths[document], row_tokens):
            found = bisect_left(room, (len(piece), -1))
            left, row = room.pop(found) if found < len(room) else (row_tokens, len(rows))
            if row == len(rows):
                rows.append([])
            rows[row].append(piece)
            if left > len(piece):
                insort(room, (left - len(piece), row))
    return [tuple(row) for row in rows]


def fill_rows(rows: Sequence[Row], documents: Sequence[Document], *, row_tokens: int, pad_id: int) -> Batch:
    """Return the batch of these planned rows."""
    filled = [fill_row(row, documents, row_tokens=row_tokens, pad_id=pad_id) for row in rows]
    return Batch(*(torch.stack(column) for column in zip(*filled, strict=True)), pieces=tuple(rows))


def fill_row(row: Row, documents: Sequence[Document], *, row_tokens: int, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return input ids, loss mask and document ids [S] of a planned row; the rest of it is padding, document -1."""
    ids_S = torch.full((row_tokens,), pad_id, dtype=torch.int64)
    mask_S = torch.zeros(row_tokens, dtype=torch.int64)
    document_S = torch.full((row_tokens,), ROW_PADDING, dtype=torch.int64)
    offset = 0
    for number, piece in enumerate(row):
        source, place = documents[piece.document], slice(offset, offset + len(piece))
        ids_S[place] = source.input_ids_S[piece.start : piece.end]
        mask_S[place] = source.loss_mask_S[piece.start : piece.end]
        document_S[place] = number
        offset += len(piece)
    return ids_S, mask_S, document_S
