"""One GPU's history: how its memory moves, whether it works, spins, idles or is hot. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from opsctl.detect import memory
from opsctl.detect.memory import Growth, Sawtooth
from opsctl.records.events import GpuSample

SPIN_SAMPLES = 3
SPIN_UTILIZATION_PCT = 98.0
SPIN_POWER_SHARE = 0.45  # of what this GPU drew when it worked
SPIN_LIMIT_SHARE = 0.35  # of its power limit, where it was never seen working
WORK_SAMPLES = 5  # that make sure what steps take
IDLE_UTILIZATION_PCT = 10.0
HOT_C, COOL_CLOCK_SHARE = 83.0, 0.75
THERMAL_BITS = 0x20 | 0x40
SLOWDOWN_BITS = 0x08
BRAKE_BITS = 0x80
SPACING_S = 15.0
WINDOW_S, WINDOW_SAMPLES = 120.0, 24
IDLE_SPAN_S = 30.0

# Watts of well-known boards, for drivers that name no limit. First name that fits.
_BOARD_W = (
    ("H100 PCIe", 350.0), ("H100 NVL", 400.0), ("H100", 700.0), ("H200", 700.0), ("H20", 500.0), ("GH200", 900.0),
    ("B200", 1000.0), ("B300", 1200.0), ("GB200", 1200.0), ("A100-PCIE", 250.0), ("A100", 400.0), ("A800", 400.0),
    ("H800", 700.0), ("L40", 300.0), ("L4", 72.0), ("A10", 150.0), ("A30", 165.0), ("A40", 300.0), ("A6000", 300.0),
    ("RTX 6000", 300.0), ("V100", 300.0), ("T4", 70.0), ("P100", 250.0), ("5090", 575.0), ("4090", 450.0),
    ("3090", 350.0), ("2080 Ti", 250.0), ("1080 Ti", 250.0), ("TITAN", 250.0),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """What one GPU was like at one moment."""

    time: float
    util: float | None
    used: float | None
    power: float | None
    temperature: float | None
    clock: float | None
    throttle: int | None
    in_train: bool = True  # not while evaluating, saving or compiling


@dataclass
class Gpu:
    """One GPU's history: the newest points in full, older memory levels thinned out."""

    index: int
    name: str = ""
    bus_id: str = ""
    total_mib: float | None = None
    limit_w: float | None = None
    problem: str = ""
    maintenance: str = ""
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=240))
    slow: deque[tuple[float, float, float]] = field(
        default_factory=lambda: deque(maxlen=240)
    )  # MiB of each span: least, most
    peak_w: float = 0.0
    work_w: float = 0.0  # the most it drew while steps came, and in how many samples that was seen
    num_at_work: int = 0
    peak_clock: float = 0.0
    was_flat: bool = False
    missing: int = 0
    newest_window: list[Point] | None = None  # as long as no point came after it

    def observe(self, sample: GpuSample, time: float, *, in_train: bool, steps_come: bool = False) -> None:
        """Fold one sample of this GPU in."""
        self.name, self.bus_id = sample.name or self.name, sample.bus_id or self.bus_id
        self.total_mib = sample.total_mib or self.total_mib
        self.limit_w = sample.power_limit_w or self.limit_w
        self.problem, self.missing = sample.problem, 0
        self.maintenance = sample.maintenance or self.maintenance
        self.newest_window = None
        self.points.append(_point(sample, time, in_train))
        self.peak_w = max(self.peak_w, sample.power_w or 0.0)
        if steps_come and sample.power_w:
            self.work_w, self.num_at_work = max(self.work_w, sample.power_w), self.num_at_work + 1
        self.peak_clock = max(self.peak_clock, sample.clock_mhz or 0.0)
        if sample.used_mib is not None and in_train:
            self._thin(sample.used_mib, time)

    def _thin(self, used_mib: float, time: float) -> None:
        if self.slow and time - self.slow[-1][0] < SPACING_S:
            began, least, most = self.slow[-1]
            self.slow[-1] = (began, min(least, used_mib), max(most, used_mib))
        else:
            self.slow.append((time, used_mib, used_mib))

    @property
    def used_mib(self) -> float:
        """Memory in use at the newest sample, 0 where it is not known."""
        return (self.points[-1].used or 0.0) if self.points else 0.0

    def newest(self, number: int) -> list[Point]:
        """The newest points, at most `number`."""
        return list(self.points)[-number:]

    def newest_for(self, seconds: float, at_least: int) -> list[Point]:
        """The newest points that span so many seconds and are so many; none where they do not yet."""
        found: list[Point] = []
        for point in reversed(self.points):
            found.append(point)
            if len(found) >= at_least and found[0].time - point.time >= seconds:
                return found
        return []

    def window(self) -> list[Point]:
        """The points of the newest two minutes, or two dozen where they come seldom; with known memory."""
        if self.newest_window is None:
            self.newest_window = self._window()
        return self.newest_window

    def _window(self) -> list[Point]:
        points = [point for point in self.points if point.used is not None and point.in_train]
        recent = [point for point in points if points[-1].time - point.time <= WINDOW_S]
        return recent if len(recent) >= WINDOW_SAMPLES else points[-WINDOW_SAMPLES:]

    def utilizations(self) -> list[float]:
        """Utilisation in the window, where it is known and long enough to mean something."""
        known = [point for point in self.window() if point.util is not None]
        span = known[-1].time - known[0].time if known else 0.0
        return [point.util or 0.0 for point in known] if span >= IDLE_SPAN_S else []

    def sawtooth(self) -> Sawtooth | None:
        """How this GPU's memory swings, in the whole window or since its middle, when it began there."""
        points = self.window()
        for newest in (points, points[len(points) // 2 :]):
            times, used = [point.time for point in newest], [point.used or 0.0 for point in newest]
            found = memory.sawtooth(times, used, self.total_mib)
            if found:
                return found
        return None

    def growth(self, span_s: float) -> Growth | None:
        """How this GPU's memory rises, seen for at least so long."""
        times, least = [span[0] for span in self.slow], [span[1] for span in self.slow]
        most = [span[2] for span in self.slow]
        return memory.growth(times, least, self.total_mib, most=most, span_s=span_s)

    def is_spinning(self, number: int = SPIN_SAMPLES) -> bool:
        """Full utilisation at low power and unmoved memory, in `number` samples or more: a kernel that only waits."""
        points = self.newest(SPIN_SAMPLES)
        if len(points) < number or any(point.util is None or point.power is None for point in points):
            return False
        full = all((point.util or 0.0) >= SPIN_UTILIZATION_PCT for point in points)
        used = [point.used for point in points if point.used is not None]
        return (
            full and self._is_weak(max(point.power or 0.0 for point in points)) and (not used or memory.is_flat(used))
        )

    def has_worked(self) -> bool:
        """Whether it was ever seen to draw much more power than now."""
        return bool(self.points) and (self.points[-1].power or 0.0) <= SPIN_POWER_SHARE * self.peak_w

    @property
    def board_w(self) -> float | None:
        """The power it may draw, by its driver or its name; None where neither tells."""
        return self.limit_w or board_w(self.name)

    def _is_weak(self, power_w: float) -> bool:
        if self.num_at_work >= WORK_SAMPLES:
            return power_w <= SPIN_POWER_SHARE * self.work_w  # a small model never draws much
        board = self.board_w
        if board is not None and power_w <= SPIN_LIMIT_SHARE * board:
            return True
        return self.peak_w > 0 and power_w <= SPIN_POWER_SHARE * self.peak_w

    def is_idle(self, number: int = SPIN_SAMPLES) -> bool:
        """Hardly any utilisation in the newest samples; unknown is not idle."""
        known = [point.util for point in self.newest(number) if point.util is not None]
        return len(known) >= min(number, 2) and max(known) <= IDLE_UTILIZATION_PCT

    @property
    def is_slowed_by_heat(self) -> bool:
        """Whether the newest sample says so."""
        return bool(self.points) and bool((self.points[-1].throttle or 0) & THERMAL_BITS)

    def heat(self) -> str:
        """Why this GPU runs slowly for its heat, "" where it does not."""
        points = self.newest(6)
        if len(points) < 2:
            return ""
        hot = [point for point in points if point.throttle is not None and point.throttle & THERMAL_BITS]
        warm = [point for point in points if (point.temperature or 0.0) >= HOT_C]
        slowed = [
            point for point in warm if (point.throttle or 0) & SLOWDOWN_BITS and not (point.throttle or 0) & BRAKE_BITS
        ]
        if 2 * len(hot) > len(points) or 2 * len(slowed) > len(points):
            return f"GPU {self.index}: lowers its clocks for heat, {points[-1].temperature or 0:.0f} C"
        known = any(point.throttle is not None for point in points)
        slow = [point for point in warm if point.clock and point.clock <= COOL_CLOCK_SHARE * self.peak_clock]
        if not known and 2 * len(slow) > len(points):
            clocks = f"{points[-1].clock:.0f} of {self.peak_clock:.0f} MHz"
            return f"GPU {self.index}: {points[-1].temperature or 0:.0f} C at {clocks}"
        return ""


def _point(sample: GpuSample, time: float, in_train: bool) -> Point:
    return Point(
        time,
        sample.utilization_pct,
        sample.used_mib,
        sample.power_w,
        sample.temperature_c,
        sample.clock_mhz,
        sample.throttle,
        in_train,
    )


def board_w(name: str) -> float | None:
    """The power a board of this name may draw, None where it is not known."""
    return next((watts for part, watts in _BOARD_W if part in name), None)
