"""An active environment that lends the torch of the tests' own Python: links, nothing is installed."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

FINGERPRINT = "0123456789abcdef"


def lend_torch(home: Path, *, build: str = "lent") -> Path:
    """Make a build of the tests' own virtual environment the active one in a target's home; returns its folder."""
    root = home / "envs" / f"{FINGERPRINT[:12]}-{build}"
    (root / "bin").mkdir(parents=True)
    own = Path(sys.prefix)
    (root / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (root / "pyvenv.cfg").write_text((own / "pyvenv.cfg").read_text())
    (root / "lib").symlink_to(own / "lib")
    record = {
        "name": "lent",
        "fingerprint": FINGERPRINT,
        "build": build,
        "created": 1.0,
        "python": "3",
        "platform": "any",
        "packages": {"torch": importlib.metadata.version("torch")},
    }
    (root / "env.json").write_text(json.dumps(record))
    active = home / "envs" / "active"
    active.unlink(missing_ok=True)
    active.symlink_to(root.name)
    return root
