"""The verifier's hidden states of all documents, computed once and kept in files; training then needs no verifier.

A piece is what a row holds of a document, so what is stored is what packed rows would give. Files appear whole, and a
computation that was stopped goes on with the files that stand.
Legend: B rows, S tokens a row, T tokens of a file, C captured hidden states.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from trainer.batch import Batch, Piece
from trainer.documents import Document
from trainer.errors import TrainerError
from trainer.files import write_atomically
from trainer.packing import cut, fill_rows, plan_rows
from trainer.progress import Progress, Talk
from trainer.sections import DataConfig
from trainer.verifier import Verifier

FILE_MIB = 256
SPARE_MIB = 1024


@dataclass(frozen=True)
class StatesFile:
    """One file: the states of consecutive pieces, one after the other."""

    path: Path
    pieces: tuple[Piece, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens whose states it holds."""
        return sum(map(len, self.pieces))


def plan_files(folder: Path, lengths: Sequence[int], *, row_tokens: int, file_tokens: int) -> tuple[StatesFile, ...]:
    """Return the files that hold the states of documents of these lengths, each of at least `file_tokens` but the last.

    >>> [one.num_tokens for one in plan_files(Path("x"), [5, 3, 9], row_tokens=4, file_tokens=6)]
    [8, 8, 1]
    """
    files: list[StatesFile] = []
    pieces: list[Piece] = []
    num_tokens = 0
    everything = [piece for number, length in enumerate(lengths) for piece in cut(number, length, row_tokens)]
    for index, piece in enumerate(everything):
        pieces.append(piece)
        num_tokens += len(piece)
        if num_tokens >= file_tokens or index == len(everything) - 1:
            files.append(StatesFile(folder / f"states-{len(files):05}.safetensors", tuple(pieces)))
            pieces, num_tokens = [], 0
    return tuple(files)


class StoredStates:
    """Gives the states of a batch from files, as the verifier would compute them."""

    def __init__(self, files: Sequence[StatesFile], num_channels: int, *, device: torch.device, dtype: torch.dtype):
        self._num_channels, self._device, self._dtype = num_channels, device, dtype
        self._places: dict[Piece, tuple[Path, int]] = {}
        self._open: dict[Path, safe_open] = {}
        for one in files:
            start = 0
            for piece in one.pieces:
                self._places[piece] = one.path, start
                start += len(piece)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states [B, S, C] of packed rows; zeros where a row is padding."""
        num_rows, row_tokens = batch.input_ids_BS.shape
        states_BSC = torch.zeros(num_rows, row_tokens, self._num_channels, dtype=self._dtype)
        for row, pieces in enumerate(batch.pieces):
            start = 0
            for piece in pieces:
                states_BSC[row, start : start + len(piece)] = self._read(piece)
                start += len(piece)
        return states_BSC.to(self._device)

    def _read(self, piece: Piece) -> Tensor:
        path, start = self._places[piece]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")  # mapped: only what is asked for is read
        mapped: Any = self._open[path]  # safetensors ships no types for slices
        found: Tensor = mapped.get_slice("states")[start : start + len(piece)]
        return found


def store_states(
    files: Sequence[StatesFile], documents: Sequence[Document], verifier: Verifier, config: DataConfig, *, talk: Talk
) -> None:
    """Compute the files that are missing; raises StopRequested between two batches when asked to stop."""
    num_tokens = sum(one.num_tokens for one in files)
    done = sum(one.num_tokens for one in files if one.path.is_file())
    for one in files:
        if one.path.is_file():
            continue
        began = time.perf_counter()
        states = {"states": torch.cat(list(_in_order(one.pieces, documents, verifier, config, talk)))}
        write_atomically(one.path, save(states))
        done += one.num_tokens
        talk.report(Progress("states", done, num_tokens, None, one.num_tokens / (time.perf_counter() - began)))


def check_room(files: Sequence[StatesFile], folder: Path, *, token_bytes: int) -> None:
    """Raise TrainerError where the disk has no room for the files that are missing."""
    needed_mib = sum(one.num_tokens for one in files if not one.path.is_file()) * token_bytes / 2**20
    free_mib = shutil.disk_usage(folder).free / 2**20
    if needed_mib and needed_mib + SPARE_MIB > free_mib:
        raise TrainerError(
            f"the verifier's hidden states need {needed_mib / 1024:.1f} GiB in {folder}, where {free_mib / 1024:.1f} "
            "GiB are free; make room, or train with verifier.hidden_states: online"
        )


def _in_order(
    pieces: Sequence[Piece], documents: Sequence[Document], verifier: Verifier, config: DataConfig, talk: Talk
) -> Iterator[Tensor]:
    """Yield the states [S, C] of each piece, computed in packed rows, in the order of the pieces."""
    rows = plan_rows([len(piece) for piece in pieces], range(len(pieces)), row_tokens=config.row_tokens)
    found: dict[int, Tensor] = {}
    for start in range(0, len(rows), config.rows):
        talk.raise_if_stopped("storing hidden states")
        group = [tuple(pieces[one.document] for one in row) for row in rows[start : start + config.rows]]
        batch = fill_rows(group, documents, row_tokens=config.row_tokens, pad_id=config.pad_id)
        states_BSC = verifier.hidden(batch.to(verifier.device)).cpu()
        for row, row_states_SC in zip(rows[start:], states_BSC, strict=False):
            sizes = [len(one) for one in row]
            parts = torch.split(row_states_SC[: sum(sizes)], sizes)
            found.update(zip((one.document for one in row), parts, strict=True))
    for number in range(len(pieces)):
        yield found[number]
