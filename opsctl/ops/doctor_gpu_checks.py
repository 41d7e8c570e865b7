"""What the facts of a target mean for its GPUs: one pure function a question. Asks nobody."""

from __future__ import annotations

from opsctl.formats.drivers import oldest_driver, runs
from opsctl.ops.doctor_checks import Need
from opsctl.records.doctor import Check, TargetFacts
from opsctl.records.events import GpuSample

SLOW_SMI_S = 5.0
FOREIGN_LIMIT_MIB = 500.0


def gpus(facts: TargetFacts, need: Need) -> Check:
    """Whether the GPUs that the set and the jobs want are there."""
    found = facts.gpu.gpus
    names = sorted({gpu.name for gpu in found if gpu.name})
    said = f"{len(found)}" + (f" ({', '.join(names)})" if names else "")
    if not need.wants_gpus:
        return Check("gpus", True, f"{said}; set {need.env} wants none")
    if facts.gpu.answer_s is None:
        return Check("gpus", False, "no nvidia-smi", _no_smi(facts, need))
    if facts.gpu.problem:
        return Check("gpus", False, facts.gpu.problem, _TROUBLE)
    missing = sorted(set(need.gpus) - {gpu.index for gpu in found})
    if missing or not found:
        wanted = f"jobs lease GPU {', '.join(map(str, missing))}" if missing else f"set {need.env} wants one"
        return Check("gpus", False, f"{said}, but {wanted}", "correct `gpus:` of the jobs, or give the container more")
    return Check("gpus", True, said)


_TROUBLE = "see `nvidia-smi` and `dmesg` on the host; after an update of the driver, reboot it or restart the container"


def _no_smi(facts: TargetFacts, need: Need) -> str:
    if need.container == "docker":
        return "set `docker.gpus`, with the NVIDIA container toolkit on the host, then `opsctl container down` and `up`"
    if need.container:
        return "install in the container the same driver version as on the host, without its kernel module"
    return "install the NVIDIA driver with its utilities"


def gpu_devices(facts: TargetFacts, need: Need) -> Check:
    """Whether the device files are there, and open: a container's rules may refuse what its folder shows."""
    closed = [f"{path}: {problem}" for path, problem in facts.gpu.nodes.items() if problem]
    if closed:
        return Check("gpu devices", False, "; ".join(closed[:3]), _devices_todo(need))
    required = ("/dev/nvidiactl", "/dev/nvidia-uvm")
    absent = [path for path in required if path not in facts.gpu.nodes]
    if absent and need.wants_gpus:
        return Check("gpu devices", False, f"{', '.join(absent)} not there", _devices_todo(need))
    return Check("gpu devices", True, f"{len(facts.gpu.nodes)} open" if facts.gpu.nodes else "none, none wanted")


def _devices_todo(need: Need) -> str:
    return {
        "docker": "restart the container: a reload of systemd takes its devices; `docker.cdi: true` avoids that",
        "lxc": "lxc.cgroup2.devices.allow = c 195:* rwm (and nvidia-uvm's major), with an lxc.mount.entry a node",
        "pct": "`pct set ID --dev0 /dev/nvidia0 --dev1 /dev/nvidiactl --dev2 /dev/nvidia-uvm`, then restart it",
    }.get(need.container, "`nvidia-modprobe -c 0 -u` makes them; load the driver")


def driver(facts: TargetFacts, need: Need) -> Check:
    """Whether the kernel's driver, the container's library and the set's CUDA fit each other."""
    kernel, library = facts.gpu.kernel_driver, facts.gpu.library
    if not kernel:
        if not need.cuda:
            return Check("driver", True, f"none; set {need.env} wants none")
        return Check("driver", False, f"none, and set {need.env} is built for CUDA {need.cuda}", "install the driver")
    found = f"{kernel}" + (f", library {library}" if library and library != kernel else "")
    if library and library != kernel:
        todo = "give the container the host's version of the driver's libraries; on a host, reboot after the update"
        return Check("driver", False, found, todo)
    if not runs(kernel, need.cuda):
        todo = (
            f"update the driver to {oldest_driver(need.cuda)} or newer, or choose a set for an older CUDA (`env.name`)"
        )
        return Check("driver", False, f"{found}, too old for CUDA {need.cuda}", todo)
    if need.cuda and not library:
        return Check("driver", False, f"{found}, but no libcuda", _no_smi(facts, need))
    return Check("driver", True, found + (f", runs CUDA {need.cuda}" if need.cuda else ""))


def smi_time(facts: TargetFacts, need: Need) -> Check:
    """Whether nvidia-smi answers quickly: each look at a run waits for it."""
    if facts.gpu.answer_s is None:
        return Check("nvidia-smi", None if need.wants_gpus else True, "not there")
    is_quick = facts.gpu.answer_s <= SLOW_SMI_S
    todo = "" if is_quick else "`nvidia-smi -pm 1` keeps the driver awake; see dmesg for Xid rows"
    return Check("nvidia-smi", is_quick, f"answered in {facts.gpu.answer_s:.1f} s", todo)


def tenants(facts: TargetFacts, need: Need) -> Check:
    """Whether somebody else works on the GPUs that the jobs lease."""
    watched = [gpu for gpu in facts.gpu.gpus if not need.gpus or gpu.index in need.gpus]
    strangers = [_tenant(gpu) for gpu in watched if _is_foreign(gpu, facts)]
    ours = sorted({facts.gpu.holders[gpu.uuid] for gpu in watched if gpu.uuid in facts.gpu.holders})
    if strangers:
        todo = "`nvidia-smi` there names the processes; choose other `gpus:`, or `share: true` for the job"
        return Check("tenants", False, "; ".join(strangers), todo)
    return Check("tenants", True, f"runs of ours: {', '.join(ours)}" if ours else "nobody on the GPUs")


def _is_foreign(gpu: GpuSample, facts: TargetFacts) -> bool:
    return gpu.uuid not in facts.gpu.holders and (gpu.used_mib or 0.0) > FOREIGN_LIMIT_MIB


def _tenant(gpu: GpuSample) -> str:
    return f"GPU {gpu.index} holds {gpu.used_mib:.0f} MiB of others"
