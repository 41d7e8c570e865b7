"""The endless, resumable stream of packed batches. It holds documents in memory and reads no files.

Legend: B rows a batch, S tokens a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from trainer.batch import Batch, Row
from trainer.documents import Document
from trainer.packing import fill_rows, plan_rows
from trainer.sections import DataConfig

State = dict[str, int]


class PackedRows:
    """Yields (batch, state after it) without end: each epoch packs and shuffles all documents anew by seed and epoch.

    Ranks walk the same stream and take turns: of every `world_size * rows` rows, rank r takes the r-th share. So the
    state is the same on every rank and holds for any split of the same total. An epoch's last batch runs on into the
    next epoch.
    """

    def __init__(
        self, config: DataConfig, documents: Sequence[Document], seed: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        if not any(map(len, documents)):
            raise ValueError("no documents to train on")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not within a world of {world_size}")
        self._config, self._documents, self._seed = config, documents, seed
        self._rank, self._world_size = rank, world_size
        self._epoch, self._row = 0, 0
        self._planned: tuple[int, list[Row]] | None = None

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next batch starts in."""
        return self._epoch

    def state_dict(self) -> State:
        """Return where the next batch starts, and the seed that this depends on."""
        return {"epoch": self._epoch, "row": self._row, "seed": self._seed, "documents": len(self._documents)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on after the batch that came with `state`; raises ValueError if that belongs to other data."""
        mine = self.state_dict()
        for name in ("seed", "documents"):
            if state[name] != mine[name]:
                raise ValueError(f"the data position was saved with {name} {state[name]}, this run has {mine[name]}")
        self._epoch, self._row = state["epoch"], state["row"]

    def __iter__(self) -> Iterator[tuple[Batch, State]]:
        while True:
            yield self._next_batch(), self.state_dict()

    def _next_batch(self) -> Batch:
        rows = [self._next_row() for _ in range(self._world_size * self._config.rows)]
        mine = rows[self._rank * self._config.rows :][: self._config.rows]
        return fill_rows(mine, self._documents, row_tokens=self._config.row_tokens, pad_id=self._config.pad_id)

    def _next_row(self) -> Row:
        planned = self._plan(self._epoch)
        row = planned[self._row]
        self._row += 1
        if self._row == len(planned):
            self._epoch, self._row = self._epoch + 1, 0
        return row

    def _plan(self, epoch: int) -> list[Row]:
        """Return an epoch's rows: documents in random order decide which share a row, then rows are shuffled too."""
        if self._planned is None or self._planned[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(len(self._documents), generator=generator).tolist()
            lengths = [len(document) for document in self._documents]
            rows = plan_rows(lengths, order, row_tokens=self._config.row_tokens)
            shuffled = torch.randperm(len(rows), generator=generator).tolist()
            self._planned = (epoch, [rows[index] for index in shuffled])
        return self._planned[1]
