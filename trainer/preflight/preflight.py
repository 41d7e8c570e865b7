"""The command `preflight`: runs the chosen topology for about a minute and says whether it is safe."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

from trainer.device import resolve_device
from trainer.preflight.processes import try_processes
from trainer.preflight.report import PreflightReport, Topology
from trainer.recipe import Recipe

if TYPE_CHECKING:
    from trainer.compile import Lock

Replicas = Literal["processes", "threads", "shared-threads"]


def preflight(
    recipe: Recipe, *, replicas: Replicas, num_replicas: int, lock: Lock, words: Sequence[str]
) -> PreflightReport:
    """Return what was seen of the recipe's replicas in this topology; `words` name the recipe to processes of its own.

    It compiles into folders of its own, which are gone afterwards: the run's caches are neither used nor filled.
    """
    started_at = time.monotonic()
    device = resolve_device(recipe.device)
    if knows_vectors(os.environ.get("CXX", "g++")):
        # Let Inductor believe the CPU what vectors it has. Else it builds and loads a program for each kind in an empty
        # cache: 12 s that say nothing of replicas.
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    with _empty_caches():
        if replicas == "processes":
            topology, facts = try_processes(words, num_ranks=num_replicas, uses_gpus=device.type == "cuda")
            found = [topology]
        else:
            found, facts = _in_threads(recipe, device, replicas=replicas, num_replicas=num_replicas, lock=lock)
    return PreflightReport(
        recipe=recipe.name,
        torch=torch.__version__,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        replicas=replicas,
        topologies=tuple(found),
        known=tuple(facts),
        seconds=round(time.monotonic() - started_at, 1),
    )


def _in_threads(
    recipe: Recipe, device: torch.device, *, replicas: Replicas, num_replicas: int, lock: Lock
) -> tuple[list[Topology], list[str]]:
    """Return what threads of this process did, and what is known of this torch."""
    from trainer.preflight.releases import known  # these load the compiler, which a launcher of ranks does not need
    from trainer.preflight.threads import try_shared_code, try_threads

    is_chosen = replicas == "shared-threads"
    found = [] if is_chosen else try_threads(recipe, device, num_replicas=num_replicas, lock=lock)
    return [*found, try_shared_code(num_replicas, is_chosen=is_chosen)], known(torch.__version__)


# What Inductor compiles for on a CPU that has it.
_VECTOR_FLAGS = (
    *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mavx512vnni"),
    *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
)


def knows_vectors(compiler: str) -> bool:
    """Return whether a compiler for C++ can make all vector instructions that Inductor may ask it for."""
    argv = [compiler, *_VECTOR_FLAGS, "-x", "c++", "-fsyntax-only", os.devnull]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:  # there is none; the replicas will say so
        return False


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Have this process, and those it starts, compile into folders that are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        yield
