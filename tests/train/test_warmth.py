"""Counting compilers for real, binaries, and what counts as warm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.cache_key import cache_key
from trainer.compile import Counters
from trainer.warmth import CompilerCount, Warmth, binaries_in, cache_folders

GCC = shutil.which("g++")
needs_compiler = pytest.mark.skipif(GCC is None, reason="no g++ on PATH")


def build(compiler: str, folder: Path) -> list[str]:
    source = folder / "x.cpp"
    source.write_text("int x() { return 1; }\n", encoding="utf-8")
    return [compiler, "-shared", "-fPIC", str(source), "-o", str(folder / "x.so")]


@needs_compiler
def test_compilations_of_this_process_and_of_its_children_are_counted(tmp_path: Path) -> None:
    with CompilerCount() as compilers:
        subprocess.run(build("g++", tmp_path), check=True)
        assert compilers.started == 1
        script = f"import subprocess; subprocess.run({build('g++', tmp_path)!r}, check=True)"
        subprocess.run([sys.executable, "-c", script], check=True)
        assert compilers.started == 2
    assert compilers.started == 2
    assert binaries_in([tmp_path]) == {tmp_path / "x.so"}


@needs_compiler
def test_an_absolute_path_is_noticed_once(tmp_path: Path) -> None:
    assert GCC is not None
    with CompilerCount() as compilers:
        subprocess.run(build(GCC, tmp_path), check=True)
        assert compilers.started == 1


@needs_compiler
def test_a_compiler_reports_the_same_with_and_without_the_count() -> None:
    """torch hashes this report: were it another, what is prewarmed here would be compiled again by the run."""

    def report() -> str:
        return subprocess.run(["g++", "-v"], check=True, capture_output=True, text=True).stderr

    with CompilerCount():
        counted = report()
    assert counted == report()


@needs_compiler
def test_asking_a_compiler_for_its_version_is_no_compilation() -> None:
    with CompilerCount() as compilers:
        subprocess.run(["g++", "--version"], check=True, capture_output=True)
        assert compilers.started == 0


def test_nothing_of_the_count_stays_behind() -> None:
    before = dict(os.environ)
    with CompilerCount():
        folder = Path(os.environ["PATH"].split(os.pathsep)[0])
        assert folder.exists()
    assert dict(os.environ) == before
    assert not folder.exists()


def test_only_a_start_without_misses_bypasses_and_compilers_is_warm() -> None:
    warm = Warmth(Counters(compiles=3, fx_hits=5, aot_hits=3), compiler_starts=0, new_binaries=0, seconds=1.0)
    assert warm.is_warm
    for name in ("fx_misses", "fx_bypasses", "aot_misses", "aot_bypasses"):
        assert not replace(warm, counters=replace(warm.counters, **{name: 1})).is_warm
    assert not replace(warm, compiler_starts=1).is_warm
    assert warm.as_dict()["warm"] is True
    assert warm.as_dict()["fx_hits"] == 5


def test_cache_folders_are_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "a"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "b"))
    assert cache_folders() == [tmp_path / "a", tmp_path / "b"]


def test_the_cache_key_is_stable_and_follows_what_torch_picks_by(monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache_key()
    assert key == cache_key()
    assert set(key) == {"key", "torch", "torch_git", "triton", "cuda", "gpus", "python_abi", "cpu_isa"}
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert cache_key()["key"] != key["key"]
