"""What the facts of a target mean for this project, GPUs apart: one pure function a question. Asks nobody."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.formats.drivers import version_tuple
from opsctl.records.doctor import Check, TargetFacts

CLOCK_LIMIT_S = 2.0
MIN_TMUX = (3, 2)
# an unpacked CUDA build of torch, its copy in uv's cache, and room for a checkpoint; the CPU build is a tenth of it
DISK_MIB = {True: 20_000.0, False: 4_000.0}
# data loaders and NCCL need far more than Docker's default of 64 MiB; a CPU run does not notice
SHM_MIB = {True: 1024.0, False: 32.0}


@dataclass(frozen=True)
class Need:
    """What the configuration asks of a target."""

    env: str = "cpu"
    cuda: str = ""  # "13.0"; "" for a set without CUDA
    gpus: tuple[int, ...] = ()  # the indices that jobs lease
    container: str = ""  # docker, lxc, pct or ""
    clock_skew_s: float = 0.0
    clock_doubt_s: float = 0.0  # half of the answer's way there and back
    host_kernel_log_problem: str = ""

    @property
    def wants_gpus(self) -> bool:
        return bool(self.cuda or self.gpus)


def clock(facts: TargetFacts, need: Need) -> Check:
    """Whether the two clocks agree: times of a run would be wrong, and certificates may not hold."""
    is_off = abs(need.clock_skew_s) > CLOCK_LIMIT_S + need.clock_doubt_s
    found = f"{need.clock_skew_s:+.1f} s against ours, give or take {need.clock_doubt_s:.1f} s"
    return Check(
        "clock", not is_off, found, "let both machines keep time (chrony, systemd-timesyncd)" if is_off else ""
    )


def python(facts: TargetFacts, need: Need) -> Check:
    """Whether the set's Python is there, and can make environments."""
    if facts.python.problem:
        todo = "install that Python on the target (Debian: python3, python3-venv, python3-dev), or change the set"
        return Check("python", False, facts.python.problem, todo)
    if not facts.python.has_venv:
        return Check("python", False, "the agent's Python has no venv module", "install python3-venv")
    return Check("python", True, f"{facts.python.version} at {facts.python.executable}")


def tmux(facts: TargetFacts, need: Need) -> Check:
    """Whether runs can live in tmux."""
    if facts.tmux.problem:
        return Check("tmux", False, facts.tmux.problem, "install it: apt-get install tmux")
    if version_tuple(facts.tmux.version)[:2] < MIN_TMUX:
        return Check("tmux", False, facts.tmux.version, f"install tmux {'.'.join(map(str, MIN_TMUX))} or newer")
    return Check("tmux", True, facts.tmux.version)


def terminals(facts: TargetFacts, need: Need) -> Check:
    """Whether tmux and the recorder get pseudo-terminals."""
    if facts.terminal.problem:
        todo = {
            "lxc": "lxc.pty.max = 1024 in the container's configuration, and a /dev/ptmx in it",
            "pct": "lxc.pty.max: 1024 in /etc/pve/lxc/ID.conf, and a /dev/ptmx in the container",
            "docker": "remove mounts over /dev/pts and /dev/ptmx",
        }.get(need.container, "mount devpts on /dev/pts, and link /dev/ptmx to pts/ptmx")
        return Check("terminals", False, facts.terminal.problem, todo)
    used, limit = facts.terminal.used, facts.terminal.limit
    return Check("terminals", True, f"one opens; {used} of {limit} in use" if limit else "one opens")


def compiler(facts: TargetFacts, need: Need) -> Check:
    """Whether Inductor can compile: a C++ compiler that works, and Python.h."""
    if facts.compiler.problem:
        return Check("compiler", False, facts.compiler.problem, "install it: apt-get install g++")
    if not facts.python.include and not facts.python.problem:
        where = facts.python.executable
        return Check("compiler", False, f"no Python.h for {where}", "install python3-dev for that Python")
    return Check("compiler", True, facts.compiler.version or facts.compiler.path)


def disk(facts: TargetFacts, need: Need) -> Check:
    """Whether an environment fits beside what is there."""
    wanted = DISK_MIB[need.wants_gpus]
    found = f"{facts.disk_free_mib / 1024:.1f} GiB free at {facts.home}"
    todo = f"free space: set {need.env} wants {wanted / 1024:.0f} GiB (`opsctl env prune`), or move `home:`"
    is_enough = facts.disk_free_mib >= wanted
    return Check("disk", is_enough, found, "" if is_enough else todo)


def shared_memory(facts: TargetFacts, need: Need) -> Check:
    """Whether /dev/shm is there and large enough for data loaders and NCCL."""
    todo = {
        "docker": "set `docker.shm_size`, then `opsctl container down` and `up`",
        "lxc": "lxc.mount.entry = tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,size=16g 0 0",
        "pct": "add the line lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,size=16g 0 0",
    }.get(need.container, "mount -o remount,size=16g /dev/shm")
    if facts.shm_mib is None:
        return Check("shared memory", False, "no /dev/shm", todo)
    is_enough = facts.shm_mib >= SHM_MIB[need.wants_gpus]
    return Check("shared memory", is_enough, f"{facts.shm_mib:.0f} MiB", "" if is_enough else todo)


def locks(facts: TargetFacts, need: Need) -> Check:
    """Whether flock works in `home`: everything exclusive rests on it."""
    if facts.flock_problem:
        todo = "move `home:` to a local disk; a network file system must be mounted with locks"
        return Check("locks", False, f"{facts.flock_problem} ({facts.home})", todo)
    return Check("locks", True, f"flock works in {facts.home}")


def home(facts: TargetFacts, need: Need) -> Check:
    """Whether others can look into `home`, and whether a shared one gives its group what is made in it."""
    is_shared, hands_group_on = facts.home_mode & 0o020 != 0, facts.home_mode & 0o2000 != 0
    is_well = facts.home_mode & 0o007 == 0 and (hands_group_on or not is_shared)
    todo = (
        ""
        if is_well
        else f"chmod {'2770' if is_shared else '700'} {facts.home}; docs/operators.md tells of shared homes"
    )
    return Check("home", is_well, f"{facts.home}, mode {facts.home_mode:o}, user {facts.user}", todo)


def logind(facts: TargetFacts, need: Need) -> Check:
    """Whether a logout would end runs."""
    login = facts.logind
    if login.init != "systemd":
        return Check("logout", True, f"no logind here (PID 1 is {login.init})")
    todo = f"loginctl enable-linger {login.user}, or KillUserProcesses=no in /etc/systemd/logind.conf"
    if login.kills is None:
        return Check("logout", None, "logind does not say whether it ends what a user leaves running", todo)
    is_safe = not login.kills or login.lingers or not login.in_session
    why = "off" if not login.kills else f"on; lingering is {'on' if login.lingers else 'off'}"
    return Check("logout", is_safe, f"KillUserProcesses is {why}", "" if is_safe else todo)


def processes(facts: TargetFacts, need: Need) -> Check:
    """Whether other users' processes show: else their runs and leases look dead, and nobody knows who fills a GPU."""
    if not facts.hidepid:
        return Check("processes", True, "those of all users show in /proc")
    is_shared = facts.home_mode & 0o020 != 0
    lost = (
        f"whether others' runs in {facts.home} live"
        if is_shared
        else "who else works there, and whom the OOM killer hit"
    )
    todo = "mount -o remount,hidepid=off /proc, or add gid=GROUP to its options, a group that this user is in"
    found = f"/proc hides other users' processes ({facts.hidepid}): not seen is {lost}"
    return Check("processes", False if is_shared else None, found, todo)


def kernel_log(facts: TargetFacts, need: Need) -> Check:
    """Whether the kernel's own words reach a run: Xid rows of sick GPUs, and whom the OOM killer hit."""
    if not facts.kernel_log_problem:
        return Check("kernel log", True, "readable")
    if not need.host_kernel_log_problem:
        return Check("kernel log", True, f"{facts.kernel_log_problem}; the host's is read while somebody watches")
    todo = "on the host: sysctl kernel.dmesg_restrict=0, or this user in group adm or systemd-journal, or `become:`"
    found = f"{facts.kernel_log_problem}; host: {need.host_kernel_log_problem}: Xid and OOM rows are not seen"
    return Check("kernel log", False if need.wants_gpus else None, found, todo)


def locale(facts: TargetFacts, need: Need) -> Check:
    """Whether text is UTF-8 there: tmux and Python lose characters otherwise."""
    if facts.locale_problem:
        return Check("locale", False, facts.locale_problem, "install C.UTF-8 (glibc 2.35, or Debian's libc-bin)")
    return Check("locale", True, "UTF-8")
