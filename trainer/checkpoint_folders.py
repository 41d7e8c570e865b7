"""Which checkpoint a run goes on from: the newest whole one, or a named one. It reads no tensors and needs no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trainer.errors import ConfigError

FORMAT = 1


def step_folders(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, newest first."""
    found = [(int(match[1]), path) for path in root.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def flaw_of(folder: Path) -> str | None:
    """Return why a checkpoint cannot be used, None if it is whole."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            return f"format {state['format']}, this trainer reads {FORMAT}"
        for name, size in state["sizes"].items():
            if (folder / name).stat().st_size != size:
                return f"{name} is {(folder / name).stat().st_size} bytes long instead of {size}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def find_checkpoint(root: Path, resume: str) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from and notes on those passed over; raises ConfigError for a bad named one.

    `resume` is `none`, `auto` (the newest whole one under `root`) or a checkpoint's folder.
    """
    if resume == "none":
        return None, []
    if resume != "auto":
        folder = Path(resume)
        if flaw := flaw_of(folder):
            raise ConfigError(f"resume: {folder} is no whole checkpoint: {flaw}")
        return folder, []
    notes: list[str] = []
    for folder in step_folders(root):
        if (flaw := flaw_of(folder)) is None:
            return folder, notes
        notes.append(f"passed over {folder}: {flaw}")
    return None, notes
