"""Fixtures of the trainer's tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_state() -> Iterator[None]:
    """Leave no compiled code, stance or seed behind for the next test."""
    torch.manual_seed(0)
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def flex_uncompiled() -> Iterator[None]:
    """Allow flex attention outside a compiled function, which tests of its numbers need and training refuses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile", category=UserWarning)
        yield


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compile cache for the whole test run: torch tests the CPU with a compiler once a cache, which takes seconds."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def inductor_cache(inductor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in the environment of this process and of those it starts."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_folder))
    return inductor_folder
