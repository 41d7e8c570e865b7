"""What nvidia-smi prints, in the forms of all its versions and moods, to GpuSample records.

Pure: it parses text and runs nothing. A cell that is missing or sick is unknown (None), never zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from opsctl.records.events import GpuSample

# What to ask for; a driver that refuses a name says so in a sentence (see `refused_column`).
COLUMNS = (
    "timestamp",
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks.sm",
    "clocks_throttle_reasons.active",
)
NO_ANSWER = "nvidia-smi does not answer"
POLL_SPREAD_S = 1.0
MAX_INDEX = 4096
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 16)  # GPUs in one machine
ALIKE = 0.02  # memory of one GPU in two polls that follow one another
MAX_ROW = 2000

_FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci.bus_id": "bus_id",
    "gpu_bus_id": "bus_id",
    "name": "name",
    "gpu_name": "name",
    "utilization.gpu": "utilization_pct",
    "memory.used": "used_mib",
    "memory.total": "total_mib",
    "power.draw": "power_w",
    "power.draw.instant": "power_w",
    "power.draw.average": "power_w",
    "power.limit": "power_limit_w",
    "enforced.power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "clocks.sm": "clock_mhz",
    "clocks.current.sm": "clock_mhz",
    "clocks.gr": "clock_mhz",
    "clocks.current.graphics": "clock_mhz",
    "clocks_throttle_reasons.active": "throttle",
    "clocks_event_reasons.active": "throttle",
}
_TEXT_FIELDS = {"uuid", "name", "bus_id"}
_REASONS = {  # columns of their own in some queries: the bits of NVML's mask
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_MAINTENANCE = {
    "remapped_rows.pending": "row remapping is pending",
    "remapped_rows.failure": "row remapping failed",
    "retired_pages.pending": "page retirement is pending",
}
_KNOWN = {*_FIELDS, *_MAINTENANCE, "timestamp", "fan.speed", "pstate", "driver_version", "serial", "pci.bus"}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_SICK = re.compile(r"\[?(?:GPU is lost|GPU requires reset|Unknown Error|ERR!|Reset Required)\]?", re.IGNORECASE)
_UNITS = {"GiB": 1024.0, "GB": 1024.0, "KiB": 1 / 1024, "B": 1 / 1024**2}
_PROBLEM = re.compile(
    r"(?i)nvidia-smi has failed|failed to (?:initialize|properly shut down) nvml|unable to determine the device handle|"
    r"no devices were found|gpu is lost|nvml: |not a valid field|unknown error|insufficient permissions|"
    r"command not found|no such file|permission denied|driver/library|timed? ?out|killed|segmentation fault|"
    r"gpu requires reset|no running processes|couldn't communicate|unable to"
)
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')


@dataclass(frozen=True)
class Poll:
    """One answer of nvidia-smi; `time` is None where it named none; `problem` says what was no data."""

    time: float | None
    gpus: tuple[GpuSample, ...] = ()
    problem: str = ""


def parse_csv(text: str, columns: Sequence[str] = ()) -> tuple[tuple[GpuSample, ...], str]:
    """The GPUs of one poll and, where a row was no data, the sentence in its place.

    `columns` names the cells where the text has no header. Of a GPU that comes twice the newest row counts.

    >>> parse_csv("0, 98 %, [N/A]", ("index", "utilization.gpu", "power.draw"))[0][0].utilization_pct
    98.0
    """
    found: dict[tuple[int, str], GpuSample] = {}
    problem = ""
    for poll in polls(text, columns):
        found.update({(gpu.index, gpu.uuid): gpu for gpu in poll.gpus})
        problem = poll.problem or problem
    return tuple(found.values()), problem if found or text.strip() else NO_ANSWER


def refused_column(text: str) -> str | None:
    """The column this driver does not know, from its own sentence; None where it refused none."""
    match = _REFUSED.search(text)
    return match.group(1) if match else None


def polls(text: str, columns: Sequence[str] = ()) -> Iterator[Poll]:
    """One answer after the other: a header, a new timestamp or a GPU seen before begins the next."""
    names = [_column(name) for name in columns]
    time: float | None = None
    gpus: list[GpuSample] = []
    places = _Places(text, names)
    for row in filter(None, (line.strip()[:MAX_ROW] for line in text.splitlines())):
        cells = [cell.strip() for cell in row.split(",")]
        header = _header(cells)
        if header or not names or not _is_data(row, cells, names):
            is_problem = not header and bool(_PROBLEM.search(row))
            if is_problem or (header and gpus):
                yield Poll(time, tuple(gpus), row if is_problem else "")
                gpus = []
            names = header or names
            continue
        stamp = _stamp(cells, names)
        if gpus and _apart(stamp, time):
            yield Poll(time, tuple(gpus))
            gpus = []
        sample = _sample(cells, names, places.of(cells, names, len(gpus)))
        if any(gpu.index == sample.index for gpu in gpus):
            yield Poll(time, tuple(gpus))
            gpus = []
        time = stamp
        gpus.append(sample)
    if gpus:
        yield Poll(time, tuple(gpus))


class _Places:
    """Which GPU a row without an index is of: told by its uuid or address, by its place in a poll, or by likeness."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._text, self._names = text, names
        self._known: dict[str, int] = {}
        self._turn: int | None = None
        self._num_rows = 0

    def of(self, cells: list[str], names: list[str], place: int) -> int:
        """The number of the GPU of this row, the next one, which is at `place` in its poll."""
        told = next((cell for name, cell in zip(names, cells) if _FIELDS.get(name) in ("uuid", "bus_id")), "")  # noqa: B905
        if told:
            return self._known.setdefault(told, len(self._known))
        if "index" in names or "timestamp" in names:
            return place
        self._turn = _turn(self._text, self._names) if self._turn is None else self._turn
        self._num_rows += 1
        return (self._num_rows - 1) % self._turn if self._turn else place


def _turn(text: str, names: Sequence[str]) -> int:
    """How many GPUs take turns in rows that name none and follow one header: as many as make each one's memory steady.

    0 for rows so few that they may be one poll.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    names, rows = (_header(rows[0]), rows[1:]) if rows and _header(rows[0]) else (names, rows)
    if len(rows) <= COUNTS[-1] or "memory.used" not in names or any(_header(cells) for cells in rows):
        return 0
    at = list(names).index("memory.used")
    used = [number(cells[at]) if len(cells) > at else None for cells in rows]
    known = [one or 0.0 for one in used]
    periods = (turn for turn in COUNTS if _repeats(known, turn))
    return next(periods, 1)


def _repeats(used: list[float], turn: int) -> bool:
    return all(abs(after - before) <= ALIKE * max(before, after) for before, after in zip(used, used[turn:]))  # noqa: B905


def _apart(stamp: float | None, time: float | None) -> bool:
    """Eight GPUs of one poll carry times some milliseconds apart."""
    return stamp is not None and time is not None and abs(stamp - time) > POLL_SPREAD_S


def _column(name: str) -> str:
    return name.split("[")[0].strip()


def _header(cells: list[str]) -> list[str]:
    names = [_column(cell) for cell in cells]
    known = sum(name in _KNOWN or "_reasons." in name or name.startswith(("clocks.", "ecc.")) for name in names)
    return names if known * 2 > len(names) else []


def _is_data(row: str, cells: list[str], names: list[str]) -> bool:
    """A row of as many cells as columns, or one less or more that is no sentence."""
    if len(names) == 1:
        return bool(_NUMBER.match(cells[0]))
    return len(cells) == len(names) or (abs(len(cells) - len(names)) == 1 and not _PROBLEM.search(row))


def _stamp(cells: list[str], names: list[str]) -> float | None:
    if "timestamp" not in names:
        return None
    text = cells[names.index("timestamp")].replace("/", "-")
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=timezone.utc).timestamp() + _fraction(text[19:])
    except ValueError:
        return None  # a time this cell does not hold is unknown


def _fraction(text: str) -> float:
    match = re.match(r"\.\d+", text)
    return float(match.group()) if match else 0.0


def _sample(cells: list[str], names: list[str], position: int) -> GpuSample:
    values: dict[str, str] = {}
    for name, cell in zip(names, cells):  # noqa: B905 - a row may lack its last cells; strict needs no such row
        field = _FIELDS.get(name)
        if field:
            values[field] = cell
    sick = [cell for cell in values.values() if _SICK.fullmatch(cell)]
    numbers = {field: number(cell) for field, cell in values.items() if field not in _TEXT_FIELDS}
    index = numbers.pop("index", None)
    throttle = _mask(values.get("throttle", ""))
    throttle = _active_reasons(cells, names) if throttle is None else throttle
    numbers.pop("throttle", None)
    words = {field: _word(values[field]) for field in _TEXT_FIELDS & values.keys()}
    problem = sick[0].strip("[]") if len(sick) * 2 > len(numbers) or _is_lost(sick) else ""
    index = position if index is None or index >= MAX_INDEX else int(index)
    asks = maintenance(dict(zip(names, cells)))  # noqa: B905 - as above
    return GpuSample(index, **words, **numbers, throttle=throttle, problem=problem, maintenance=asks)  # type: ignore[arg-type]


def _active_reasons(cells: list[str], names: list[str]) -> int | None:
    """The mask from columns such as clocks_event_reasons.hw_thermal_slowdown, each Active or Not Active."""
    told = {name.rpartition(".")[2]: cell for name, cell in zip(names, cells) if "_reasons." in name}  # noqa: B905
    known = {bit: told[name] for name, bit in _REASONS.items() if "Active" in told.get(name, "")}
    return sum(bit for bit, cell in known.items() if cell == "Active") if known else None


def maintenance(cells: dict[str, str]) -> str:
    """What the hardware asks for, from columns about remapped rows and retired pages; "" for nothing."""
    asked = [text for name, text in _MAINTENANCE.items() if cells.get(name, "").lower() in ("yes", "1", "true")]
    return ", ".join(asked)


def _is_lost(sick: list[str]) -> bool:
    return any("lost" in cell.lower() or "reset" in cell.lower() for cell in sick)


def _word(cell: str) -> str:
    return "" if cell.startswith("[") or cell == "N/A" else cell


def number(cell: str) -> float | None:
    """The number in one cell, sizes in MiB; None for `[N/A]`, an error or no number at all.

    >>> number("61230 MiB"), number("[Unknown Error]"), number("3109MB")
    (61230.0, None, 3109.0)
    """
    match = _NUMBER.match(cell)
    if not match:
        return None
    return float(match.group()) * _UNITS.get(cell[match.end() :].strip(), 1.0)


def _mask(cell: str) -> int | None:
    try:
        return int(cell, 16 if cell.lower().startswith("0x") else 10)
    except ValueError:
        return None  # Not Active, N/A, an error: no mask
