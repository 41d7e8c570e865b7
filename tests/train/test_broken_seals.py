"""Each way to break a seal is caught, has status 4, and is named; what a run does beside its steps breaks none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from trainer.compile import CompileError, Discipline, SealBroken, explain_stray

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ROWS, WIDTH = 4, 3


class Block(nn.Module):
    """A map with a Python value of its own, as a sliding layer's window is."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        return y if self.window is None else y * self.window


def loss_of(block: Block, x: Tensor) -> Tensor:
    return block(x).square().mean()


def batch(rows: int = ROWS, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(rows, WIDTH, dtype=dtype)


@pytest.fixture
def discipline() -> Iterator[Discipline]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    made = Discipline(backend="aot_eager", replica="rank 1")
    yield made
    made.close()


Sealed = tuple[Discipline, Callable[..., Tensor], Block]


@pytest.fixture
def sealed(discipline: Discipline) -> Sealed:
    block, run = Block(), discipline.guard(loss_of)
    run.warm(block, batch())
    assert block.linear.weight.grad is None
    discipline.seal()
    return discipline, run, block


def new_shape(sealed: Sealed) -> None:
    _, run, block = sealed
    run(block, batch(rows=ROWS + 1))


def new_dtype(sealed: Sealed) -> None:
    _, run, block = sealed
    run(block.double(), batch(dtype=torch.float64))


def toggled_grad_mode(sealed: Sealed) -> None:
    _, run, block = sealed
    with torch.no_grad():
        run(block, batch())


def another_kind(sealed: Sealed) -> None:
    run = sealed[1]
    run(Block(window=2), batch())


def unfused_attention(sealed: Sealed) -> None:
    x = torch.ones(1, 1, 16, 16)
    flex_attention(x, x, x)


@pytest.mark.parametrize(
    ("break_it", "reason", "way_out"),
    [
        (new_shape, "size mismatch at index 0. expected 4, actual 5", "fixed shape"),
        (new_dtype, "dtype mismatch. expected Float, actual Double", "a function of its own for each kind"),
        (toggled_grad_mode, "grad_mode", "a function of its own for each kind"),
        (another_kind, "window", "a function of its own for each kind"),
    ],
)
def test_what_a_guard_refuses_is_named_with_function_shapes_replica_and_way_out(
    sealed: Sealed, break_it: Callable[[Sealed], None], reason: str, way_out: str
) -> None:
    with pytest.raises(SealBroken) as caught:
        break_it(sealed)
    error = caught.value
    assert (error.exit_code, error.function, error.replica) == (4, "loss_of", "rank 1")
    assert reason.lower() in error.reason.lower()
    assert way_out in error.way_out
    assert error.shapes
    assert "in loss_of of rank 1: compiled again" in str(error)


def test_a_graph_break_is_refused_when_it_is_warmed(discipline: Discipline) -> None:
    def breaks(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(CompileError, match=r"breaks of rank 1 did not compile .*(?s:.)*graph_break") as caught:
        discipline.guard(breaks).warm(batch())
    assert caught.value.exit_code == 4


def test_unfused_attention_is_refused_even_if_it_was_warned_of_before(
    discipline: Discipline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserWarning, match="flex_attention called without"):
        unfused_attention((discipline, loss_of, Block()))
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_WARNINGS_SHOWN", {"flex_attention_performance"})
    run = discipline.guard(loss_of)
    run.warm(Block(), batch())
    discipline.seal()
    with pytest.raises(UserWarning, match="flex_attention called without"):
        unfused_attention((discipline, run, Block()))


def test_code_that_nobody_guarded_is_named_by_its_line_with_shapes(sealed: Sealed) -> None:
    with pytest.raises(UserWarning) as caught:
        unfused_attention(sealed)
    broken = explain_stray(caught.value, replica="rank 1")
    assert isinstance(broken, SealBroken)
    assert "broken in unfused_attention (" in str(broken)
    assert "test_broken_seals.py:" in broken.function
    assert (broken.replica, broken.shapes) == ("rank 1", ", ".join(["float32[1, 1, 16, 16]"] * 3))


def test_a_swallowed_warning_of_unfused_attention_is_noticed(sealed: Sealed) -> None:
    discipline = sealed[0]
    discipline.verify()
    with pytest.warns(UserWarning, match="flex_attention called"), pytest.raises(RuntimeError, match="recompile"):
        unfused_attention(sealed)  # somebody's own filters, more lenient than ours, and an `except` around the call
    with pytest.raises(SealBroken, match="flex attention ran unfused, and the warning was swallowed") as caught:
        discipline.verify()
    assert caught.value.exit_code == 4


def test_errors_that_somebody_suppresses_after_the_seal_are_noticed(sealed: Sealed) -> None:
    discipline = sealed[0]
    with (
        torch._dynamo.config.patch(suppress_errors=True),
        pytest.raises(SealBroken, match=r"suppressed since the seal: .*suppress_errors=True"),
    ):
        discipline.verify()
    discipline.verify()


def test_a_stance_that_somebody_lifts_is_noticed(sealed: Sealed) -> None:
    discipline = sealed[0]
    torch.compiler.set_stance("eager_on_recompile")
    with pytest.raises(SealBroken, match="lifted the stance fail_on_recompile: eager_on_recompile"):
        discipline.verify()


def test_kinds_that_share_a_function_keep_the_seal_off_and_name_what_differs(discipline: Discipline) -> None:
    run = discipline.guard(loss_of)
    for window in (None, 5):
        run.warm(Block(window), batch())
    with pytest.raises(SealBroken, match=r"loss_of of rank 1: it has 2 compiled entries instead of one: .*window"):
        discipline.seal()


def test_kinds_with_a_function_each_are_sealed(discipline: Discipline) -> None:
    full, sliding = Block(), Block(window=5)
    run_full, run_sliding = (discipline.guard(loss_of, name=f"loss_{kind}") for kind in ("full", "sliding"))
    run_full.warm(full, batch())
    run_sliding.warm(sliding, batch())
    discipline.seal()
    run_full(Block(), batch()).backward()  # another layer of the kind
    run_sliding(sliding, batch()).backward()
    assert discipline.verify().recompiles == 0


def test_a_module_can_be_guarded(discipline: Discipline) -> None:
    block = Block()
    run = discipline.guard(block)
    assert run.name == "Block"
    run.warm(batch())
    discipline.seal()
    torch.testing.assert_close(run(batch()), block(batch()))
    discipline.verify()


def test_evaluation_accumulation_an_update_and_a_short_batch_break_no_seal(sealed: Sealed) -> None:
    discipline, run, block = sealed
    optimizer = torch.optim.AdamW(block.parameters())
    with torch.no_grad(), discipline.uncompiled():
        run(block, batch(rows=9))  # evaluation at another shape
    for _ in range(2):
        run(block, batch()).backward()  # the second adds to what the first left
    optimizer.step()
    optimizer.zero_grad()
    state = {name: value.clone() for name, value in block.state_dict().items()}
    block.load_state_dict(state)
    short = torch.cat((batch(rows=1), torch.zeros(ROWS - 1, WIDTH)))  # padded to the one shape
    run(block, short).backward()
    counters = discipline.verify()
    assert (counters.compiles, counters.recompiles, counters.lazy_backwards) == (1, 0, 1)


def test_configuration_reaches_every_thread_that_compiles(discipline: Discipline) -> None:
    made = Discipline(backend="aot_eager", configuration={"torch._dynamo.config.recompile_limit": 3})
    seen: list[int] = []

    def limit() -> None:
        made.enter_thread()
        seen.append(torch._dynamo.config.recompile_limit)

    in_thread(limit)
    made.close()
    assert seen == [3]
    with pytest.raises(AttributeError, match="no_such_limit"):
        Discipline(configuration={"torch._dynamo.config.no_such_limit": 1})


def test_a_lost_cuda_graph_is_told_from_lost_compilation(inductor_cache: Path) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    made = Discipline(cuda_graphs=True)  # on the CPU inductor skips every graph, and says so in a log alone
    try:
        made.guard(loss_of).warm(Block(), batch())
        with pytest.raises(SealBroken, match=r"CUDA graphs were asked for and skipped \d+ times, compilation stands"):
            made.seal()
    finally:
        made.close()


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
