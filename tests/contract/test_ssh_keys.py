"""Host keys and keys to log in, against a real sshd: what is known, new, changed, revoked, refused."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings
from tests.support.reach import Reach, files, ran, reach, refused, stranger
from tests.support.sshd import Sshd, known_line, make_key, running_sshd
from tests.support.until import until

__all__ = ["files", "reach", "stranger"]
pytestmark = pytest.mark.ssh

# --- host keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server of these tests alone, who close what they open."""
    with running_sshd(tmp_path_factory.mktemp("keys-sshd")) as server:
        yield server


def _logins(sshd: Sshd) -> int:
    """How often somebody tried to log in, with or without success; sshd writes of it when the connection is over."""
    until(lambda: not sshd.sessions())
    return sshd.log.count("Accepted") + sshd.log.count("Failed") + sshd.log.count("authenticating user")


def test_an_unknown_host_is_refused_with_its_fingerprint_before_anything_is_sent(
    reach: Reach, files: Path, sshd: Sshd
) -> None:
    (files / "known_hosts").write_text("")
    before = _logins(sshd)
    error = refused(reach())
    shown = subprocess.run(["ssh-keygen", "-lf", sshd.folder / "host_key.pub"], capture_output=True, text=True).stdout
    assert shown.split()[1] in error.message
    assert f"127.0.0.1 port {sshd.port} is not known" in error.message
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {files}/known_hosts" in error.hint
    assert _logins(sshd) == before
    assert (files / "known_hosts").read_text() == ""


def test_a_new_host_is_recorded_where_that_is_asked_for(reach: Reach, files: Path, sshd: Sshd) -> None:
    (files / "known_hosts").write_text("# mine\n")
    assert ran(reach(host_keys="accept-new"), "echo", "in")[0] == b"in\n"
    assert (files / "known_hosts").read_text() == "# mine\n" + known_line(sshd.folder / "host_key.pub", sshd.port)
    assert ran(reach(), "echo", "strict")[0] == b"strict\n"


def test_a_recorded_name_is_hashed_where_ssh_config_says_so(reach: Reach, files: Path) -> None:
    (files / "known_hosts").unlink()
    (files / "ssh_config").write_text((files / "ssh_config").read_text() + "  HashKnownHosts yes\n")
    ran(reach(host_keys="accept-new"), "true")
    assert (files / "known_hosts").read_text().startswith("|1|")
    assert ran(reach(), "echo", "again")[0] == b"again\n"


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_key_is_refused_whatever_the_rule(
    reach: Reach, files: Path, sshd: Sshd, stranger: Path, host_keys: str
) -> None:
    (files / "known_hosts").write_text(known_line(stranger, sshd.port))
    before = _logins(sshd)
    error = refused(reach(host_keys=host_keys))
    assert "has changed" in error.message
    assert f"{files}/known_hosts:1" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}'" in error.hint
    assert _logins(sshd) == before


def test_a_revoked_key_is_refused(reach: Reach, files: Path, sshd: Sshd) -> None:
    row = known_line(sshd.folder / "host_key.pub", sshd.port)
    (files / "known_hosts").write_text(f"{row}@revoked * {' '.join(row.split()[1:])}\n")
    assert "revoked" in refused(reach(host_keys="accept-new")).message


def test_damaged_and_foreign_rows_are_passed_over(reach: Reach, files: Path, sshd: Sshd) -> None:
    row = known_line(sshd.folder / "host_key.pub", sshd.port)
    name = row.split()[0]
    (files / "known_hosts").write_text(f"{name} ssh-ed25519 !!!\n{name} ssh-none AAAA\n@cert-authority * {name}\n{row}")
    assert ran(reach(), "echo", "in")[0] == b"in\n"


def test_the_known_type_of_key_is_asked_for(files: Path, tmp_path: Path) -> None:
    """A server with several keys shows the one that is known, though another comes first by default."""
    (tmp_path / "server").mkdir()
    settings = [f"HostKey {tmp_path}/server/rsa"]
    make_key(tmp_path / "server" / "rsa", "-t", "rsa")
    with running_sshd(tmp_path / "server", settings=settings) as server:
        (server.folder / "known_hosts").write_text(known_line(server.folder / "rsa.pub", server.port))
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        assert ran(host, "echo", "in")[0] == b"in\n"
        host.close()


# --- keys to log in ------------------------------------------------------------------------------------


def test_a_key_that_the_host_does_not_know_is_named(reach: Reach, files: Path, stranger: Path) -> None:
    (files / "ssh_config").write_text((files / "ssh_config").read_text().replace(f"{files}/key", f"{files}/none"))
    key = stranger.with_suffix("")
    error = refused(reach(key_file=str(key)))
    assert f"{key}: refused" in error.message
    assert "authorized_keys" in error.hint


def test_a_key_with_a_passphrase_is_explained(reach: Reach, files: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", files / "key"], check=True)
    assert f"ssh-add {files}/key" in refused(reach()).message


@contextlib.contextmanager
def _agent(key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = key.parent / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        until(path.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        subprocess.run(["ssh-add", "-q", key], check=True)
        yield
    finally:
        agent.terminate()
        agent.wait()


def _let_the_agent_speak(files: Path) -> None:
    config = (files / "ssh_config").read_text().replace("  IdentityAgent none\n", "")
    (files / "ssh_config").write_text(config)


def test_the_agents_key_opens_what_only_its_public_half_names(
    reach: Reach, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _let_the_agent_speak(files)
    with _agent(files / "key", monkeypatch):
        (files / "key").unlink()
        assert ran(reach(), "echo", "in")[0] == b"in\n"


def test_an_agent_that_hangs_costs_seconds_and_not_the_login(
    reach: Reach, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _let_the_agent_speak(files)
    monkeypatch.setattr("opsctl.target.ssh_identities._AGENT_LIMIT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        assert ran(reach(), "echo", "in")[0] == b"in\n"


def test_a_second_factor_is_told(tmp_path: Path) -> None:
    settings = ["PasswordAuthentication yes", "AuthenticationMethods publickey,password"]
    with running_sshd(tmp_path / "server", settings=settings) as server:
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        assert "second factor" in refused(host).message
