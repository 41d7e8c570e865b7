"""What detection says: findings, and the verdict that they amount to. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = (
    "starting",
    "healthy",
    "degraded",
    "eager_fallback",
    "hung",
    "crashed",
    "finished",
    "stopped",
    "unknown",
)
FAILING = frozenset({"eager_fallback", "hung", "crashed"})  # they call for a person


@dataclass(frozen=True)
class Finding:
    """One thing noticed, with its evidence; `cause` is a word of the causes table."""

    time: float
    cause: str
    severity: str  # info, warning, error, fatal
    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    rank: int | None = None
    where: str = ""  # file:line of the root exception
    start: int | None = None  # byte range in the log
    end: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What the findings amount to, since when, and why."""

    verdict: str
    cause: str = "ok"
    since: float = 0.0
    confidence: float = 1.0
    evidence: tuple[str, ...] = ()
    advice: str = ""
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    phase: str = ""
