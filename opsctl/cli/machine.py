"""The GPUs and processes of a run as rows of styled text. Pure; prints nothing."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from opsctl.cli.frame import LABEL, Frame
from opsctl.cli.gauges import UNKNOWN, clean, clock, gib
from opsctl.ops.watch_state import WatchState
from opsctl.records.events import GpuSample

NO_SMI = "no nvidia-smi on this target: GPU numbers are not shown"
_OLD_S = 15.0  # a sample older than this is no longer how things are


def heading(state: WatchState, frame: Frame) -> str:
    """What the section is called: the GPUs' number and model, and when they were seen if that is long ago."""
    sample = state.samples[-1] if state.samples else None
    if sample is None:
        return "machine"
    names = sorted({clean(gpu.name) for gpu in sample.gpus if gpu.name})
    title = f"{len(sample.gpus)} x {' and '.join(names)}" if names else "machine"
    is_old = frame.now - sample.time > _OLD_S
    return f"{title}, as of {clock(sample.time)}" if is_old else title


def gpus(state: WatchState, frame: Frame, max_rows: int) -> list[Text]:
    """A head and a row a GPU, or one row that says why there is none."""
    sample = state.samples[-1] if state.samples else None
    if sample is None:
        return [Text("no sample yet", LABEL)]
    if not sample.gpus:
        return [_without_gpus(sample.gpu_problem, frame)]
    columns = _Columns.of(frame.width)
    notes = [frame.cut(Text(clean(sample.gpu_problem), "yellow"))] if sample.gpu_problem else []
    room = max(1, max_rows - 1 - len(notes))
    shown = sample.gpus if len(sample.gpus) <= room else sample.gpus[: room - 1]
    if hidden := len(sample.gpus) - len(shown):
        notes.append(Text(f"     and {hidden} more", LABEL))
    return [columns.head(frame), *(_gpu(state, frame, gpu, columns) for gpu in shown), *notes]


def _without_gpus(problem: str, frame: Frame) -> Text:
    if not problem or "no nvidia-smi" in problem:
        return frame.cut(Text(NO_SMI, LABEL))
    return frame.cut(Text(f"GPU numbers are not shown: {clean(problem)}", "yellow"))


@dataclass(frozen=True)
class _Columns:
    """Widths of the sparklines beside memory, utilisation and power."""

    memory: int
    utilization: int
    power: int

    @classmethod
    def of(cls, width: int) -> _Columns:
        spare = max(0, width - 50)  # what index, numbers, temperature and gaps take
        return cls(memory=min(60, spare - 2 * (spare // 3)), utilization=min(60, spare // 3), power=min(60, spare // 3))

    def head(self, frame: Frame) -> Text:
        load = "utilisation" if self.utilization > 3 else "util"
        parts = (f"{'memory':<{17 + self.memory}}", f"{load:<{8 + self.utilization}}", "power")
        return frame.cut(Text("gpu  " + "".join(parts), LABEL))


def _gpu(state: WatchState, frame: Frame, gpu: GpuSample, columns: _Columns) -> Text:
    if gpu.problem:
        return frame.cut(Text(f"{gpu.index:>3}  {clean(gpu.problem)}", "bold red"))
    past = [next((one for one in sample.gpus if one.index == gpu.index), None) for sample in state.samples]
    memory = frame.swing([one.used_mib if one else None for one in past], columns.memory, (gpu.total_mib or 0) / 8)
    load = frame.spark([one.utilization_pct if one else None for one in past], columns.utilization, 0, 100)
    power = frame.spark([one.power_w if one else None for one in past], columns.power, 0, gpu.power_limit_w)
    row = Text.assemble(f"{gpu.index:>3}  ", f"{_memory(gpu):<14} ", (memory, "cyan"), "  ")
    row.append(f"{_number(gpu.utilization_pct):>3} % ").append(load, "green").append("  ")
    row.append(f"{_power(gpu):<11} ").append(power, "magenta").append(f"  {_number(gpu.temperature_c):>3} C")
    return frame.cut(row)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _memory(gpu: GpuSample) -> str:
    if gpu.used_mib is None:
        return UNKNOWN
    used = f"{gpu.used_mib / 1024:.1f}"
    return f"{used} / {gpu.total_mib / 1024:.0f} GiB" if gpu.total_mib else f"{used} GiB"


def _power(gpu: GpuSample) -> str:
    if gpu.power_w is None:
        return UNKNOWN
    return f"{gpu.power_w:.0f} / {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else f"{gpu.power_w:.0f} W"


def cores_used(state: WatchState) -> list[float | None]:
    """CPU cores that the run's processes kept busy, between each two samples."""
    out: list[float | None] = []
    for before, after in zip(state.samples, state.samples[1:], strict=False):
        known = before.process is not None and after.process is not None and after.time > before.time
        spent_s = after.process.cpu_s - before.process.cpu_s if known and after.process and before.process else None
        out.append(max(0.0, spent_s / (after.time - before.time)) if spent_s is not None else None)
    return out


def job(state: WatchState, frame: Frame) -> Text:
    """The run's processes: how many, how busy, how large, and the disk beside them."""
    sample = state.samples[-1] if state.samples else None
    if sample is None or sample.process is None:
        return Text.assemble(("job  ", LABEL), "no process seen" if sample else UNKNOWN)
    process, busy = sample.process, cores_used(state)
    sizes = [one.process.rss_mib if one.process else None for one in state.samples]
    width = min(30, max(0, (frame.width - 62) // 2))
    most = max(1.0, *(cores or 0.0 for cores in busy)) if busy else None
    left = Text.assemble(("job  ", LABEL), _processes(process.num_processes, process.states), ("  cpu ", LABEL))
    left.append(f"{busy[-1]:.1f} cores " if busy and busy[-1] is not None else f"{UNKNOWN} ")
    left.append(frame.spark(busy, min(width, len(busy)), 0, most), "green").append("  rss ", LABEL)
    left.append(f"{gib(process.rss_mib)} ").append(
        frame.swing(sizes, min(width, len(sizes)), process.rss_mib / 4), "cyan"
    )
    free = sample.disk_free_mib
    return frame.sides(left, Text(f"disk {gib(free)} free" if free is not None else "", LABEL))


def _processes(count: int, states: str) -> str:
    words = f"{count} process" if count == 1 else f"{count} processes"
    stopped = states.count("T")
    return f"{words}, {stopped} stopped" if stopped else words
