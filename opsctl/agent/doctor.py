"""The facts that `opsctl doctor` decides on. Every question has a limit; what cannot be told is said, not guessed."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import importlib.util
import locale
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from opsctl.agent.doctor_gpu import gpu_facts
from opsctl.agent.env.python import find_python
from opsctl.agent.home import Home
from opsctl.agent.processes import PROC
from opsctl.agent.recorder.kernel import KERNEL_LOG
from opsctl.agent.session import Call
from opsctl.errors import MissingTool
from opsctl.records.doctor import LogindFacts, PythonFacts, TargetFacts, TerminalFacts, ToolFacts

_ANSWER_LIMIT_S = 20.0
_COMPILE_LIMIT_S = 90.0
_INCLUDE = "import sysconfig; print(sysconfig.get_path('include'))"
_LOGIND_PROPERTY = (
    *("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
    *("org.freedesktop.login1.Manager", "KillUserProcesses"),
)


def facts(call: Call) -> TargetFacts:
    """Everything at once; request["python"] is the Python that the set wants, "" for any."""
    home = call.home
    home.ensure()
    python = _python(call.request.get("python", ""), call.home.pythons)
    return TargetFacts(
        time=time.time(),
        user=_user(),
        home=str(home.root),
        home_mode=home.root.stat().st_mode & 0o7777,
        disk_free_mib=shutil.disk_usage(home.root).free / 2**20,
        shm_mib=_shm_mib(),
        flock_problem=_flock_problem(home),
        locale_problem=_locale_problem(),
        python=python,
        tmux=_tmux(),
        compiler=_compiler(python.include),
        terminal=_terminal(),
        logind=_logind(),
        gpu=gpu_facts(home),
        hidepid=hidepid((PROC / "self" / "mountinfo").read_text(), groups=os.getgroups() if os.geteuid() else None),
        kernel_log_problem=_kernel_log_problem(),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.getuid())


def _said(argv: tuple[str, ...], *, limit_s: float = _ANSWER_LIMIT_S, stdin: str = "") -> tuple[str, str]:
    """A short command's stdout, and its problem."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"{argv[0]} did not answer within {limit_s:g} s"
    except OSError as error:
        return "", f"{argv[0]} does not start: {error.strerror}"
    if done.returncode != 0:
        return done.stdout, done.stderr.strip() or f"{argv[0]} ended with {done.returncode}"
    return done.stdout, ""


def _shm_mib() -> float | None:
    shm = Path("/dev/shm")  # noqa: S108 - it is asked for its size, nothing is put there
    return shutil.disk_usage(shm).total / 2**20 if shm.is_dir() else None


def _flock_problem(home: Home) -> str:
    """Whether a lock in `home` keeps a second holder out; a network folder may say yes to both, or to none."""
    with tempfile.NamedTemporaryFile(dir=home.locks, prefix="doctor-") as first, Path(first.name).open("rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"flock fails there: {error.strerror}"
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        return "two holders got the same lock"


def _locale_problem() -> str:
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        return f"the system has no locale {os.environ.get('LC_ALL', '')}"
    found = locale.nl_langinfo(locale.CODESET)
    return "" if found.lower().replace("-", "") == "utf8" else f"text is {found}"


def _python(wanted: str, brought: Path) -> PythonFacts:
    has_venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
    try:
        found = find_python(wanted or ".".join(map(str, sys.version_info[:2])), brought)
    except MissingTool as error:
        return PythonFacts(problem=error.message, has_venv=has_venv)
    include = _said((found.executable, "-I", "-c", _INCLUDE))[0].strip()
    has_header = bool(include) and (Path(include) / "Python.h").is_file()
    return PythonFacts(found.version, found.executable, include if has_header else "", has_venv=has_venv)


def _tmux() -> ToolFacts:
    path = shutil.which("tmux")
    if path is None:
        return ToolFacts(problem="tmux is not there")
    said, problem = _said((path, "-V"))
    return ToolFacts(path, said.strip(), problem)


def _compiler(include: str) -> ToolFacts:
    """The C++ compiler that Inductor would take, tried on a program with Python.h in it."""
    path = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
    if path is None:
        return ToolFacts(problem="neither g++ nor clang++ is there")
    header = "#include <Python.h>\n" if include else ""
    argv = (path, *(("-I", include) if include else ()), "-x", "c++", "-fsyntax-only", "-")
    _, problem = _said(argv, limit_s=_COMPILE_LIMIT_S, stdin=f"{header}#include <vector>\nstd::vector<int> v;\n")
    version = _said((path, "--version"))[0].partition("\n")[0]
    return ToolFacts(path, version, problem.partition("\n")[0])


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # not every container shows it
        return int(Path(path).read_text())
    return None


def _terminal() -> TerminalFacts:
    problem = ""
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError as error:
        problem = f"no pseudo-terminal can be opened: {error.strerror}"
    return TerminalFacts(problem, _number("/proc/sys/kernel/pty/nr"), _number("/proc/sys/kernel/pty/max"))


def _init() -> str:
    """The name of PID 1, which may be hidden; where systemd booted the system, a folder says so."""
    if Path("/run/systemd/system").is_dir():
        return "systemd"
    with contextlib.suppress(OSError):  # another user's, and hidden
        return (PROC / "1" / "comm").read_text().strip()
    return "hidden"


def _logind() -> LogindFacts:
    init, user = _init(), _user()
    in_session = "/session-" in (PROC / "self" / "cgroup").read_text()
    lingers = Path("/var/lib/systemd/linger", user).exists()
    return LogindFacts(init, _kills_user_processes() if init == "systemd" else False, lingers, in_session, user)


def hidepid(mountinfo: str, *, groups: Collection[int] | None) -> str:
    """The option by which /proc hides other users' processes from a member of `groups`, None being root; "" if none.

    >>> hidepid("24 29 0:22 / /proc rw,nosuid - proc proc rw,gid=27,hidepid=invisible", groups=[1000])
    'hidepid=invisible'
    """
    mounts = [row.split() for row in mountinfo.splitlines()]
    mounted = next((fields[-1] for fields in reversed(mounts) if fields[4] == "/proc"), "")
    options = dict(option.partition("=")[::2] for option in mounted.split(","))
    value, gid = options.get("hidepid", "off"), options.get("gid", "0")
    is_excepted = groups is None or (int(gid) in groups and value not in ("ptraceable", "4"))
    return "" if value in ("off", "0") or is_excepted else f"hidepid={value}"


def _kernel_log_problem() -> str:
    """Why a recorder here cannot read the kernel's log."""
    try:
        os.close(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return f"{KERNEL_LOG}: {error.strerror}"
    return ""


def _kills_user_processes() -> bool | None:
    said, problem = _said(_LOGIND_PROPERTY)
    return None if problem else said.split() == ["b", "true"]
