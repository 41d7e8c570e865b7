"""What a watcher knows about a job besides what it sees; None is unknown, never false or zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.records.baseline import Baseline


@dataclass(frozen=True)
class Context:
    """Everything known beforehand. `gpus`, `gpu_uuids` and `gpu_bus_ids` name the job's own GPUs; all empty = all.

    `seen_line_s` and `seen_step_s` are ages, at the start of watching, of what was seen before it.
    """

    compile_expected: bool | None = None
    cudagraphs_expected: bool | None = None
    warm_expected: bool = False  # a prewarm filled the compile cache: nothing should be missing there
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    gpu_bus_ids: tuple[str, ...] = ()
    world_size: int | None = None
    baseline: Baseline = field(default_factory=Baseline)
    nccl_timeout_s: float | None = None
    pid: int | None = None  # the job's first process, as the kernel and nvidia-smi number it
    typical_step_s: float | None = None  # the run's own median before watching began; 0 = no step yet
    seen_line_s: float | None = None
    seen_step_s: float | None = None
    phase: str = ""
    warmup_done: bool | None = None
    disk_used_pct: float | None = None
    launcher_alive: bool | None = None
    ranks_alive: bool | None = None
    rank0_alive: bool | None = None
    joined_midway: bool = False  # watching began after the job did: its first rows were not seen


@dataclass(frozen=True)
class Opinion:
    """What one detector holds to be true, how surely, and why; without an advice, the cause's own is meant."""

    verdict: str
    cause: str
    confidence: float
    evidence: tuple[str, ...] = ()
    advice: str = ""
