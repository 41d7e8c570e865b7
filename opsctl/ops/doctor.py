"""`opsctl doctor`: asks a target once, the host a little, and judges the answers. Never prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from opsctl.errors import ConfigError, ContainerMissing, Disconnected, MissingTool, OpsctlError, TimedOut, Unreachable
from opsctl.formats.drivers import AUTO, cuda_of
from opsctl.formats.lockfile import SetOptions, parse_lock, parse_options
from opsctl.ops import doctor_checks, doctor_gpu_checks
from opsctl.ops.doctor_checks import Need
from opsctl.ops.doctor_compile_checks import NOT_REACHED, compile_checks
from opsctl.ops.host_kernel import newest_rows
from opsctl.ops.sets import pinned_set
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.records.doctor import Check, TargetFacts

_SSHD = ("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; sshd -T")
_SSHD_LIMIT_S = 30.0
_MIN_SESSIONS = 8  # `status` asks with several at once, beside a watch and a log

QUESTIONS: tuple[Callable[[TargetFacts, Need], Check], ...] = (
    doctor_checks.clock,
    doctor_checks.python,
    doctor_checks.tmux,
    doctor_checks.terminals,
    doctor_checks.compiler,
    doctor_checks.disk,
    doctor_checks.shared_memory,
    doctor_checks.locks,
    doctor_checks.home,
    doctor_checks.logind,
    doctor_checks.processes,
    doctor_checks.kernel_log,
    doctor_checks.locale,
    doctor_gpu_checks.gpus,
    doctor_gpu_checks.gpu_devices,
    doctor_gpu_checks.driver,
    doctor_gpu_checks.smi_time,
    doctor_gpu_checks.tenants,
)
# what a container may lack although its host has it
CONTAINER_QUESTIONS = (
    doctor_checks.terminals,
    doctor_checks.shared_memory,
    doctor_gpu_checks.gpu_devices,
    doctor_gpu_checks.driver,
)


@dataclass(frozen=True)
class DoctorReport:
    """All checks of one target, in the table's order."""

    target: str
    label: str
    checks: tuple[Check, ...]

    @property
    def is_well(self) -> bool:
        """Whether no check says no."""
        return all(check.ok is not False for check in self.checks)


def doctor(workspace: Workspace, *, deep: bool = False) -> DoctorReport:
    """Check the workspace's target; what cannot be reached is a check that says no, not an error.

    `deep` also asks the active environment's torch in which state it compiles, which takes some seconds.
    """
    options, need, set_check = _wanted(workspace)
    facts, need, reach = _ask(workspace, options, need)
    checks = (*reach, *_host_checks(workspace, reach[0]), set_check)
    if facts is not None:
        need = replace(need, host_kernel_log_problem=_host_kernel_log(workspace) if facts.kernel_log_problem else "")
        checks += tuple(question(facts, need) for question in QUESTIONS)
    if deep:
        checks += (NOT_REACHED,) if facts is None else compile_checks(workspace)
    return DoctorReport(workspace.target.name, workspace.target.label, checks)


def _host_checks(workspace: Workspace, reach: Check) -> Iterator[Check]:
    yield _host_key(workspace, reach)
    if reach.ok and workspace.config.target(workspace.target.name)[1].host.ssh:
        yield _sshd(workspace)


def _host_kernel_log(workspace: Workspace) -> str:
    """Why the kernel's log cannot be read on the host either."""
    try:
        return newest_rows(workspace.target)[1]
    except OpsctlError as error:
        return error.message


def _wanted(workspace: Workspace) -> tuple[SetOptions, Need, Check]:
    """What the configured set and jobs ask of a target, and whether the set itself is there."""
    name = workspace.config.env.name
    gpus = tuple(sorted({gpu for job in workspace.config.jobs.values() for gpu in job.gpus}))
    kind = workspace.target.container.label.partition(" ")[0]
    need = Need(env=name, gpus=gpus, container=kind)
    if name == AUTO:
        return SetOptions(), need, Check("set", True, "auto: the driver chooses when an environment is built")
    try:
        files = pinned_set(workspace, None)
        text, label = files.lock_text(), str(files.lock)
        options, pins = parse_options(text, label=label), parse_lock(text, label=label)
    except ConfigError as error:
        return SetOptions(), need, Check("set", False, error.message, error.hint)
    cuda = cuda_of(pins)
    found = f"{name}: {len(pins)} pins, {f'CUDA {cuda}' if cuda else 'no CUDA'}"
    return options, replace(need, cuda=cuda), Check("set", True, found)


def _ask(workspace: Workspace, options: SetOptions, need: Need) -> tuple[TargetFacts | None, Need, tuple[Check, ...]]:
    """The facts, where they can be had; and how far the way there leads."""
    label = workspace.target.container.label or "none"
    began_s = time.time()
    try:
        clock_s = float(workspace.client.call("probe")["time"])  # a short call: the shorter, the surer the clock
        took_s = time.time() - began_s
        facts = from_json(TargetFacts, workspace.client.call("doctor", {"python": options.python}))
    except (Unreachable, Disconnected, TimedOut) as error:
        return None, need, (Check("reach", False, error.message, error.hint),)
    except ContainerMissing as error:
        return None, need, (Check("reach", True, "the host answers"), _no("container", error))
    except MissingTool as error:
        return None, need, (Check("reach", True, "the host answers"), _no("agent", error))
    except OpsctlError as error:
        return None, need, (Check("reach", True, "the target answers"), _no("agent", error))
    need = replace(need, clock_skew_s=clock_s - (began_s + took_s / 2), clock_doubt_s=took_s / 2)
    return facts, need, (Check("reach", True, f"answered in {took_s:.2f} s"), Check("container", True, label))


def _no(name: str, error: OpsctlError) -> Check:
    return Check(name, False, error.message, error.hint)


def _host_key(workspace: Workspace, reach: Check) -> Check:
    settings = workspace.config.target(workspace.target.name)[1].host
    if settings.ssh is None:
        return Check("host key", True, "this machine")
    if not reach.ok:
        return Check("host key", None, "not reached")
    return Check("host key", True, f"as known_hosts has it (host_keys: {settings.host_keys})")


def _sshd(workspace: Workspace) -> Check:
    try:
        answer = workspace.target.ask_host(_SSHD, timeout_s=_SSHD_LIMIT_S)
    except OpsctlError as error:
        return Check("sshd", None, error.message, error.hint)
    return judge_sshd(answer.output if answer.outcome.code == 0 else "")


def judge_sshd(effective: str) -> Check:
    """Whether sshd lets us open enough sessions on one connection, from `sshd -T`; "" where only root may see it.

    >>> judge_sshd("maxsessions 4\\nmaxstartups 10:30:100\\n").ok
    False
    """
    values = dict(row.split(" ", 1) for row in effective.splitlines() if " " in row)
    if "maxsessions" not in values:
        return Check("sshd", None, "only root sees its limits", f"MaxSessions {_MIN_SESSIONS} or more is enough")
    is_enough = int(values["maxsessions"]) >= _MIN_SESSIONS
    found = f"MaxSessions {values['maxsessions']}, MaxStartups {values.get('maxstartups', '?')}"
    return Check("sshd", is_enough, found, "" if is_enough else f"set MaxSessions {_MIN_SESSIONS} in sshd_config")


def container_checks(workspace: Workspace) -> tuple[Check, ...]:
    """What a container that runs lacks for GPUs and terminals; one check that says no where it cannot be asked."""
    options, need, _ = _wanted(workspace)
    facts, need, reach = _ask(workspace, options, need)
    if facts is None:
        return reach[1:] or reach
    return tuple(question(facts, need) for question in CONTAINER_QUESTIONS)
