"""What a preflight saw, and whether that is safe. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Counts:
    """What one topology's replicas did together."""

    calls: int = 0
    exceptions: Mapping[str, int] = field(default_factory=dict)
    compiles: int = 0
    spurious_recompiles: int = 0
    eager_calls: int = 0
    limits_hit: int = 0
    cudagraph_skips: int = 0
    cold_s: float = 0.0
    warm_s: float = 0.0
    messages: Mapping[str, str] = field(default_factory=dict)  # what the first exception of each type said

    def problems(self) -> list[str]:
        """Return what makes it unsafe."""
        found = [f"{count} {name}{self._first_line(name)}" for name, count in self.exceptions.items()]
        names = ("spurious_recompiles", "eager_calls", "limits_hit", "cudagraph_skips")
        found += [f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names if getattr(self, name)]
        return found if self.calls else [*found, "no warm call was made"]

    def _first_line(self, exception: str) -> str:
        return "".join(f": {line}" for line in self.messages.get(exception, "").splitlines()[:1])


def together(parts: Sequence[Counts]) -> Counts:
    """Return the counts of several replicas added up; they ran at the same time, so the longest times count."""
    exceptions: Counter[str] = Counter()
    for part in parts:
        exceptions.update(part.exceptions)
    whole = ("calls", "compiles", "spurious_recompiles", "eager_calls", "limits_hit", "cudagraph_skips")
    sums = {name: sum(getattr(part, name) for part in parts) for name in whole}
    longest = {name: max(getattr(part, name) for part in parts) for name in ("cold_s", "warm_s")}
    messages = {kind: text for part in reversed(parts) for kind, text in part.messages.items()}
    return Counts(exceptions=dict(exceptions), messages=messages, **sums, **longest)


def counts_from(raw: Mapping[str, Any]) -> Counts:
    """Return the counts that were written as JSON."""
    return Counts(**{one.name: raw[one.name] for one in fields(Counts)})


@dataclass(frozen=True)
class Topology:
    """One way to run the replicas; `is_chosen` where the verdict is about it, the others are there to compare."""

    name: str
    replicas: int
    counts: Counts
    is_chosen: bool = True

    def line(self) -> str:
        """Return one row for people."""
        c = self.counts
        exceptions = ", ".join(f"{count} {name}" for name, count in c.exceptions.items()) or "no exceptions"
        return (
            f"{'*' if self.is_chosen else ' '} {self.name}: {c.calls} calls, {exceptions}, {c.compiles} compiles, "
            f"{c.spurious_recompiles} spurious recompiles, {c.eager_calls} eager calls, {c.limits_hit} limits hit, "
            f"{c.cudagraph_skips} cudagraph skips (cold {c.cold_s:.1f} s, warm {c.warm_s:.1f} s)"
        )


@dataclass(frozen=True)
class PreflightReport:
    """The topologies that were tried, what this torch is known to do, and the verdict."""

    recipe: str
    torch: str
    device: str
    replicas: str
    topologies: tuple[Topology, ...]
    known: tuple[str, ...]
    seconds: float

    @property
    def problems(self) -> list[str]:
        """What makes the chosen topology unsafe, nothing if it is safe."""
        chosen = [one for one in self.topologies if one.is_chosen]
        return [f"{one.name}: {problem}" for one in chosen for problem in one.counts.problems()]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as one JSON document."""
        rows = [
            {"name": one.name, "chosen": one.is_chosen, "replicas": one.replicas, **asdict(one.counts)}
            | {"safe": not one.counts.problems()}
            for one in self.topologies
        ]
        head = {"schema": 1, "recipe": self.recipe, "torch": self.torch, "device": self.device}
        verdict = {"safe": not self.problems, "problems": self.problems, "seconds": self.seconds}
        return {**head, "replicas": self.replicas, **verdict, "topologies": rows, "known": list(self.known)}

    def lines(self) -> list[str]:
        """Return the report for people; rows with a star are what the verdict is about."""
        lines = [f"{self.recipe} on {self.device}, torch {self.torch}: replicas as {self.replicas}"]
        lines += [one.line() for one in self.topologies]
        lines += [f"known of this torch: {text}" for text in self.known]
        lines += [f"problem: {text}" for text in self.problems]
        return [*lines, f"{'UNSAFE' if self.problems else 'safe'} after {self.seconds:.0f} s"]
