"""Progress rows of many trainers to numbers."""

from __future__ import annotations

import math

import pytest

from opsctl.detect.steps import StepRow, parse, shape_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step 12/300 | loss 2.5 | 0.4 s/step", StepRow("train", 12, 300, 2.5, None, 0.4)),
        ("step 000080 | loss 2.4009 | gnorm 0.81 | 0.414 s/step | 412k tok/s",
         StepRow("train", 80, None, 2.4009, 0.81, 0.414, 412000.0)),
        ("step: 10  loss:  7.0000  grad_norm: 1.0  memory: 30.10GiB(40.1%)  tps: 7,000  mfu: 40.1%",
         StepRow("train", 10, None, 7.0, 1.0, None, 7000.0)),
        (" iteration      100/  500000 | elapsed time per iteration (ms): 3482.1 | lm loss: 2.3E+00 | loss scale: 1 |",
         StepRow("train", 100, 500000, 2.3, None, 3.4821)),
        ("Epoch 3:  41%|████   | 4100/10000 [41:10<58:50,  2.00it/s, v_num=1, train_loss=1.90]",
         StepRow("train", 4100, 10000, 1.9, None, 0.5, is_epoch=True)),
        ("Training:  50% 10/20 [00:04<00:04,  2.5it/s]", StepRow("train", 10, 20, None, None, 0.4)),
        ("Epoch: [0][14/5005]\tTime 0.154 (8.010)\tData 0.001 (7.720)\tLoss 6.9047 (6.9080)",
         StepRow("train", 14, 5005, 6.9047, None, 0.154, None, 0.001, is_epoch=True)),
        ("INFO Train: [3/300][290/625]  eta 0:05:52  lr 0.0027 time 0.5567 (1.0516)    loss 10.5960 (10.9174)",
         StepRow("train", 290, 625, 10.596, None, 0.5567)),
        ("Train: 12 [  50/1251 (  4%)]  Loss: 3.21 (3.3)  Time: 0.312s,  820.3/s",
         StepRow("train", 50, 1251, 3.21, None, 0.312)),
        ("{'loss': 0.2051, 'grad_norm': 1.31, 'learning_rate': 9.77e-06, 'epoch': 0.53}",
         StepRow("train", None, None, 0.2051, 1.31, is_epoch=True)),
        ("938/938 [==============================] - 12s 250ms/step - loss: 0.25",
         StepRow("train", 938, 938, 0.25, None, 0.25)),
        ("global_step=120 train/loss=2.41 4.0 it/s", StepRow("train", 120, None, 2.41, None, 0.25)),
        ("2026-03-11 10:00:00 INFO step 1,200/10,000 loss=2.5 tok/s=81,234",
         StepRow("train", 1200, 10000, 2.5, None, None, 81234.0)),
        ("eval step 12/50 loss 2.2", StepRow("eval", 12, 50, 2.2)),
        ("Validation DataLoader 0:  41%|████  | 410/1000 [41:10<58:50,  2.00it/s]",
         StepRow("eval", 410, 1000, None, None, 0.5)),
        ("Loading checkpoint shards:  50%|█████     | 2/4 [00:04<00:04,  2.1s/it]",
         StepRow("prepare", 2, 4, None, None, 2.1)),
        ("step 7 | loss 2.4 | rss 210.5 GiB", StepRow("train", 7, None, 2.4, host_memory=210.5)),
        ("Iter(train) [ 2050/160000]  lr: 5.9e-05  eta: 1 day, 2:01:11  time: 0.4412  data_time: 0.0071  loss: 1.21",
         StepRow("train", 2050, 160000, 1.21, None, 0.4412, None, 0.0071)),
        ("| epoch   3 |   200/ 2983 batches | lr 5.00 | ms/batch 30.12 | loss  5.41 | ppl   223.12",
         StepRow("train", 200, 2983, 5.41, None, 0.03012, is_epoch=True)),
        ("|   200/ 2983 batches | lr 5.00 | ms/batch 30.12 | loss  5.41",
         StepRow("train", 200, 2983, 5.41, None, 0.03012)),
        ("I1129 10:05:00.1 140213 logging_writer.py:48] [1200] learning_rate=0.0003, loss=3.1, steps_per_sec=10.0",
         StepRow("train", 1200, None, 3.1, None, 0.1)),
        ("Training epoch 0, iteration 120/9999 | global_step: 120 | reduced_train_loss: 2.41",
         StepRow("train", 120, 9999, 2.41, is_epoch=True)),
        ("[Rank 0] step=20, skipped=5, lr=[1e-05], mom=[(0.9, 0.999)]", StepRow("train", 20)),
        ("update 120 | actor/loss 0.012 | critic/loss 1.2", StepRow("train", 120)),
        ("step:1K smpl:8K loss:0.412", StepRow("train", None, None, 0.412)),
    ],
)  # fmt: skip
def test_rows_of_trainers(text: str, expected: StepRow) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "  Total optimization steps = 3,700",
        "Resuming from step 4000",
        "Saving checkpoint at step 500",
        "{'eval_loss': 0.2, 'eval_runtime': 3.2, 'epoch': 1.0}",
        "{'train_runtime': 28382.1, 'train_loss': 0.61, 'epoch': 2.0}",
        "val_loss 2.1 step 5",
        "the gradient of a batch takes time 0.5",
        "loss scaler 0 reducing loss scale to 65536.0",
    ],
)
def test_rows_that_only_sound_like_progress(text: str) -> None:
    assert parse(text) is None


def test_a_loss_that_is_no_number() -> None:
    row = parse("step 4 loss nan grad_norm inf")
    assert row is not None
    assert math.isnan(row.loss or 0.0)
    assert math.isinf(row.grad_norm or 0.0)


def test_a_shape_is_read_from_any_row_that_differs_only_in_digits() -> None:
    shape = shape_of("step 00/00 | loss 0.00")
    assert shape is not None
    assert shape.read("step 37/80 | loss 1.25") == parse("step 37/80 | loss 1.25")
