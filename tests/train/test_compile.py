"""Compile discipline: nothing is sealed that is not warm, and nothing compiles after the seal without being named."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor

import trainer.compile
from trainer.compile import CompileError, Discipline, SealBroken, SwitchRefused, own_code, refuse_silencers

# inductor itself still uses what torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
SCALE = 1.5


def double(x: Tensor) -> Tensor:
    return torch.tanh(x) * SCALE


def mean(x: Tensor) -> Tensor:
    return x.mean()


def input_of(size: int) -> Tensor:
    return torch.ones(size, requires_grad=True)


def cold(x: Tensor) -> Tensor:
    """Used by one test alone: in no cache, so that its counts are those of a cold start."""
    return torch.cos(x) * 0.25


def cold_backward(x: Tensor) -> Tensor:
    """Used by one test alone: a backward that comes with its forward from a cache cannot be late."""
    return torch.sin(x) * 0.75


@pytest.fixture
def heard() -> list[str]:
    """What was said to be compiled."""
    return []


@pytest.fixture
def discipline(inductor_cache: Path, heard: list[str]) -> Iterator[Discipline]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    made = Discipline(on_compile=heard.append)
    yield made
    made.close()


def test_what_is_warm_both_ways_is_sealed_and_then_serves(discipline: Discipline, heard: list[str]) -> None:
    run = discipline.add("cold", cold)
    run(input_of(3)).sum().backward()
    discipline.seal()
    x = input_of(3)
    run(x).sum().backward()
    counters = discipline.verify()
    torch.testing.assert_close(x.grad, -0.25 * torch.sin(torch.ones(3)))
    assert (counters.compiles, counters.recompiles, counters.lazy_backwards) == (1, 0, 1)
    assert (counters.fx_misses, counters.aot_misses, counters.graph_breaks) == (2, 1, 0)
    assert heard == ["cold", "backward of cold"]


def test_a_new_shape_after_the_seal_names_function_reason_shapes_and_way_out(discipline: Discipline) -> None:
    run = discipline.add("double", double)
    run(input_of(3)).sum().backward()
    discipline.seal()
    with pytest.raises(SealBroken) as caught:
        run(input_of(4))
    broken = caught.value
    assert broken.function == "double"
    assert "expected 3, actual 4" in broken.reason
    assert broken.shapes == "float32[4] grad"
    assert "fixed shape" in broken.way_out
    assert all(part in str(broken) for part in (broken.function, broken.reason, broken.shapes, broken.way_out))
    assert broken.exit_code == 4


def test_a_backward_that_was_not_warmed_keeps_the_seal_off(discipline: Discipline) -> None:
    discipline.add("double", double)(input_of(3))
    with pytest.raises(SealBroken, match="in double: its backward was not run before the seal"):
        discipline.seal()


def test_a_backward_first_compiled_after_the_seal_is_refused(discipline: Discipline) -> None:
    run = discipline.add("cold_backward", cold_backward)
    late = run(input_of(3)).sum()
    run.has_run_backward = True  # as if it had been: the seal cannot see through a wrong claim
    discipline.seal()
    with pytest.raises(SealBroken, match="in cold_backward: its backward would be compiled after the seal"):
        late.backward()


def test_a_function_that_was_never_run_keeps_the_seal_off(discipline: Discipline) -> None:
    discipline.add("double", double)
    with pytest.raises(SealBroken, match="in double: it was added but never run"):
        discipline.seal()


def test_two_entries_keep_the_seal_off(discipline: Discipline) -> None:
    run = discipline.add("mean", mean)
    for size in (3, 4):
        run(input_of(size)).backward()
    with pytest.raises(SealBroken, match="in mean: it has 2 compiled entries instead of one"):
        discipline.seal()
    assert discipline.counters().recompiles == 1


def test_the_same_function_added_twice_has_two_code_objects(discipline: Discipline) -> None:
    first, second = (discipline.add(name, mean) for name in ("first", "second"))
    first(input_of(3)).backward()
    second(input_of(4)).backward()
    discipline.seal()
    assert discipline.counters().recompiles == 0
    with pytest.raises(ValueError, match="first exists already"):
        discipline.add("first", mean)


def test_a_graph_break_does_not_compile(discipline: Discipline) -> None:
    def breaking(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(CompileError, match="breaking did not compile"):
        discipline.add("breaking", breaking)(torch.ones(3))


def test_an_error_of_the_function_itself_passes_unchanged(discipline: Discipline) -> None:
    run = discipline.add("double", double)
    run(input_of(3)).sum().backward()
    discipline.seal()
    x = input_of(3)
    y = run(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_code_that_others_compile_after_the_seal_is_noticed(discipline: Discipline) -> None:
    run = discipline.add("mean", mean)
    run(input_of(3)).backward()
    discipline.seal()
    torch.compiler.set_stance("default")  # somebody lifts the stance and compiles on
    torch.compile(double)(torch.ones(5))
    with pytest.raises(SealBroken, match="compiles 1 -> 2"):
        discipline.verify()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_COMPILE_DISABLE", "1"),
        ("TORCHDYNAMO_DISABLE", "1"),
        ("TORCHDYNAMO_SUPPRESS_ERRORS", "1"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCH_COMPILE_OVERRIDE_BACKENDS", "eager"),
    ],
)
def test_switches_of_the_environment_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SwitchRefused, match=f"{name}={value}"):
        Discipline()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (torch._dynamo.config, "suppress_errors", True),
        (torch._dynamo.config, "error_on_nested_fx_trace", False),
        (torch._dynamo.config, "disable", True),
        (torch._inductor.config, "force_disable_caches", True),
    ],
)
def test_switches_of_torch_are_refused(module: Any, name: str, value: bool) -> None:
    with module.patch(**{name: value}), pytest.raises(SwitchRefused, match=f"{name}={value}"):
        refuse_silencers({})


def test_switches_are_read_as_the_calling_thread_sees_them() -> None:
    caught: list[BaseException] = []

    def in_thread() -> None:
        torch._dynamo.config.suppress_errors = True
        try:
            refuse_silencers({})
        except SwitchRefused as error:
            caught.append(error)
        finally:
            torch._dynamo.config.suppress_errors = False

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert len(caught) == 1
    refuse_silencers({})


def test_the_module_stands_alone() -> None:
    """It serves pipelines that are not this trainer's, so it must not bring the trainer along."""
    for source in Path(trainer.compile.__path__[0]).glob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        ours = [module for module in modules if module.split(".")[0] in ("trainer", "opsctl")]
        assert [module for module in ours if not module.startswith("trainer.compile")] == [], source


def test_a_copy_has_its_own_code_and_the_same_defaults_and_closure() -> None:
    factor = 3

    def scaled(x: int, *, by: int = 2) -> int:
        return x * by * factor

    copy = own_code(scaled, "copied")
    assert copy.__code__ is not scaled.__code__
    assert copy(5) == 30
    assert copy.__code__.co_name == copy.__name__ == "copied"
