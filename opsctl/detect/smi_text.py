"""nvidia-smi's other outputs to records: the table of any driver, process lists, -q, dmon, one-sentence errors.

Pure: it parses text and runs nothing.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from opsctl.detect import smi
from opsctl.records.events import GpuProcess, GpuSample

MAX_DIGITS = 10
MAX_ROW = 1000
_NAME_ROW = re.compile(
    r"^\|\s{1,12}(\d{1,4})\s{1,12}(\S.*?)\s{1,12}(?:On|Off|N/A)?\s{0,12}\|\s{1,12}([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s"
)
_MEMORY = re.compile(r"(\d{1,9})\s?Mi?B\s{0,4}/\s{0,4}(\d{1,9})\s?Mi?B")
_POWER = re.compile(r"(\d{1,6})\s?W\s{0,4}/\s{0,4}(\d{1,6})\s?W")
_TEMPERATURE = re.compile(r"\b(\d+)C\b")
_UTILIZATION = re.compile(r"(\d{1,3})%\s{1,12}(?:Default|E\.|Exclusive|Prohibited)")
_PROCESS_ROW = re.compile(
    r"^\|\s{1,12}(\d{1,4})\s{1,12}(?:(?:N/A|\d+)\s{1,12}(?:N/A|\d+)\s{1,12})?(\d{1,10})\s{1,12}(?:[CGM+]+)\s{1,12}(.+?)\s{1,12}(\d+)\s?Mi?B\s{0,12}\|"
)
_LIST_ROW = re.compile(r"^GPU (\d{1,4}): (.+?) \(UUID: (GPU-\S+)\)")
_NO_PROCESSES = re.compile(r"(?i)no running (?:compute )?processes")
_SENTENCE = re.compile(
    r"(?i)nvidia-smi has failed|failed to initialize nvml|unable to determine the device handle|no devices were found|"
    r"gpu is lost|not a valid field|command not found|driver/library|timed? ?out|couldn't communicate|requires reset|"
    r"^unknown error|insufficient permissions|^killed|segmentation fault|no such file"
)
_TABLE_HEAD = re.compile(r"^\|\s{1,3}NVIDIA-SMI \d")
_DMON_HEAD = re.compile(r"^#\s{0,4}(?:Date\s{1,12})?(?:Time\s{1,12})?gpu\s")
_Q_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_Q_REASONS = {
    "SW Power Cap": 0x04,
    "HW Slowdown": 0x08,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
}
_DMON = {
    "pwr": "power_w",
    "gtemp": "temperature_c",
    "sm": "utilization_pct",
    "pclk": "clock_mhz",
    "fb": "used_mib",
}


@dataclass(frozen=True)
class Answer:
    """What one call of nvidia-smi told; `processes` is None where it did not say which there are."""

    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    problem: str = ""
    time: float | None = None


def series(text: str, every_s: float) -> tuple[Answer, ...]:
    """The answers in a text, oldest first, each with its time: several tables, or the rounds of dmon, else one.

    Where they name no time, or not all of them, `every_s` lies between two tables, a second between rounds of dmon.
    """
    rows = [_tidy(row) for row in text.splitlines() if row.strip()]
    begins = [index for index, row in enumerate(rows) if _TABLE_HEAD.search(row)]
    rounds = _dmon(rows)
    if rounds:
        return _timed([replace(one, processes=_processes(rows)) for one in rounds], 1.0)
    if len(begins) < 2:
        return (parse(text),)
    pieces = ["\n".join(rows[begin:end]) for begin, end in itertools.pairwise((0, *begins[1:], len(rows)))]
    dates = [_moment(row, "%a %b %d %H:%M:%S %Y") for row in rows]
    times = [time for time in dates if time is not None]
    told = times if len(times) == len(pieces) else [None] * len(pieces)
    return _timed([replace(parse(piece), time=time) for piece, time in zip(pieces, told)], every_s)  # noqa: B905 - equal


def _timed(answers: list[Answer], every_s: float) -> tuple[Answer, ...]:
    if all(answer.time is not None for answer in answers):
        return tuple(answers)
    return tuple(replace(answer, time=index * every_s) for index, answer in enumerate(answers))


def _moment(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text.strip(), form).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def parse(text: str) -> Answer:
    """Whatever nvidia-smi printed; an empty text means that it did not answer.

    >>> parse("Failed to initialize NVML: Unknown Error").problem
    'Failed to initialize NVML: Unknown Error'
    """
    rows = [_tidy(row) for row in text.splitlines() if row.strip()]
    if not rows:
        return Answer(problem=smi.NO_ANSWER)
    problem = next((row.strip() for row in rows if _SENTENCE.search(row) and not row.startswith("|")), "")
    rounds = _dmon(rows)
    gpus = (
        _table(rows) or (rounds[-1].gpus if rounds else ()) or _query(rows) or _listed(rows) or smi.parse_csv(text)[0]
    )
    return Answer(gpus, _processes(rows), problem)


def _tidy(row: str) -> str:
    """At most so much of a row, and the columns of a table one blank apart."""
    return " ".join(row[:MAX_ROW].split()) if row.startswith("|") else row.rstrip()[:MAX_ROW]


def _table(rows: list[str]) -> tuple[GpuSample, ...]:
    found: list[GpuSample] = []
    for row in rows:
        name = _NAME_ROW.match(row)
        if name:
            found.append(GpuSample(int(name.group(1)), name=name.group(2), bus_id=name.group(3)))
        elif found and row.startswith("|") and (_MEMORY.search(row) or "ERR!" in row):
            found[-1] = _numbers(found[-1], row)
    return tuple(found)


def _numbers(gpu: GpuSample, row: str) -> GpuSample:
    memory, power = _MEMORY.search(row), _POWER.search(row)
    heat, busy = _TEMPERATURE.search(row), _UTILIZATION.search(row)
    return replace(
        gpu,
        used_mib=float(memory.group(1)) if memory else None,
        total_mib=float(memory.group(2)) if memory else None,
        power_w=float(power.group(1)) if power else None,
        power_limit_w=float(power.group(2)) if power else None,
        temperature_c=float(heat.group(1)) if heat else None,
        utilization_pct=float(busy.group(1)) if busy else None,
        problem="ERR!" if row.count("ERR!") >= 2 else "",
    )


def _listed(rows: list[str]) -> tuple[GpuSample, ...]:
    found = [_LIST_ROW.match(row) for row in rows]
    return tuple(GpuSample(int(m.group(1)), name=m.group(2), uuid=m.group(3).rstrip(")")) for m in found if m)


def _dmon(rows: list[str]) -> list[Answer]:
    """`nvidia-smi dmon`: its rounds, each a row a GPU."""
    header = next((row for row in rows if _DMON_HEAD.match(row)), "")
    names = header.lower()[1:].split()
    found: list[dict[int, GpuSample]] = []
    times: list[float | None] = []
    for row in rows if header else []:
        cells = dict(zip(names, row.split()))  # noqa: B905 - the lengths are compared below
        index = cells.get("gpu", "")
        if len(row.split()) != len(names) or not _whole(index):
            continue
        if not found or int(index) in found[-1]:
            found.append({})
            times.append(_moment(f"{cells.get('date', '')} {cells.get('time', '')}", "%Y%m%d %H:%M:%S"))
        values = {_DMON[name]: smi.number(cell) for name, cell in cells.items() if name in _DMON}
        found[-1][int(index)] = GpuSample(int(index), **values)  # type: ignore[arg-type]
    return [Answer(tuple(gpus.values()), time=time) for gpus, time in zip(found, times)]  # noqa: B905 - equal lengths


def _query(rows: list[str]) -> tuple[GpuSample, ...]:
    """`nvidia-smi -q`: reasons for low clocks and what the hardware asks for."""
    found: list[GpuSample] = []
    section = ""
    for row in rows:
        head = _Q_GPU.match(row)
        if head:
            found.append(GpuSample(len(found), bus_id=head.group(1)))
        elif found:
            key, colon, value = (part.strip() for part in row.partition(":"))
            section = key if not colon else section
            found[-1] = _queried(found[-1], section, key, value)
    return tuple(found)


def _queried(gpu: GpuSample, section: str, key: str, value: str) -> GpuSample:
    if key in _Q_REASONS and value in ("Active", "Not Active"):
        bit = _Q_REASONS[key] if value == "Active" else 0
        return replace(gpu, throttle=(gpu.throttle or 0) | bit)
    if (key == "Pending" and value == "Yes") or (key.startswith("Pending Page") and value == "Yes"):
        return replace(
            gpu, maintenance="row remapping is pending" if "Remapp" in section else "page retirement is pending"
        )
    if key == "Remapping Failure Occurred" and value == "Yes":
        return replace(gpu, maintenance="row remapping failed")
    if key == "GPU Current Temp":
        return replace(gpu, temperature_c=smi.number(value))
    if key == "Gpu" and section == "Utilization":
        return replace(gpu, utilization_pct=smi.number(value))
    return gpu


def _processes(rows: list[str]) -> tuple[GpuProcess, ...] | None:
    found = [_PROCESS_ROW.match(row) for row in rows]
    listed = [GpuProcess(int(m.group(2)), m.group(3), float(m.group(4)), m.group(1)) for m in found if m]
    listed += _compute_apps(rows)
    if listed:
        return tuple(listed)
    empty = any(_NO_PROCESSES.search(row) for row in rows) or any(row.startswith("pid,") for row in rows)
    return () if empty else None


def _compute_apps(rows: list[str]) -> list[GpuProcess]:
    """`--query-compute-apps=...` with its header."""
    names: list[str] = []
    found: list[GpuProcess] = []
    for row in rows:
        cells = [cell.strip() for cell in row.split(",")]
        if any(cell.split(" ")[0] == "pid" for cell in cells):
            names = [cell.split(" ")[0] for cell in cells]
        elif names and len(cells) == len(names):
            found.append(_app(dict(zip(names, cells))))  # noqa: B905 - equal lengths
    return [app for app in found if app.pid]


def _app(cells: dict[str, str]) -> GpuProcess:
    pid = cells.get("pid", "")
    name = cells.get("process_name") or cells.get("name", "")
    used = cells.get("used_gpu_memory") or cells.get("used_memory", "")
    gpu = cells.get("gpu_uuid") or cells.get("gpu_bus_id") or cells.get("index", "")
    return GpuProcess(int(pid) if _whole(pid) else 0, name, smi.number(used), gpu)


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
