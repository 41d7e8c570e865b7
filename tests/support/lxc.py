"""A real LXC container on an overlay of the tests' base system; gone at the end."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.docker import BASE_KEY, CA_BUNDLE, HELP
from tests.support.place import USER, Place, ran

ROOT = Path(f"/var/tmp/opsctl-tests/root-{BASE_KEY}")
# the host's network, a terminal pool of its own, shared memory, an init that reaps and obeys SIGPWR
_CONFIG = """\
lxc.uts.name = {name}
lxc.rootfs.path = overlay:{root}:{folder}/delta
lxc.net.0.type = none
lxc.pty.max = 1024
lxc.mount.auto = proc:mixed sys:mixed
lxc.mount.entry = tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,size=256m 0 0
lxc.mount.entry = {ca_bundle} {ca_bundle_inside} none bind,ro,create=file 0 0
lxc.mount.entry = /etc/resolv.conf etc/resolv.conf none bind,ro,create=file 0 0
lxc.apparmor.profile = unconfined
lxc.init.cmd = /usr/bin/tini -- sleep infinity
"""


def why_not() -> str:
    """Why no container can be made here, "" where it can."""
    if shutil.which("lxc-start") is None:
        return "lxc is not installed"
    if os.geteuid() != 0:
        return "not root"
    return "" if ROOT.is_dir() else f"no base system; {HELP}"


def _init_pid(name: str) -> int:
    return int(ran("lxc-info", "-n", name, "-p", "-H"))


@contextmanager
def running(name: str, mounts: Mapping[Path, str] = {}) -> Iterator[None]:
    """A running container of this name with the user `ml`, the machine's certificates and `mounts`."""
    folder = Path(ran("lxc-config", "lxc.lxcpath").strip()) / name
    (folder / "delta").mkdir(parents=True)
    inside = str(CA_BUNDLE).lstrip("/")
    config = _CONFIG.format(name=name, root=ROOT, folder=folder, ca_bundle=CA_BUNDLE, ca_bundle_inside=inside)
    for outside, mounted in mounts.items():
        config += f"lxc.mount.entry = {outside} {mounted.lstrip('/')} none bind,create=dir 0 0\n"
    (folder / "config").write_text(config)
    try:
        ran("lxc-start", "-n", name)
        ran("lxc-attach", "-n", name, "--", "useradd", "-m", USER)
        yield
    finally:
        subprocess.run(("lxc-stop", "-n", name, "-k"), capture_output=True, timeout=120)
        shutil.rmtree(folder)


def words(name: str) -> dict[str, tuple[str, ...]]:
    """How to start, stop, pause and resume it."""
    return {
        "start": ("lxc-start", "-n", name),
        "stop": ("lxc-stop", "-n", name, "-t", "5"),
        "restart": ("sh", "-c", 'lxc-stop -n "$1" -t 5 && lxc-start -n "$1"', "sh", name),
        "pause": ("lxc-freeze", "-n", name),
        "resume": ("lxc-unfreeze", "-n", name),
    }


@contextmanager
def lxc_place(mounts: Mapping[Path, str] = {}) -> Iterator[Place]:
    """A running LXC container; `mounts`: folder of ours -> where it stands inside."""
    name = f"opsctl-tests-{secrets.token_hex(4)}"
    with running(name, mounts):
        yield Place("lxc", {"lxc": name}, init_pid=lambda: _init_pid(name), words=words(name))


@contextmanager
def pct_place() -> Iterator[Place]:
    """A running LXC container behind the stand-in `pct`, named by its number as Proxmox does it."""
    vmid = 100_000_000 + secrets.randbelow(899_999_999)
    name = str(vmid)
    stand_in = Path(__file__).with_name("bin")
    # the words also reach a host behind SSH, whose PATH we do not set
    become = ("env", f"PATH={stand_in}:/usr/sbin:/usr/bin:/sbin:/bin")
    with running(name):
        yield Place("pct", {"pct": vmid}, become, init_pid=lambda: _init_pid(name), words=words(name))
