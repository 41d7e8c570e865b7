"""Which NVIDIA driver a pinned set needs, and which set a driver can run. Pure; shipped inside the agent."""

from __future__ import annotations

import re

from opsctl.errors import CheckFailed, ConfigError
from opsctl.formats.lockfile import Pin

AUTO = "auto"  # as the name of a set: the target's driver chooses
# CUDA's major version -> the oldest driver that runs it (NVIDIA's table of minor version compatibility)
MIN_DRIVER = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
_PREFERRED = "cpu"  # of several sets without CUDA, for a target without a driver


def cuda_of(pins: tuple[Pin, ...]) -> str:
    """The CUDA version that a lock's torch is built for, "" for none.

    >>> cuda_of((Pin("nvidia-cuda-runtime", "13.0.96", (), 1), Pin("torch", "2.13.0", (), 2)))
    '13.0'
    """
    for pin in pins:
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", pin.name):
            return ".".join(pin.version.split(".")[:2])
    local = next((pin.version.partition("+")[2] for pin in pins if pin.name == "torch"), "")
    match = re.fullmatch(r"cu(\d+)(\d)", local)
    return f"{match[1]}.{match[2]}" if match else ""


def oldest_driver(cuda: str) -> str:
    """The oldest driver that runs this version of CUDA; "" for no CUDA, and for one that we do not know.

    >>> oldest_driver("13.0"), oldest_driver("")
    ('580.65.06', '')
    """
    return MIN_DRIVER.get(cuda.partition(".")[0], "")


def version_tuple(text: str) -> tuple[int, ...]:
    """The numbers of a version, to compare by.

    >>> version_tuple("tmux 3.3a") < version_tuple("580.65.06")
    True
    """
    match = re.search(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def runs(driver: str, cuda: str) -> bool:
    """Whether this driver runs that CUDA; one that we do not know is tried."""
    return version_tuple(driver) >= version_tuple(oldest_driver(cuda))


def ensure_runs(driver: str, cuda: str, *, name: str) -> None:
    """Raise CheckFailed, with both versions, for a driver that is too old for the set `name`; "" is no driver."""
    if driver and cuda and not runs(driver, cuda):
        raise CheckFailed(
            f"driver {driver} is too old for the set {name}: CUDA {cuda} needs {oldest_driver(cuda)} or newer",
            hint="update the driver, or choose a set for an older CUDA or for the CPU (`opsctl env rebuild NAME`)",
        )


def choose(cudas: dict[str, str], driver: str) -> str:
    """The set, of those named with their CUDA ("" = none), that this driver ("" = none there) runs best.

    Raises CheckFailed for a driver that is too old for all of them, or missing.

    >>> choose({"cpu": "", "cu126": "12.6", "cu130": "13.0"}, "570.10"), choose({"cpu": "", "cu130": "13.0"}, "")
    ('cu126', 'cpu')
    """
    with_cuda = {name: cuda for name, cuda in cudas.items() if cuda}
    if driver and with_cuda:
        fitting = [name for name, cuda in with_cuda.items() if runs(driver, cuda)]
        if fitting:
            return max(fitting, key=lambda name: (version_tuple(with_cuda[name]), name))
        raise CheckFailed(
            f"driver {driver} is too old for every CUDA set: {_needs(with_cuda)}",
            hint="update the driver, lock a set for an older CUDA, or name a set without (`opsctl env rebuild cpu`)",
        )
    plain = [name for name in cudas if name not in with_cuda]
    if not plain:
        raise CheckFailed(
            f"the target has no NVIDIA driver, and every set is built for CUDA: {_needs(with_cuda)}",
            hint="install the driver there, give the container the GPUs, or name a set",
        )
    if len(plain) > 1 and _PREFERRED not in plain:
        raise ConfigError(f"several sets fit a target without a driver: {', '.join(plain)}", hint="set env.name to one")
    return _PREFERRED if _PREFERRED in plain else plain[0]


def _needs(with_cuda: dict[str, str]) -> str:
    rows = (f"{name} (CUDA {cuda}) needs {oldest_driver(cuda)} or newer" for name, cuda in with_cuda.items())
    return "; ".join(rows)
