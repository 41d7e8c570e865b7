"""An active environment that lends the torch of the tests' own Python: links, nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path


def lend_torch(home: Path) -> Path:
    """Make an environment of the tests' own virtual environment active in a target's home; returns its folder."""
    root = home / "envs" / "0123456789ab-lent"
    (root / "bin").mkdir(parents=True)
    own = Path(sys.prefix)
    (root / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (root / "pyvenv.cfg").write_text((own / "pyvenv.cfg").read_text())
    (root / "lib").symlink_to(own / "lib")
    (home / "envs" / "active").symlink_to(root.name)
    return root
