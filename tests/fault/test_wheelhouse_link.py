"""Wheels over a link that is cut in the middle: the user hears of it, and what came over does not come again."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from opsctl.config_file import parse
from opsctl.ops.wheelhouse import bring
from opsctl.ops.workspace import Workspace, build_target
from opsctl.records.env import Wheel
from tests.support.proxy import LinkProxy
from tests.support.sshd import Sshd


@pytest.mark.ssh
def test_a_cut_link_is_told_and_taken_up_again(far_sshd: Sshd, proxy: LinkProxy, tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = f"default_target: t\ntargets: {{t: {{host: {far_sshd.settings}, home: {home}, python: {sys.executable}}}}}\n"
    config = parse(text, tmp_path / "opsctl.yaml")
    workspace = Workspace(config, tmp_path, build_target("t", config.targets["t"]))
    workspace.client.call("probe")
    data = os.urandom(12_000_000)
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(data)
    wheel = Wheel("a-1-py3-none-any.whl", hashlib.sha256(data).hexdigest(), len(data))
    told: list[tuple[str, float | None]] = []

    def cut_once(message: dict[str, object]) -> None:
        done = message.get("done")
        told.append((str(message["text"]), done if isinstance(done, (int, float)) else None))
        if len(told) == 1:
            proxy.cut()

    found = bring(workspace, tmp_path, (wheel,), on_progress=cut_once)
    assert (Path(found.find_links[0]) / wheel.name).read_bytes() == data
    assert "the link was lost; what came over is kept, reconnecting" in [text for text, _ in told]
    offsets = [done for _, done in told if done is not None]
    assert offsets == sorted(offsets), "what had come over did not come again"
    workspace.target.host.close()  # type: ignore[attr-defined]  # an SshHost
