"""The key of a compile cache: what torch's own keys do not tell apart, or must never share a folder.

Asked once of an environment and kept beside it, since asking imports torch; asked again when the
machine under it changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.agent.env import proof
from opsctl.agent.env.layout import EnvPaths, read_env
from opsctl.agent.files import write_record

NO_ENV = "none (the job runs without an environment)"
_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_NAMED_ISA = ("amx_tile", "avx512f", "avx2", "avx", "sve2", "sve", "asimd")
# prefixes of what a compiler may use when it builds for the machine it runs on
_ISA_PREFIXES = (
    *("sse", "ssse", "avx", "amx", "fma", "bmi", "f16c", "aes", "sha", "vaes", "vpclmul", "pclmul", "gfni", "adx"),
    *("popcnt", "movbe", "movdir", "abm", "cx16", "lahf", "rdrnd", "rdrand", "rdseed", "clflush", "clwb", "xsave"),
    *("sve", "asimd", "fp", "crc32", "atomics", "bf16", "i8mm"),
)


@dataclass(frozen=True)
class CacheKey:
    """The fields, all text, and the short digest that names the folder."""

    fields: dict[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()[:16]


def parse_isa(cpuinfo: str) -> str:
    """The instruction sets of the first CPU: the best known one, and a digest of all.

    The digest matters: Inductor compiles for the machine it runs on, and its binaries crash on a
    CPU that lacks any one of them.
    """
    row = next((row for row in cpuinfo.splitlines() if row.lower().startswith(("flags", "features"))), "")
    flags = sorted({flag for flag in row.partition(":")[2].split() if flag.startswith(_ISA_PREFIXES)})
    best = next((name for name in _NAMED_ISA if name in flags), "baseline")
    return f"{best} ({hashlib.sha256(' '.join(flags).encode()).hexdigest()[:8]})"


def _driver_models() -> str:
    """The GPU models as the driver lists them, without starting nvidia-smi; "" where that cannot be read."""
    models = []
    for file in sorted(_NVIDIA.glob("*/information")):
        models += [row.partition(":")[2].strip() for row in file.read_text().splitlines() if row.startswith("Model")]
    return ", ".join(models)


def machine() -> dict[str, str]:
    """What the machine adds to a key, and by which a kept key is known to be stale."""
    return {"cpu_isa": parse_isa(_CPUINFO.read_text()), "driver_gpus": _driver_models()}


def fields(answer: dict[str, Any], machine_facts: dict[str, str]) -> dict[str, str]:
    """The key's fields from an environment's answer; pure."""
    torch = answer["torch"] or {}
    return {
        "torch": torch.get("version", "none"),
        "torch_git": torch.get("git", ""),
        "triton": answer["triton"] or "none",
        "cuda": torch.get("cuda") or torch.get("hip") or "none",
        "gpus": ", ".join(sorted(set(torch.get("gpus", [])))) or "cpu",
        "python_abi": answer["abi"],
        "cpu_isa": machine_facts["cpu_isa"],
    }


def remember_key(paths: EnvPaths, answer: dict[str, Any]) -> CacheKey:
    """Keep what an environment answered beside it."""
    here = machine()
    key = CacheKey(fields(answer, here))
    write_record(paths.cache_key, {"fields": key.fields, "machine": here})
    return key


def _kept(paths: EnvPaths) -> tuple[CacheKey, dict[str, str]] | None:
    """The key kept beside an environment and the machine that it is of, None where it cannot be read."""
    try:
        found = json.loads(paths.cache_key.read_text())
        return CacheKey(dict(found["fields"])), dict(found["machine"])
    except (OSError, ValueError, KeyError, TypeError):  # somebody edited it: as good as none
        return None


def kept_key(paths: EnvPaths) -> CacheKey | None:
    """The key that was kept beside an environment, whatever the machine is now; asks nobody."""
    kept = _kept(paths)
    return kept[0] if kept else None


def key_of(paths: EnvPaths) -> CacheKey:
    """The key of jobs in this environment; asks the environment only where nothing valid is kept."""
    if (kept := _kept(paths)) and kept[1] == machine():
        return kept[0]
    record = read_env(paths.root)
    has_torch = record is not None and "torch" in record.packages
    return remember_key(paths, proof.ask(paths.python, torch=has_torch))


def key_without_env() -> CacheKey:
    """The key of jobs that bring their own Python: only the machine is known."""
    here = machine()
    return CacheKey({"env": NO_ENV, "gpus": here["driver_gpus"] or "cpu", "cpu_isa": here["cpu_isa"]})


def differences(ours: dict[str, str], theirs: dict[str, str]) -> tuple[str, ...]:
    """Field by field, how two keys differ.

    >>> differences({"torch": "2.13.0"}, {"torch": "2.12.0"})
    ('torch: 2.13.0 here, 2.12.0 in the snapshot',)
    """
    names = [*ours, *(name for name in theirs if name not in ours)]
    return tuple(
        f"{name}: {ours.get(name) or 'nothing'} here, {theirs.get(name) or 'nothing'} in the snapshot"
        for name in names
        if ours.get(name) != theirs.get(name)
    )
