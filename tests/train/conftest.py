"""Fixtures of the trainer's tests."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# No module loaded before torch may hold the name `torch`: torch.contiguous_format is pickled into cache keys under the
# first module that has it, and what a test compiles would then not be what a process of its own had compiled.
from torch import compiler, manual_seed, set_num_threads

from tests.support import recipes
from tests.train.commands import run


@pytest.fixture(autouse=True)
def _torch_state() -> Iterator[None]:
    """Leave no stance behind for the next test, start from a seed, and use one thread: two spin on a busy machine."""
    manual_seed(0)
    set_num_threads(1)
    yield
    compiler.set_stance("default")


@pytest.fixture
def flex_uncompiled() -> Iterator[None]:
    """Allow flex attention outside a compiled function, which tests of its numbers need and training refuses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile", category=UserWarning)
        yield


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compile cache for the whole test run: torch probes the CPU with a compiler once a cache, for seconds."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def inductor_cache(inductor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in the environment of this process and of those it starts."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_folder))
    return inductor_folder


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of a one-layer drafter for a tiny verifier; what it prepares is shared by all tests."""
    folder = tmp_path_factory.mktemp("tiny")
    path = folder / "tiny.yaml"
    path.write_text(recipes.tiny_recipe(data_dir=folder / "data"), encoding="utf-8")
    return path


@dataclass(frozen=True)
class ColdPrewarm:
    """A cache that one prewarm filled: its folder, the prewarm's report, and the binaries that it left there."""

    cache: Path
    report: Any
    binaries: frozenset[Path]


@pytest.fixture(scope="session")
def cold_prewarm(tiny_recipe: Path, inductor_folder: Path) -> ColdPrewarm:
    """The cache of the test run after one prewarm of the tiny recipe, by two ranks."""
    before = frozenset(inductor_folder.rglob("*.so"))
    report = json.loads(run("prewarm", str(tiny_recipe), "--nproc", "2", "--json", cache=inductor_folder).stdout)
    return ColdPrewarm(inductor_folder, report, frozenset(inductor_folder.rglob("*.so")) - before)
