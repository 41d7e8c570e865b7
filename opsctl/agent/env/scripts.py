"""The programs of this package that run inside an environment's own Python, as text. Reads only what ships with it."""

from __future__ import annotations

import pkgutil


def program(name: str) -> str:
    """The program in NAME.py of this package, for `python -c`."""
    data = pkgutil.get_data("opsctl.agent.env", f"{name}.py")
    assert data is not None, "the program is packed with the agent"
    return data.decode()
