"""Wheels over a link that is cut in the middle: the user hears of it, and what came over does not come again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.config_file import parse
from opsctl.formats.frames import frame
from opsctl.ops.local_file import pieces
from opsctl.ops.wheelhouse import bring
from opsctl.ops.workspace import Workspace, build_target
from opsctl.records.call import PROTOCOL, to_json
from opsctl.records.env import Wheel
from tests.support.proxy import LinkProxy
from tests.support.sshd import Sshd

DATA = os.urandom(12_000_000)
WHEEL = Wheel("a-1-py3-none-any.whl", hashlib.sha256(DATA).hexdigest(), len(DATA))
AGENT = "from opsctl.agent.main import main; raise SystemExit(main(['put-wheel']))"


@pytest.mark.ssh
def test_a_cut_link_is_told_and_taken_up_again(far_sshd: Sshd, proxy: LinkProxy, tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = f"default_target: t\ntargets: {{t: {{host: {far_sshd.settings}, home: {home}, python: {sys.executable}}}}}\n"
    config = parse(text, tmp_path / "opsctl.yaml")
    workspace = Workspace(config, tmp_path, build_target("t", config.targets["t"]))
    workspace.client.call("probe")
    (tmp_path / WHEEL.name).write_bytes(DATA)
    told: list[tuple[str, float | None]] = []

    def cut_once(message: dict[str, object]) -> None:
        done = message.get("done")
        told.append((str(message["text"]), done if isinstance(done, (int, float)) else None))
        if len(told) == 1:
            proxy.cut()

    found = bring(workspace, tmp_path, (WHEEL,), on_progress=cut_once)
    assert (Path(found.find_links[0]) / WHEEL.name).read_bytes() == DATA
    assert "the link was lost; what came over is kept, reconnecting" in [text for text, _ in told]
    offsets = [done for _, done in told if done is not None]
    assert offsets == sorted(offsets), "what had come over did not come again"
    workspace.target.host.close()  # type: ignore[attr-defined]  # an SshHost


def test_a_wheel_that_another_client_brought_meanwhile_is_taken(tmp_path: Path) -> None:
    text = f"default_target: t\ntargets: {{t: {{home: {tmp_path / 'home'}, python: {sys.executable}}}}}\n"
    config = parse(text, tmp_path / "opsctl.yaml")
    client = Workspace(config, tmp_path, build_target("t", config.targets["t"])).client
    (tmp_path / WHEEL.name).write_bytes(DATA)
    wheel = to_json(WHEEL)
    client.call("wheels-wanted", {"wheels": [wheel]})
    for start in (0, 5_000_000):
        uploads = pieces(tmp_path / WHEEL.name, start)
        path = client.call("put-wheel", {"wheel": wheel, "start": start}, uploads=uploads)["path"]
        assert Path(path).read_bytes() == DATA


def test_what_came_stays_when_nobody_hears_the_agent_any_more(tmp_path: Path) -> None:
    (tmp_path / "home" / "wheelhouse").mkdir(parents=True)
    (tmp_path / "home" / "locks").mkdir()
    request = {"wheel": to_json(WHEEL), "start": 0}
    head = {"protocol": PROTOCOL, "home": str(tmp_path / "home"), "operator": "a", "request": request}
    pipe = subprocess.PIPE
    with subprocess.Popen((sys.executable, "-c", AGENT), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(frame(head))
        agent.stdin.flush()
        assert any(b'"hello"' in line for line in agent.stdout), "it listens"
        agent.stdout.close()
        agent.stdin.write(frame({"type": "data"}, DATA[:1000]))
        agent.stdin.flush()
        agent.wait(60)
    part = tmp_path / "home" / "wheelhouse" / f".{WHEEL.sha256}.part"
    assert part.read_bytes() == DATA[:1000]
