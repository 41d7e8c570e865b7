"""Proof that a start was warm: compilers started by any process of this tree, and new binaries in the cache folders.

Torch's counters alone do not prove it: a graph that is found without its binary is built anew, and counted as a hit.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.compile import Counters

TRITON_WORKER = "compile_worker"  # in the command line of the processes in which Inductor compiles Triton kernels
COMPILERS = ("g++", "gcc", "c++", "cc", "clang", "clang++", "nvcc")
BINARY_SUFFIXES = (".so", ".cubin", ".hsaco", ".pyd")


class CompilerCount:
    """While entered, counts compilations started by this process and its children, worker processes included.

    Compilers are found by name on PATH, so a folder of small scripts goes in front of it; each notes the start and then
    becomes the real program. The name, which is part of torch's cache keys, stays the same. What is started by an
    absolute path from within this process is noticed by an audit hook instead.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="compiler-count-"))
        self._log = self._folder / "started.log"
        self._saved: dict[str, str | None] = {}
        self._is_open = False
        self._num_absolute = 0
        self.num_workers = 0
        self._final = 0

    def __enter__(self) -> CompilerCount:
        self._log.touch()
        path = os.environ.get("PATH", os.defpath)
        for name in COMPILERS:
            if shutil.which(name):
                self._write_script(name, name, path)
        self._set("PATH", f"{self._folder}{os.pathsep}{path}")
        if ptxas := _ptxas():
            self._set("TRITON_PTXAS_PATH", str(self._write_script("ptxas", ptxas, path)))
        self._is_open = True
        sys.addaudithook(self._on_audit)  # stays for the life of the process; it only counts while entered
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._final = self.started
        self._is_open = False
        for name, value in self._saved.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def started(self) -> int:
        """Compilations started so far."""
        if not self._is_open:
            return self._final
        return len(self._log.read_text(encoding="utf-8").splitlines()) + self._num_absolute

    def _set(self, name: str, value: str) -> None:
        self._saved[name] = os.environ.get(name)
        os.environ[name] = value

    def _write_script(self, name: str, program: str, path: str) -> Path:
        """Write a script that notes a compilation (a call with an output: not `--version`) and becomes the compiler.

        The compiler is started by the name that the caller used: gcc reports that name, and torch hashes the report.
        """
        script = self._folder / name
        lines = (
            "#!/bin/sh",
            f'case " $* " in *" -o "*|*" -c "*) echo {name} >> {shlex.quote(str(self._log))};; esac',
            f"PATH={shlex.quote(path)}; export PATH",
            f'exec {shlex.quote(program)} "$@"',
        )
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        script.chmod(0o755)
        return script

    def _on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_open or event != "subprocess.Popen":
            return
        words = [os.fsdecode(word) for word in arguments[1]] if not isinstance(arguments[1], str) else [arguments[1]]
        self.num_workers += any(TRITON_WORKER in word for word in words)
        program = Path(words[0]) if words else Path()
        is_ours = program.parent == self._folder
        if program.is_absolute() and program.name in COMPILERS and not is_ours and {"-o", "-c"} & set(words):
            self._num_absolute += 1


def _ptxas() -> str | None:
    """Return Triton's assembler where Triton is installed: it starts it by path, so PATH would not show it."""
    if given := os.environ.get("TRITON_PTXAS_PATH"):
        return given
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return str(path) if path.exists() else None


def cache_folders() -> list[Path]:
    """Return the folders in which torch and Triton keep compiled code, as this process would use them."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folders = [Path(cache_dir())]
    if triton := os.environ.get("TRITON_CACHE_DIR"):
        folders.append(Path(triton))
    return folders


def binaries_in(folders: list[Path]) -> set[Path]:
    """Return the compiled binaries below `folders`."""
    return {path for folder in folders for path in folder.rglob("*") if path.suffix in BINARY_SUFFIXES}


@dataclass(frozen=True)
class Warmth:
    """How warm a start was; `warm` is true only if nothing at all had to be compiled.

    `worker_starts` are the processes that wait to compile Triton kernels; they start whether or not there is work.
    """

    counters: Counters
    compiler_starts: int
    new_binaries: int
    seconds: float
    worker_starts: int = 0

    @property
    def is_warm(self) -> bool:
        """True if no graph was missing or passed over and no compiler was started."""
        c = self.counters
        return not (c.fx_misses or c.fx_bypasses or c.aot_misses or c.aot_bypasses or self.compiler_starts)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON fields."""
        figures = {key: value for key, value in asdict(self).items() if key != "counters"}
        return {"warm": self.is_warm, **asdict(self.counters), **figures}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Warmth:
        """Return what `as_dict` gave."""
        counters = Counters(**{one.name: raw[one.name] for one in fields(Counters)})
        own = {one.name: raw[one.name] for one in fields(cls) if one.name != "counters"}
        return cls(counters=counters, **own)


def total(warmths: Sequence[Warmth]) -> Warmth:
    """Return all counts added up, and the seconds of the slowest."""
    counters = Counters(**{one.name: sum(getattr(w.counters, one.name) for w in warmths) for one in fields(Counters)})
    counts = {name: sum(getattr(w, name) for w in warmths) for name in _COUNTS}
    return Warmth(counters=counters, seconds=max(w.seconds for w in warmths), **counts)


_COUNTS = ("compiler_starts", "new_binaries", "worker_starts")
