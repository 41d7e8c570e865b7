"""The fold over what the log says: rule hits and exceptions, which of them the run outlived, and the root of an end."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

from opsctl.detect.exceptions import Trace
from opsctl.detect.rows import LOGGED, Row
from opsctl.detect.rules import Rule, advice

NEAR_ROWS = 10  # progress rows after an error that other ranks or a buffer may still bring
MENTION_DISCOUNT = 30  # below an exception, whatever its words
PASSING_DISCOUNT = 15
EXCEPTION_WEIGHT = 33  # as a timeout's or a lost peer's: the earliest of them is the cause
CACHE_WEIGHT = 62
ROOT_STATUS_WEIGHT = 5  # above the SIGTERM that torch sends to all other ranks
MAX_TEXT, ELLIPSIS = 400, " ..."
SKIP_MIN, SKIP_SHARE = 4, 0.4
OVERFLOW_MANY = 24
FAILURES = frozenset("EFC")

_PASSED_ON = frozenset({"dataset_exception", "pin_memory_thread_died"})
_WARNING = re.compile(r"\b\w*Warning: ")
_PLACE = re.compile(r"user code at (\S+)|(?:from|in) (\S+\.py:\d+)")
_SCALE = re.compile(
    r"(?:loss scale:|reducing (?:loss scale )?to|loss scaler?(?: \d+)? (?:to|is|=|:)|setting loss scale to:?)"
    r"\s{0,12}(\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
)
_CACHE_FRAME = re.compile(
    r"triton/runtime/cache\.py|torch/_inductor/(?:codecache|runtime/.*cache)|torchinductor_|/\.triton/"
)
_CACHE_KIND = re.compile(
    r"(?:^|\.)(?:OSError|File\w+Error|EOFError|JSONDecodeError|UnpicklingError|PermissionError|BlockingIOError|Timeout)$"
)
_OUTSIDE = re.compile(r"urllib3|requests/|httpx|httpcore|wandb|mlflow|comet|neptune|clearml|aiohttp|socket\.py")


@dataclass(frozen=True)
class Hit:
    """One wording in the log; `rows` and `steps` count the progress made before it."""

    name: str
    role: str
    cause: str
    weight: int
    severity: str
    advice: str
    time: float
    rows: int
    steps: int
    text: str
    start: int
    end: int
    rank: int | None = None
    where: str = ""
    thread: str = ""
    is_mention: bool = False
    is_firm: bool = False  # raised, or printed by what reports failures: no words in passing
    count: int = 1

    @property
    def rank_weight(self) -> int:
        """Its place among root causes: a logger's mention or words in passing count less than an exception."""
        if self.is_mention:
            return self.weight - MENTION_DISCOUNT
        return self.weight if self.is_firm else self.weight - PASSING_DISCOUNT

    @property
    def severity_now(self) -> str:
        """How grave it is when it comes: nobody knows yet whether it ends the run, so none is fatal.

        Words in passing, which no exception and no error level go with, are worth a note and call nobody.
        """
        is_passing = self.role == "fatal" and (self.is_mention or not self.is_firm)
        return "info" if is_passing else "error" if self.severity == "fatal" else self.severity


@dataclass
class Words:
    """State of the fold; changed in place. Bounded: floods of one wording are counted, not kept."""

    hits: deque[Hit] = field(default_factory=lambda: deque(maxlen=160))
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, Hit] = field(default_factory=dict)
    last: dict[str, Hit] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    skips: dict[str, deque[int]] = field(default_factory=dict)  # steps done at each skipped batch or step, by cause
    scale: float | None = None
    in_root_cause: bool = False

    def observe(self, row: Row, rule: Rule, rows: int, steps: int) -> Hit:
        """Fold in that `row` matched `rule`."""
        mention = row.level in LOGGED or bool(_WARNING.search(row.text))
        hit = Hit(
            rule.name, rule.role, rule.cause, rule.weight, rule.severity, rule.advice, row.time, rows, steps,
            shortened(row.text), row.start, row.end, row.rank, is_mention=mention,
            is_firm=rule.is_firm or rule.role == "echo" or row.level in FAILURES,
        )  # fmt: skip
        self._count(hit)
        return self._keep(hit)

    def raised(self, trace: Trace, hit: Hit | None, rows: int, steps: int) -> Hit | None:
        """Fold a complete exception in; `hit` is what its last row matched, None for an unknown wording."""
        if trace.is_ignored or trace.kind == "SystemExit":
            return None
        if hit is not None:
            return self._keep(_raised(hit, trace), replaces=hit)
        outer = self._passed_on(rows) if trace.is_inner else None
        if outer is not None:
            return self._keep(replace(outer, where=trace.where), replaces=outer)
        cause, weight = _unknown_exception(trace)
        text = shortened(trace.text)
        hit = Hit(
            "exception", "fatal", cause, weight, "fatal", advice(cause), trace.time, rows, steps, text, trace.start,
            trace.end, trace.rank, trace.where, trace.thread, trace.is_logged or _is_outside(trace), True,
        )  # fmt: skip
        self._count(hit)
        return self._keep(hit)

    def _passed_on(self, rows: int) -> Hit | None:
        """The hit of a worker's exception that the main process is just passing on."""
        newest = self.hits[-1] if self.hits else None
        is_it = newest is not None and newest.rows == rows and newest.cause in _PASSED_ON
        return newest if is_it else None

    def root_row(self, text: str) -> None:
        """Note where torch's elastic summary begins to name the first failure."""
        if "Root Cause (" in text:
            self.in_root_cause = True
        elif text.endswith(("=====", "-----")):
            self.in_root_cause = False

    def _count(self, hit: Hit) -> None:
        self.counts[hit.name] = self.counts.get(hit.name, 0) + 1
        self.first.setdefault(hit.name, hit)
        self.last[hit.name] = hit
        if hit.cause == "graph_break":
            self._place(hit.text)
        if hit.role == "skip" or (hit.cause == "cuda_oom" and not hit.is_firm):
            self.skips.setdefault(hit.cause, deque(maxlen=32)).append(hit.steps)
        if hit.cause == "loss_scale_underflow":
            scales = _SCALE.findall(hit.text)  # what it was, and what it is now
            self.scale = float(scales[-1]) if scales else self.scale

    def _place(self, text: str) -> None:
        match = _PLACE.search(text)
        if match and len(self.places) < 256:
            self.places.add(match.group(1) or match.group(2))

    def _keep(self, hit: Hit, replaces: Hit | None = None) -> Hit:
        if self.in_root_cause and hit.role == "echo" and hit.name.startswith("elastic_exit"):
            least = ROOT_STATUS_WEIGHT if hit.name == "elastic_exit" else EXCEPTION_WEIGHT + 1
            hit = replace(hit, weight=max(hit.weight, least))
        for index in range(len(self.hits) - 1, -1, -1):
            known = self.hits[index]
            if known.rows != hit.rows:
                break
            if known is replaces or (known.name == hit.name and known.weight == hit.weight and known.rank == hit.rank):
                self.hits[index] = replace(hit, count=1) if known is replaces else replace(known, count=known.count + 1)
                return self.hits[index]
        self.hits.append(hit)
        return hit

    # --- what is known ---------------------------------------------------------------------------

    def root(self, rows: int, within: int = NEAR_ROWS) -> Hit | None:
        """The cause of an end now: the gravest failure that few progress rows followed, the earliest of equals."""
        return self._gravest(("fatal", "echo"), rows, within)

    def stop(self, rows: int, within: int = NEAR_ROWS) -> Hit | None:
        """The first words about an end from outside: those that no step followed name it, later ones are its echo."""
        near = [hit for hit in self.hits if hit.role == "stop" and hit.rows >= rows - within]
        newest = max((hit.rows for hit in near), default=0)
        return next((hit for hit in near if hit.rows == newest), None)

    def failures(self, rows: int) -> list[Hit]:
        """The failures since the last step that are no words in passing, and that nobody says were caught."""
        newest = [hit for hit in self.hits if hit.rows == rows and hit.role in ("fatal", "echo")]
        return [hit for hit in newest if hit.is_firm and not hit.is_mention]

    def _gravest(self, roles: tuple[str, ...], rows: int, within: int) -> Hit | None:
        near = [hit for hit in self.hits if hit.role in roles and hit.rows >= rows - within]
        return max(near, key=lambda hit: hit.rank_weight, default=None)

    def since_step(self, role: str, rows: int) -> Hit | None:
        """The newest hit of a role that no progress row followed."""
        return next((hit for hit in reversed(self.hits) if hit.role == role and hit.rows == rows), None)

    def of_role(self, role: str) -> list[Hit]:
        """The last hit of each wording of this role."""
        return [hit for hit in self.last.values() if hit.role == role]

    def skipped(self, cause: str, steps: int) -> int:
        """How many batches or steps in a row were skipped for a cause; 0 where most go through."""
        newest = self.skips.get(cause)
        if newest is None or len(newest) < SKIP_MIN:
            return 0
        good = max(steps - newest[0], 0)
        return len(newest) if len(newest) / (len(newest) + good) >= SKIP_SHARE else 0

    def underflowed(self, steps: int) -> int:
        """How many steps in a row were skipped for overflow, once the loss scale has fallen too far."""
        times = self.skipped("loss_scale_underflow", steps)
        fallen = self.scale is not None and self.scale <= 1.0
        return times if fallen or times >= OVERFLOW_MANY else 0


def shortened(text: str) -> str:
    """`text`, or as many of its whole words as evidence may hold and an ellipsis.

    >>> shortened("loss " * 100)[-13:]
    'loss loss ...'
    """
    if len(text) <= MAX_TEXT:
        return text
    kept = text[: MAX_TEXT - len(ELLIPSIS)]
    words = kept.rpartition(" ")[0].rstrip()
    return (words if len(words) > MAX_TEXT // 2 else kept) + ELLIPSIS  # a word may be endless


def _raised(hit: Hit, trace: Trace) -> Hit:
    return replace(
        hit,
        where=trace.where,
        thread=trace.thread,
        start=trace.start,
        end=trace.end,
        is_mention=trace.is_logged,
        is_firm=True,
    )


def _unknown_exception(trace: Trace) -> tuple[str, int]:
    if _CACHE_KIND.search(trace.kind) and any(_CACHE_FRAME.search(told) for told in (*trace.frames, trace.message)):
        return "compile_cache_error", CACHE_WEIGHT
    return "python_exception", EXCEPTION_WEIGHT


def _is_outside(trace: Trace) -> bool:
    """An exception deep inside a network client: a logger or uploader's, until it ends the run."""
    return bool(trace.frames) and bool(_OUTSIDE.search(trace.frames[-1]))
