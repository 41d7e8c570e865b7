"""Which host keys are known, and what happens with one that is not: refused, or recorded where that is asked for.

Fabric's own policy accepts every key; this one replaces it. known_hosts is read by `ssh-keygen -F`, which knows
hashed names, patterns and markers.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from opsctl.errors import MissingTool, Unreachable
from opsctl.target.ssh_endpoint import Endpoint

_ASK_LIMIT_S = 30.0
_AUTHORITY, _REVOKED = "@cert-authority", "@revoked"


@dataclass(frozen=True)
class KnownKeys:
    """The keys that known_hosts has for one host."""

    valid: tuple[paramiko.PKey, ...] = ()
    revoked: tuple[paramiko.PKey, ...] = ()
    authorities: int = 0  # rows that know the host by the authority that signed its key
    places: dict[str, str] = field(default_factory=dict)  # type of key -> file and line


def parse_found(text: str, file: str) -> KnownKeys:
    """The keys in what `ssh-keygen -F NAME -f FILE` prints: a comment with the line's number before each row."""
    valid: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    authorities = 0
    places: dict[str, str] = {}
    place = file
    for row in text.splitlines():
        if row.startswith("# Host "):
            place = f"{file}:{row.partition(' found: line ')[2].split(' ')[0]}"
            continue
        marker, rest = row.split(" ", 1) if row.startswith("@") else ("", row)
        if marker == _AUTHORITY:
            authorities += 1
        elif key := _key_in(rest):
            (revoked if marker == _REVOKED else valid).append(key)
            places.setdefault(key.get_name(), place)
    return KnownKeys(tuple(key for key in valid if key not in revoked), tuple(revoked), authorities, places)


def _key_in(row: str) -> paramiko.PKey | None:
    """The key of a row; None where it is damaged or of a type that we cannot use: as good as not known."""
    try:
        entry = HostKeyEntry.from_line(row)
    except (InvalidHostKey, paramiko.SSHException):
        return None
    return entry.key if entry else None


def _look_up(name: str, file: str) -> KnownKeys:
    argv = ("ssh-keygen", "-F", name, "-f", file)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_LIMIT_S)
    except FileNotFoundError:
        raise MissingTool("no `ssh-keygen` on this machine", hint="install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"`ssh-keygen` does not read {file}", hint="look at the disk that it lies on") from None
    return parse_found(done.stdout, file)


def known_keys(endpoint: Endpoint) -> KnownKeys:
    """What the known_hosts files of this endpoint say about it."""
    found = [_look_up(endpoint.host_key_name, file) for file in endpoint.known_hosts if Path(file).is_file()]
    return KnownKeys(
        tuple(key for one in found for key in one.valid),
        tuple(key for one in found for key in one.revoked),
        sum(one.authorities for one in found),
        {kind: place for one in reversed(found) for kind, place in one.places.items()},
    )


def fingerprint(key: paramiko.PKey) -> str:
    """A host key as people compare it: its type and fingerprint."""
    return f"{key.get_name()} {key.fingerprint}"


def algorithms(key: paramiko.PKey) -> tuple[str, ...]:
    """The signature algorithms that a host key of this type can be asked for with."""
    name: str = key.get_name()
    return ("rsa-sha2-512", "rsa-sha2-256") if name == "ssh-rsa" else (name,)


class HostKeyRule(paramiko.MissingHostKeyPolicy):
    """Asked by paramiko about a key that is not among the known ones, before anything else is sent."""

    def __init__(self, endpoint: Endpoint, known: KnownKeys, *, accepts_new: bool) -> None:
        self._endpoint = endpoint
        self._known = known
        self._accepts_new = accepts_new

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Record the key or raise Unreachable."""
        if key in self._known.revoked:
            raise Unreachable(
                f"the host key of {self._endpoint.label} is revoked: {fingerprint(key)}",
                hint=f"somebody else may hold this key; see {self._known.places.get(key.get_name(), 'known_hosts')}",
            )
        if not self._accepts_new:
            raise self._unknown(key)
        record(self._endpoint, key)

    def _unknown(self, key: paramiko.PKey) -> Unreachable:
        endpoint = self._endpoint
        note = " (only its authority is known, which opsctl does not check)" if self._known.authorities else ""
        file = endpoint.known_hosts[0] if endpoint.known_hosts else "known_hosts"
        return Unreachable(
            f"the host key of {endpoint.label} is not known{note}: {fingerprint(key)}",
            hint=f"compare the fingerprint with `ssh-keygen -lf` of the key in /etc/ssh on that host, then "
            f"`ssh-keyscan -p {endpoint.port} {endpoint.host} >> {file}`, or set `host_keys: accept-new`",
        )


def changed(endpoint: Endpoint, known: KnownKeys, key: paramiko.PKey) -> Unreachable:
    """The error for a host that shows another key than the known one."""
    before = "; ".join(f"{fingerprint(one)} ({known.places.get(one.get_name(), '?')})" for one in known.valid)
    return Unreachable(
        f"the host key of {endpoint.label} has changed: it shows {fingerprint(key)}, known is {before}",
        hint="somebody may be in between, or the host was set up again. Only if you know which: "
        f"`ssh-keygen -R '{endpoint.host_key_name}'`, then connect again",
    )


def record(endpoint: Endpoint, key: paramiko.PKey) -> None:
    """Append a new key to the user's known_hosts."""
    if not endpoint.known_hosts:
        return  # UserKnownHostsFile none: the user wants nothing recorded
    name = endpoint.host_key_name
    if endpoint.hashes_names:
        name = HostKeys.hash_host(name)
    file = Path(endpoint.known_hosts[0])
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    row = f"{name} {key.get_name()} {key.get_base64()}\n".encode()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, row)  # one write, so that two writers cannot mix
    finally:
        os.close(descriptor)
