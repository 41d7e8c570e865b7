"""uv on the target: the argv of each call that a build makes, and its run, which ends with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from opsctl.errors import CommandFailed
from opsctl.formats.sources import failure, masked, origin_in, uv_environment

Argv = tuple[str, ...]

# whichever index has the file: the lock's hash says that it is the right one
_STRATEGY = ("--index-strategy", "unsafe-best-match")
_LOOK_LIMIT_S = 60.0


# becomes the program that its words name, and is killed when our process ends, however that ends
_TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Uv:
    """The uv program with what each of its calls gets."""

    program: Path
    python: Path  # of the environment that is built
    say: Callable[[str], None]  # gets each row of its output
    link_mode: str = "copy"
    sources: dict[str, str] = field(default_factory=dict)  # variables that say where files come from

    def sync(self, lock: Path) -> None:
        """Install exactly what the lock names; raises an error that names the package."""
        words = ("pip", "sync", "--require-hashes", "--only-binary", ":all:", str(lock))
        self._run(words, *self._common(), lock=lock)

    def reinstall(self, lock: Path, names: tuple[str, ...]) -> None:
        """Install these distributions anew from freshly fetched files, past uv's cache."""
        again = tuple(word for name in names for word in ("--reinstall-package", name))
        words = ("pip", "sync", "--no-cache", "--require-hashes", "--only-binary", ":all:", *again, str(lock))
        copying = replace(self, link_mode="copy")  # its cache of the moment lies elsewhere
        self._run(words, *copying._common(), lock=lock)

    def venv(self, interpreter: str, folder: Path) -> None:
        """Make an empty virtual environment in a folder that is there and empty."""
        self._run(("venv", "--no-project", "--allow-existing", "--python", interpreter, "--no-python-downloads",
                   str(folder)))  # fmt: skip

    def look_up(self, lock: Path, interpreter: str = "") -> str:
        """What the index says of the locked files, as a pylock.toml; "" where it cannot be asked."""
        words = ("pip", "compile", str(lock), "--no-deps", "--format", "pylock.toml", "--no-header", "--quiet")
        argv = (str(self.program), *words, "--python", interpreter or str(self.python), *_STRATEGY)
        try:
            done = subprocess.run(
                argv, env=self._environment(), capture_output=True, text=True, timeout=_LOOK_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def bring_python(self, version: str, folder: Path) -> None:
        """Unpack this Python below `folder`, from the mirror that the sources name; uv knows its hash."""
        places = ("--install-dir", str(folder), "--no-bin")
        self._run(("python", "install", version, *places))

    def cache_folder(self) -> Path:
        """Where uv keeps what it unpacked; raises CommandFailed where uv cannot tell."""
        done = subprocess.run(
            (str(self.program), "cache", "dir"), env=self._environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not done.stdout.strip():
            raise CommandFailed(f"uv cannot tell where its cache is: {done.stderr.strip()[-500:]}")
        return Path(done.stdout.strip())

    def _environment(self) -> dict[str, str]:
        return uv_environment(self.sources, dict(os.environ))

    def _common(self) -> Argv:
        return ("--python", str(self.python), "--link-mode", self.link_mode, *_STRATEGY)

    def _run(self, words: Argv, *options: str, lock: Path | None = None) -> None:
        tie = (sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()))
        argv = (*tie, str(self.program), *words, *options)
        child = subprocess.Popen(
            argv,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        rows: list[str] = []
        assert child.stdout is not None
        for row in child.stdout:
            shown = masked(row.rstrip())
            rows.append(shown)
            self.say(shown)
        if child.wait() != 0:
            raise failure(
                "\n".join(rows),
                child.returncode,
                doing=f"running uv {words[0]} {words[1]}",
                origin=lambda name: origin_in(self.look_up(lock), name) if lock else "",
            )
