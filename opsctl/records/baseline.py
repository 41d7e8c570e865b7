"""Figures of a good run, kept to compare later runs with. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.records.call import SCHEMA


@dataclass(frozen=True)
class Baseline:
    """What a good run of a job is like; None is unknown. Memory is that of its fullest GPU while it trained."""

    step_s: float | None = None
    tokens_per_s: float | None = None
    used_mib: float | None = None  # the most that was in use
    swing_mib: float | None = None  # between the least and the most
    num_rows: int = 0  # progress rows that these figures rest on


@dataclass(frozen=True)
class SavedBaseline:
    """A baseline under its name, and the run that it was taken from."""

    name: str
    run_id: str
    saved: float
    operator: str
    figures: Baseline
    schema: int = SCHEMA
