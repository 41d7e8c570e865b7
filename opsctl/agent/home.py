"""Where things lie on the target's disk (DESIGN: state). Names paths; only `ensure` touches the disk."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.files import folder_mode, is_shared

_GROUP_UMASK = 0o007  # what we and the jobs make in a shared home is the group's too, and nobody else's


@dataclass(frozen=True)
class Home:
    """The folder that holds all of opsctl's state on one target."""

    root: Path

    @classmethod
    def at(cls, text: str) -> Home:
        """The home that `text` names; a leading ~ is the target user's own home."""
        return cls(Path(text).expanduser().absolute())

    @property
    def envs(self) -> Path:
        return self.root / "envs"

    @property
    def active_env(self) -> Path:
        return self.envs / "active"

    @property
    def adopted(self) -> Path:
        return self.root / "adopted"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def live_caches(self) -> Path:
        return self.root / "cache" / "live"

    @property
    def snapshots(self) -> Path:
        return self.root / "cache" / "snapshots"

    @property
    def known_manifests(self) -> Path:
        """Which snapshots this target made or was told to trust."""
        return self.root / "cache" / "known.json"

    @property
    def pythons(self) -> Path:
        """Interpreters that uv brought for sets whose Python the target lacks."""
        return self.root / "pythons"

    @property
    def wheelhouse(self) -> Path:
        """Wheels that the operator's side brought for a build."""
        return self.root / "wheelhouse"

    @property
    def bytecode(self) -> Path:
        """What environments' sources were compiled to, for the next build."""
        return self.root / "cache" / "bytecode"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    def run(self, run_id: str) -> RunPaths:
        """The files of one run."""
        return RunPaths(self.runs / run_id)

    def ensure(self) -> None:
        """Make the folders that are missing; the root itself only its owner, or its group, may enter."""
        is_new = not self.runs.exists()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new:
            self._close()
        for folder in (self.envs, self.code, self.runs, self.live_caches, self.snapshots, self.locks, self.data):
            folder.mkdir(mode=folder_mode(self.root), parents=True, exist_ok=True)

    def _close(self) -> None:
        """Shut others out of a root that was there, as a mounted volume is; one that a group may write is shared."""
        mode = self.root.stat().st_mode & 0o7777
        with contextlib.suppress(PermissionError):  # another user's folder: `doctor` says so
            self.root.chmod(mode & ~0o007 if is_shared(self.root) else 0o700)

    def share(self) -> None:
        """Let the group of a shared home have what this process and its children make; a private one is left alone."""
        if self.root.is_dir() and is_shared(self.root):
            os.umask(_GROUP_UMASK)


@dataclass(frozen=True)
class RunPaths:
    """The files of one run; its folder is the job's working directory."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "run.json"

    @property
    def socket(self) -> Path:
        return self.folder / "tmux.sock"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def log_index(self) -> Path:
        return self.folder / "train.log.idx"

    @property
    def telemetry(self) -> Path:
        return self.folder / "telemetry.jsonl"

    @property
    def findings(self) -> Path:
        return self.folder / "findings.jsonl"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def verdict(self) -> Path:
        return self.folder / "verdict.json"

    @property
    def old_telemetry(self) -> Path:
        """Aggregates of what left `telemetry`, whose rows reach back 15 to 20 minutes."""
        return self.folder / "telemetry.old.jsonl"

    @property
    def secrets(self) -> Path:
        """A FIFO that lives until the recorder has read it once."""
        return self.folder / "secrets.fifo"

    @property
    def stop_request(self) -> Path:
        return self.folder / "stop.json"

    @property
    def recorder_log(self) -> Path:
        """What the recorder has to say about itself; absent when all is well."""
        return self.folder / "recorder.log"

    @property
    def error(self) -> Path:
        return self.folder / "error.json"

    @property
    def exit(self) -> Path:
        return self.folder / "exit.json"
