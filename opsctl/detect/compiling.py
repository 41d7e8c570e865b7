"""The fold that asks whether compiled code still runs compiled: torch's words and counters, memory's shape, speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.detect.context import Context, Opinion
from opsctl.detect.gpu import Gpu
from opsctl.detect.gpus import Gpus
from opsctl.detect.memory import FLAT_SHARE, Sawtooth
from opsctl.detect.progress import Progress
from opsctl.detect.words import Hit, Words

WARM_ROWS = 20
SLOW, SAME = 1.3, 1.15
USUAL_SWING = 1.3
BUSY_PCT = 90.0
STORM_PLACES, STORM_COUNT = 5, 12
PREFERENCE = ("recompile_limit", "suppress_errors", "flex_unfused", "graph_break")
RISES = 3
# what a cause means that was lost; the causes of these findings are words of the causes table
LOST = {
    **dict.fromkeys(("recompiled", "recompile_limit", "graph_break", "suppress_errors", "flex_unfused"), "compilation"),
    **dict.fromkeys(("memory_sawtooth", "cold_start"), "compilation"),
    **dict.fromkeys(("cudagraph_skipped", "cudagraph_rerecord"), "CUDA graphs"),
}
_LOST_BY = {"recompiles": "recompiled", "graph_breaks": "graph_break", "cudagraph_skips": "cudagraph_skipped"}
_COLD = ("fx_misses", "aot_misses", "fx_bypasses", "aot_bypasses", "compiler_starts")


@dataclass
class Compiling:
    """State of the fold: torch's counters, and how often each rose after warm-up; changed in place."""

    context: Context
    counters: dict[str, int] = field(default_factory=dict)
    rises: dict[str, int] = field(default_factory=dict)
    rose_at: dict[str, int] = field(default_factory=dict)

    def count(self, counters: dict[str, int], rows: int) -> tuple[tuple[str, str], ...]:
        """Fold in the counters of one metrics row; returns what they say was lost: causes with their evidence."""
        lost = [("cold_start", text)] if (text := self._cold(counters)) else []
        for name, value in counters.items():
            before = self.counters.get(name, value)
            self.counters[name] = value
            if value > before and rows >= WARM_ROWS:
                self.rises[name] = self.rises.get(name, 0) + 1
                self.rose_at[name] = rows
                if name in _LOST_BY:
                    lost.append((_LOST_BY[name], f"torch's own counter {name} rose from {before} to {value}"))
        return tuple(lost)

    def _cold(self, counters: dict[str, int]) -> str:
        """What was compiled although the cache should have had it, "" for nothing."""
        if not self.context.warm_expected:
            return ""
        missed = [f"{name} {counters[name]}" for name in _COLD if counters.get(name, 0) > self.counters.get(name, 0)]
        return f"the run was expected to start warm: {', '.join(missed)}" if missed else ""


def opinion(compiling: Compiling, words: Words, progress: Progress, gpus: Gpus) -> Opinion | None:
    """Eager fallback or lost CUDA graphs, with confidence and evidence; None where compilation seems whole."""
    is_known = progress.has_stepped or (progress.is_unseen and bool(gpus.gpus))
    if compiling.context.compile_expected is False or not is_known:
        return None
    evidence = _Evidence(compiling, words, progress, gpus)
    return evidence.of_words() or evidence.of_memory() or evidence.of_counters() or evidence.of_graphs()


@dataclass(frozen=True)
class _Evidence:
    compiling: Compiling
    words: Words
    progress: Progress
    gpus: Gpus

    # --- words, weighed against speed ------------------------------------------------------------

    def of_words(self) -> Opinion | None:
        hits = [hit for hit in self.words.of_role("eager") if self._is_many(hit)]
        if not hits:
            return None
        hit = min(hits, key=lambda hit: PREFERENCE.index(hit.cause))
        if self._is_cleared(self.words.first[hit.name]):
            return None
        slow, sawtooth = self._slow_text(), self._sawtooth()
        told = [hit.text, *([slow] if slow else []), *([sawtooth[1]] if sawtooth else [])]
        confidence = 0.65 + 0.2 * bool(slow) + 0.1 * bool(sawtooth)
        return Opinion("eager_fallback", hit.cause, confidence, tuple(told), hit.advice)

    def _is_many(self, hit: Hit) -> bool:
        """One graph break is nothing; the other words come once and mean it."""
        if hit.cause != "graph_break":
            return True
        many = len(self.words.places) >= STORM_PLACES or self.words.counts[hit.name] >= STORM_COUNT
        return many or (self.progress.is_at_speed() is False and bool(self._slow_text()))

    def _is_cleared(self, hit: Hit) -> bool:
        """Whether steps come as quickly as before the words, or as in a good run."""
        at_speed = self.progress.is_at_speed()
        if at_speed is not None:
            return at_speed
        warm_before = hit.rows >= WARM_ROWS or (bool(self.progress.context.typical_step_s) and hit.rows >= 2)
        ratio = self.progress.slowdown()
        return warm_before and ratio is not None and ratio <= SAME and self._sawtooth() is None

    def _slow_text(self) -> str:
        return self.progress.slow_text(SLOW)

    # --- memory's shape --------------------------------------------------------------------------

    def _sawtooth(self) -> tuple[Gpu, str] | None:
        for gpu in self.gpus.gpus.values():
            found = gpu.sawtooth()
            if found and not self._is_usual(found):
                return gpu, _told(gpu, found)
        return None

    def _is_usual(self, found: Sawtooth) -> bool:
        """Whether memory swung as far in a good run: batches of varying length, not a fallback."""
        swing = self.compiling.context.baseline.swing_mib
        return swing is not None and found.high_mib - found.low_mib <= USUAL_SWING * swing

    def _was_flat_in_good_run(self, gpu: Gpu) -> bool:
        good = self.compiling.context.baseline
        return good.swing_mib is not None and good.swing_mib <= FLAT_SHARE * (gpu.total_mib or good.used_mib or 0.0)

    def _waits_between(self, gpu: Gpu) -> bool:
        """Whether a GPU past its warm-up is not busy throughout, where no output is at hand to tell of its pace."""
        if self.progress.has_output or not self.progress.has_stepped:
            return False
        busy = gpu.utilizations()
        return bool(busy) and sum(busy) / len(busy) < BUSY_PCT

    def of_memory(self) -> Opinion | None:
        found = self._sawtooth()
        if found is None or self.progress.is_at_speed() or self.gpus.foreigners():
            return None
        gpu, told = found
        slow = self._slow_text()
        expected = self.compiling.context.compile_expected is True
        was_flat = gpu.was_flat or self._was_flat_in_good_run(gpu)
        if slow:  # what swung from the start tells only where somebody knows how quick it should be
            is_telling = was_flat or (expected and self.progress.knows_pace)
        else:
            is_unknown = expected and self.progress.slowdown() is None
            is_telling = is_unknown and (was_flat or self._waits_between(gpu))
        if not is_telling:
            return None
        confidence = 0.45 + 0.25 * bool(slow) + 0.15 * was_flat + 0.1 * expected
        return Opinion("eager_fallback", "memory_sawtooth", min(confidence, 0.9), (told, *([slow] if slow else [])))

    # --- counters and CUDA graphs ----------------------------------------------------------------

    def of_counters(self) -> Opinion | None:
        rows = self.progress.num_rows
        for name, cause, verdict in (
            ("graph_breaks", "graph_break", "eager_fallback"),
            ("recompiles", "recompile_limit", "degraded"),
            ("cudagraph_skips", "cudagraph_skipped", "degraded"),
        ):
            times = self.compiling.rises.get(name, 0)
            if times >= RISES and rows - self.compiling.rose_at[name] <= WARM_ROWS:
                told = (
                    f"torch's own counter {name} rose {times} times after warm-up, to {self.compiling.counters[name]}"
                )
                return Opinion(verdict, cause, 0.9, (told,))
        return None

    def of_graphs(self) -> Opinion | None:
        if self.compiling.context.cudagraphs_expected is False or self.progress.is_at_speed():
            return None
        hits = self.words.of_role("slow")
        if not hits:
            return None
        hit = max(hits, key=lambda hit: hit.cause == "cudagraph_rerecord")
        slow = self._slow_text()
        return Opinion("degraded", hit.cause, 0.7 + 0.2 * bool(slow), (hit.text, *([slow] if slow else [])), hit.advice)


def _told(gpu: Gpu, found: Sawtooth) -> str:
    before = ", flat before" if gpu.was_flat else ""
    return (
        f"GPU {gpu.index}: memory swings {found.moves} times in {found.span_s:.0f} s "
        f"between {found.low_mib / 1024:.1f} and {found.high_mib / 1024:.1f} GiB{before}"
    )
