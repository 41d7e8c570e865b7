"""The files that a diagnosis is made from, as anyone may have them: read and checked, not judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from opsctl.config import nearest
from opsctl.detect import lines, smi
from opsctl.errors import ConfigError, UsageError

PANE_COLUMNS = 80
_CHUNK_BYTES = 1 << 20
_GUESS_BYTES = 1 << 20
_WIDTHS = (80, 100, 120, 132, 160, 200, 240)
_LIFE = ("alive", "gone")
# what a context may say, and as what
_NUMBERS = frozenset({
    "pid", "exit_code", "since_last_line_s", "since_last_step_s", "typical_step_s", "expected_step_s",
    "cpu_busy_cores", "world_size", "disk_used_pct", "nccl_timeout_s", "nvidia_smi_rc", "nvidia_smi_seconds",
})  # fmt: skip
_FLAGS = frozenset({"warmup_done", "compile_expected", "cudagraphs_expected", "nvidia_smi_timeout"})
_LIVES = frozenset({"proc", "launcher", "ranks", "rank0"})
_WORDS = frozenset({"pane_cmd", "phase", "csv_columns"})
_LISTS = frozenset({"gpus", "gpu_bus_ids"})
KEYS = _NUMBERS | _FLAGS | _LIVES | _WORDS | _LISTS

Cut = Callable[[bytes], Iterable[bytes]]
OnRead = Callable[[int, int], None]  # told how many bytes of all were read; begins anew where a log is read twice


@dataclass(frozen=True)
class Material:
    """What there is to judge; absent parts are None. `context` has the keys of the watch cases' context."""

    log: bytes | Path | None = None  # a path is read piece by piece, however large the file is
    columns: int = 0  # width of the pane that cut the log's rows; 0 = none did
    smi_csv: str | None = None
    smi_text: str | None = None
    dmesg: str | None = None
    context: dict[str, Any] = field(default_factory=dict)
    on_read: OnRead = field(default=lambda done, total: None, compare=False)

    def pieces(self, cut: Cut | None = None) -> Iterator[bytes]:
        """The log in pieces; `cut` says into which."""
        if isinstance(self.log, Path):
            size = self.log.stat().st_size
            with self.log.open("rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    yield from cut(data) if cut else (data,)
                    self.on_read(file.tell(), size)
        elif self.log is not None:
            yield from cut(self.log) if cut else (self.log,)


def read_case(folder: Path) -> Material:
    """The material in a case's folder; raises ConfigError for one that cannot be read."""
    case = _mapping(folder / "case.yaml")
    log = folder / "log.txt"
    form = str(case.get("log_form", "joined"))
    return Material(
        log if log.exists() else None,
        PANE_COLUMNS if form == "pane80" or form.startswith("tail") else 0,
        _evidence(folder / "smi.csv", ConfigError),
        _evidence(folder / "smi.txt", ConfigError),
        _evidence(folder / "dmesg.txt", ConfigError),
        checked(case.get("context") or {}, folder / "case.yaml", is_strict=False),
    )


def read_files(
    log: Path | None = None, *, smi: Path | None = None, dmesg: Path | None = None, context: Path | None = None
) -> Material:
    """The material in single files; their forms are found out. Raises UsageError and ConfigError, naming the file."""
    for path in filter(None, (log, smi, dmesg, context)):
        _require(path)
    answer = _evidence(smi)
    is_csv = answer is not None and bool(smi_rows(answer))
    known = _mapping(context) if context else {}
    return Material(
        log,
        guess_columns(_begin(log)) if log else 0,
        answer if is_csv else None,
        None if is_csv else answer,
        _evidence(dmesg),
        checked(known.get("context", known), context, is_strict=True) if context else {},
    )


def smi_rows(text: str) -> list[smi.Poll]:
    """The polls in a text, if it is nvidia-smi's CSV at all."""
    return [poll for poll in smi.polls(text) if poll.gpus]


def guess_columns(log: bytes) -> int:
    """The width at which rows were cut hard, 0 where they were not: many rows of exactly the greatest width."""
    rows = log.decode("utf-8", "replace").splitlines()
    if any("\r" in row or "\x1b" in row for row in rows[:200]) or len(rows) < 4:
        return 0
    widths = Counter(lines.display_width(row) for row in rows)
    widest = max(widths)
    return widest if widths[widest] >= 2 and widest in _WIDTHS else 0


# --- what a context may hold ------------------------------------------------------------------------


def checked(context: Any, path: Path, *, is_strict: bool) -> dict[str, Any]:
    """The context itself; raises ConfigError for a value of the wrong kind and, if strict, for an unknown key."""
    if not isinstance(context, dict):
        raise ConfigError(f"{path}: the context is no mapping of keys to values")
    for key, value in context.items():
        if key not in KEYS and is_strict:
            raise ConfigError(f"{path}: {key!r} is no key of a context", hint=nearest(str(key), sorted(KEYS)))
        wanted = _wanted(key, value)
        if wanted:
            raise ConfigError(f"{path}: {key} is {value!r}, which is not {wanted}")
    return context


def _wanted(key: Any, value: Any) -> str:
    """What should stand there instead of `value`; "" where it may stand."""
    if value is None:
        return ""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _NUMBERS:
        return "" if is_number else "a number"
    if key in _FLAGS:
        return "" if isinstance(value, bool) else "true or false"
    if key in _LIVES:
        return "" if value in _LIFE else "alive or gone"
    if key in _LISTS:
        return "" if isinstance(value, list) else "a list"
    return "" if key not in _WORDS or isinstance(value, str) else "text"


# --- files -----------------------------------------------------------------------------------------


def _require(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, a file is needed there")


def _begin(path: Path) -> bytes:
    """The first mebibyte: enough to find out its form."""
    try:
        with path.open("rb") as file:
            return file.read(_GUESS_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _text(path: Path | None) -> str | None:
    if path is None or not path.exists():
        return None
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _evidence(path: Path | None, error: type[UsageError | ConfigError] = UsageError) -> str | None:
    """The text of a file that must be text, since nothing else can be understood in it."""
    text = _text(path)
    if text is not None and ("\0" in text or text.count("\ufffd") > len(text) / 10):
        raise error(f"{path} is no text", hint="it must hold what nvidia-smi or dmesg printed")
    return text


def _mapping(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no mapping")
    return value
