"""One rank's gradient of its rows of a joined batch, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.train.cases import drafter_config
from tests.train.verifiers import HIDDEN, VOCAB, tiny_verifier
from trainer.anchors import Anchors
from trainer.batch import Batch
from trainer.data import PackedRows
from trainer.documents import supervised
from trainer.model import Drafter
from trainer.optim import make_optimizer
from trainer.ranks import Ranks, Share
from trainer.sections import DataConfig, OptimConfig
from trainer.step import Frozen, StepInputs, step_functions
from trainer.update import Parts, gradients
from trainer.warmup import StepShape

ROWS_OF_ALL = 6
TOKENS = 20
SLOTS = 5


def joined() -> tuple[Batch, Anchors]:
    """The rows of all ranks: one document each, a third of its tokens unsupervised, and anchors of their own."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(VOCAB - 1, (ROWS_OF_ALL, TOKENS), generator=generator)
    mask = (torch.rand(ids.shape, generator=generator) < 0.67).long()
    position = torch.stack([torch.randperm(TOKENS - 2, generator=generator)[:SLOTS].sort().values for _ in ids])
    is_valid = torch.arange(SLOTS) < torch.tensor([5, 4, 3, 5, 2, 1])[:, None]
    return Batch(ids, mask, torch.zeros_like(ids)), Anchors(position, is_valid)


def parts_of(rows: int) -> Parts:
    """A float64 drafter and verifier with the same weights in every process."""
    verifier = tiny_verifier((0, 2))
    verifier.model.double()
    torch.manual_seed(1)
    config = drafter_config(
        hidden_size=HIDDEN, vocab_size=VOCAB, num_target_layers=4, target_layer_ids=(0, 2), mask_token_id=VOCAB - 1
    )
    drafter = Drafter(config).double()
    shape = StepShape(rows, TOKENS, SLOTS, chunk_slots=8, dtype=torch.float64)
    documents = [supervised(torch.arange(TOKENS), start=1)]
    return Parts(
        hidden=verifier.hidden,
        frozen=Frozen(verifier.embed_tokens.detach(), verifier.lm_head.detach()),
        drafter=drafter,
        optimizer=make_optimizer(drafter, OptimConfig()),
        functions=step_functions(config, "dense"),
        rows=PackedRows(DataConfig(rows=rows, row_tokens=TOKENS), documents, 0),
        shape=shape,
        gamma=4.0,
    )


def gradients_of(ranks: Ranks, *, num_empty_rows: int) -> dict[str, Tensor]:
    """The gradient by parameter, and `sums`: loss, accepted slots and blocks, after the ranks added theirs up."""
    rows = ROWS_OF_ALL // ranks.size
    mine = slice(ranks.rank * rows, (ranks.rank + 1) * rows)
    batch, anchors = joined()
    anchors.is_valid_BN[ROWS_OF_ALL - num_empty_rows :] = False
    parts = parts_of(rows)
    batch = Batch(*(tensor[mine] for tensor in batch.tensors().values()))
    anchors = Anchors(anchors.position_BN[mine], anchors.is_valid_BN[mine])
    inputs = StepInputs.make(batch, anchors, parts.drafter.config, gamma=parts.gamma, chunk_slots=8)
    total = ranks.agree(Share(inputs.supervised.total_weight, inputs.supervised.num_rows, batch.num_tokens))
    sums = gradients(parts, inputs, total, ranks=ranks)
    found = {name: one.grad for name, one in parts.drafter.named_parameters() if one.grad is not None}
    return {"sums": sums, **{name: value.clone() for name, value in found.items()}}
