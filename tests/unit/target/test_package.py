"""The agent is one file that any supported Python runs, and the same sources give the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from opsctl.target.package import _members, agent_package, build


def test_the_same_sources_give_the_same_bytes() -> None:
    members = list(_members())
    assert build(members) == build(members)


def test_it_starts_alone_and_holds_libtmux(tmp_path: Path) -> None:
    path = tmp_path / "agent.pyz"
    path.write_bytes(agent_package().data)
    usage = subprocess.run([sys.executable, "-I", path, "a", "b"], capture_output=True, text=True)
    assert usage.returncode == 2
    assert "usage:" in usage.stderr
    script = f"import sys; sys.path.insert(0, {str(path)!r}); import libtmux; print(libtmux.__file__)"
    found = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert str(path) in found.stdout


def test_an_old_python_is_told_apart(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "agent.pyz"
    path.write_bytes(agent_package().data)
    source = zipfile.ZipFile(path).read("__main__.py").decode()
    pretend = "import sys\nsys.version_info = (3, 6, 9)\n" + source
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert done.returncode == 69
    assert "3.10 or newer on the target, found 3.6" in done.stderr
