"""A real Docker container of the tests' base image; gone at the end."""

from __future__ import annotations

import functools
import hashlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.place import USER, Place, ran

_PACKAGES = Path(__file__).with_name("base.packages")
BASE_KEY = hashlib.sha256(_PACKAGES.read_bytes()).hexdigest()[:12]
IMAGE = f"opsctl-tests-base:{BASE_KEY}"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
HELP = "tools/test-services.sh prepares it"


@functools.cache
def why_not() -> str:
    """Why no container can be made here, "" where it can; asked once."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    argv = ("docker", "image", "inspect", "--format", "ok", IMAGE)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return f"the Docker engine does not answer; {HELP}"
    return "" if done.returncode == 0 else f"{done.stderr.strip() or 'no base image'}; {HELP}"


def _init_pid(name: str) -> int:
    return int(ran("docker", "container", "inspect", "--format", "{{.State.Pid}}", name))


@contextmanager
def docker_place(mounts: Mapping[Path, str] = {}, *, memory: str = "", network: str = "") -> Iterator[Place]:
    """A running container with the user `ml`, the machine's certificates and an init.

    `mounts`: folder of ours -> where it stands inside; `memory`: what all in it may use, as docker writes it;
    `network`: none cuts it off.
    """
    name = f"opsctl-tests-{secrets.token_hex(4)}"
    volumes = [f"{CA_BUNDLE}:{CA_BUNDLE}:ro", *(f"{folder}:{inside}" for folder, inside in mounts.items())]
    options = [word for volume in volumes for word in ("-v", volume)] + (["--memory", memory] if memory else [])
    options += ["--network", network] if network else []
    ran("docker", "run", "-d", "--init", "--name", name, "--shm-size", "256m", *options, IMAGE)
    try:
        ran("docker", "exec", name, "useradd", "-m", USER)
        words = {
            "start": ("docker", "start", name),
            "stop": ("docker", "stop", "-t", "1", name),
            "restart": ("docker", "restart", "-t", "1", name),
            "pause": ("docker", "pause", name),
            "resume": ("docker", "unpause", name),
        }
        yield Place("docker", {"docker": name}, init_pid=lambda: _init_pid(name), words=words)
    finally:
        subprocess.run(("docker", "rm", "-f", "-v", name), capture_output=True, timeout=120, check=True)
