"""Snapshots over a link that is cut in the middle: the transfer goes on where it stopped, and arrives whole."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.live import content_digest
from opsctl.config_file import parse
from opsctl.errors import DiskFull
from opsctl.ops.cache_exchange import pull, push
from opsctl.ops.workspace import Workspace, build_target
from tests.support.proxy import LinkProxy
from tests.support.sshd import Sshd

KEY = {"gpus": "cpu", "cpu_isa": "any"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A snapshot of twenty megabytes that nothing compresses."""
    data = os.urandom(20_000_000)
    files = {"inductor/x.so": hashlib.sha256(data).hexdigest()}
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor/x.so").write_bytes(data)
    name = f"20260101-{CacheKey(KEY).digest[:8]}-{content_digest(files)[:12]}"
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "inductor/x.so", "inductor/x.so")
    path = tmp_path / f"{name}.tar.zst"
    subprocess.run(["zstd", "-q", tmp_path / "a.tar", "-o", path], check=True)
    record = {
        "snapshot_id": name,
        "created": 1.0,
        "key": KEY,
        "num_files": 1,
        "size_mib": 19.1,
        "archive_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "files": files,
    }
    path.with_name(f"{name}.json").write_text(json.dumps(record))
    return path


def _workspace(folder: Path, home: Path, host: object) -> Workspace:
    text = f"default_target: t\ntargets: {{t: {{host: {host}, home: {home}, python: {sys.executable}}}}}\n"
    config = parse(text, folder / "opsctl.yaml")
    return Workspace(config, folder, build_target("t", config.targets["t"]))


@pytest.mark.ssh
def test_a_cut_push_and_a_cut_pull_go_on_where_they_stopped(
    far_sshd: Sshd, proxy: LinkProxy, tmp_path: Path, archive: Path
) -> None:
    home = tmp_path / "home"
    workspace = _workspace(tmp_path, home, far_sshd.settings)
    workspace.client.call("probe")
    offsets: list[float] = []

    def cut_thrice(message: dict[str, object]) -> None:
        done = message.get("done")
        if message["text"] == "pushing" and isinstance(done, (int, float)):
            offsets.append(done)
            if len(offsets) <= 3:
                proxy.cut()

    links = proxy.num_links
    pushed = push(workspace, str(archive), trust=True, on_progress=cut_thrice)
    assert Path(pushed.archive).read_bytes() == archive.read_bytes()
    assert proxy.num_links >= links + 3, "the link was cut for real"
    assert offsets == sorted(set(offsets)), "what had come over did not come again"
    assert not list((home / "cache/snapshots").glob(".incoming-*"))
    proxy.cut_after_bytes = 8_000_000
    links = proxy.num_links
    pulled = pull(workspace, pushed.snapshot_id, tmp_path / "pulled")
    assert proxy.num_links == links + 1
    assert Path(pulled.archive).read_bytes() == archive.read_bytes()
    assert sorted(path.suffix for path in (tmp_path / "pulled").iterdir()) == [".json", ".zst"]
    workspace.target.host.close()  # type: ignore[attr-defined]  # an SshHost


@pytest.mark.root
def test_a_push_or_a_pull_without_room_leaves_nothing_half(tmp_path: Path, archive: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", small], check=True)
    try:
        with pytest.raises(DiskFull, match="MiB are free"):
            push(_workspace(tmp_path, small / "home", "local"), str(archive), trust=True)
        assert list((small / "home/cache/snapshots").iterdir()) == []
        roomy = _workspace(tmp_path, tmp_path / "home", "local")
        push(roomy, str(archive), trust=True)
        with pytest.raises(DiskFull, match="no space left on this machine"):
            pull(roomy, archive.name[:20], small / "pulled")
        assert [path.suffix for path in (small / "pulled").iterdir()] == [".part"], "no archive that is not whole"
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
