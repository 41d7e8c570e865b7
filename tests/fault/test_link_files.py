"""Transfers that fail half-way: the old file stays whole, nothing half is left, the error says what happened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.config_file import parse
from opsctl.errors import Disconnected, DiskFull
from opsctl.ops.files import get, put
from opsctl.ops.workspace import Workspace, build_target
from tests.support.proxy import LinkProxy
from tests.support.sshd import Sshd
from tests.support.until import until


def _workspace(folder: Path, host: object) -> Workspace:
    text = f"default_target: t\ntargets: {{t: {{host: {host}, home: {folder}/home, python: {sys.executable}}}}}\n"
    config = parse(text, folder / "opsctl.yaml")
    return Workspace(config, folder, build_target("t", config.targets["t"]))


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Twenty megabytes."""
    (tmp_path / "big").write_bytes(b"\0\1\2\3" * 5_000_000)
    return tmp_path / "big"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with an older `big`."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "big").write_text("old")
    return folder


def _is_as_before(there: Path) -> bool:
    return [path.name for path in there.iterdir()] == ["big"] and (there / "big").read_text() == "old"


@pytest.mark.ssh
@pytest.mark.parametrize("fault", ["cut", "swallow"])
def test_a_link_that_fails_within_a_put_leaves_the_old_file(
    far_sshd: Sshd, proxy: LinkProxy, tmp_path: Path, big: Path, there: Path, fault: str
) -> None:
    workspace = _workspace(tmp_path, far_sshd.settings)
    workspace.client.call("probe")
    with pytest.raises(Disconnected):
        put(workspace, big, str(there), on_progress=lambda _: getattr(proxy, fault)())
    until(lambda: _is_as_before(there))  # the agent hears of it a moment later
    proxy.heal()
    assert put(workspace, big, str(there)).num_bytes == len((there / "big").read_bytes()) == 20_000_000
    workspace.target.host.close()  # type: ignore[attr-defined]  # an SshHost


@pytest.mark.ssh
def test_a_link_that_fails_within_a_get_leaves_the_old_file(
    far_sshd: Sshd, proxy: LinkProxy, tmp_path: Path, big: Path, there: Path
) -> None:
    workspace = _workspace(tmp_path, far_sshd.settings)
    workspace.client.call("probe")
    proxy.cut_after_bytes = 3_000_000
    with pytest.raises(Disconnected):
        get(workspace, str(big), there)
    assert _is_as_before(there)
    assert get(workspace, str(big), there).num_bytes == 20_000_000
    workspace.target.host.close()  # type: ignore[attr-defined]  # an SshHost


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes with an older `big` on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        (disk / "big").write_text("old")
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.root
def test_a_full_disk_leaves_the_old_file_on_either_side(tmp_path: Path, big: Path, small_disk: Path) -> None:
    workspace = _workspace(tmp_path, "local")
    with pytest.raises(DiskFull, match="no space left"):
        put(workspace, big, str(small_disk))
    assert _is_as_before(small_disk)
    with pytest.raises(DiskFull, match="no space left"):
        get(workspace, str(big), small_disk)
    assert _is_as_before(small_disk)


@pytest.mark.root
def test_a_tree_that_does_not_fit_is_not_there_at_all(tmp_path: Path, big: Path, small_disk: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("small")
    big.rename(tmp_path / "tree" / "b")
    with pytest.raises(DiskFull):
        put(_workspace(tmp_path, "local"), tmp_path / "tree", str(small_disk))
    assert _is_as_before(small_disk)
