"""Record of a preflight: what trying a job's topology came to. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PreflightOutcome:
    """What a job's preflight command said, in its own environment, on its own devices."""

    job: str
    is_safe: bool
    problems: tuple[str, ...]
    seconds: float
    report: dict[str, Any] = field(default_factory=dict)  # the job's own, whole
    run_id: str = ""
