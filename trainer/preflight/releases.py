"""What releases of torch are known to do when replicas compile or run at once; measured, see docs/compile.md."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.compile import Release, release_of


@dataclass(frozen=True)
class Fact:
    """A behaviour of the releases from `first` to `last` (None: all before, all after)."""

    first: Release | None
    last: Release | None
    text: str

    def holds_for(self, release: Release) -> bool:
        """Return whether a release behaves so."""
        return (self.first is None or release >= self.first) and (self.last is None or release <= self.last)


FACTS = (
    Fact(
        None,
        (2, 12),
        "threads: while one thread compiles, every compiled call of the others fails: 'Detected that you are using FX "
        "to symbolically trace a dynamo-optimized function'; a warm cache does not help",
    ),
    Fact(
        (2, 13),
        (2, 13),
        "threads: the FX tracing flag is still one for the whole process, though masked while dynamo compiles",
    ),
    Fact(
        None,
        None,
        "threads: a code object with several entries loses some while all are warm, and compiles them again; one "
        "code object an entry and replica does not",
    ),
    Fact(
        (2, 13),
        None,
        "threads: torch's configuration is per thread: limits that the main thread sets do not hold in workers",
    ),
    Fact(None, None, "a recompile limit that is hit turns into silent eager runs unless fullgraph=True"),
    Fact(None, None, "a backward compiles at its first call, which fail_on_recompile does not see"),
    Fact(
        None, None, "processes that start cold at once compile the same code each; one that is warmed first is shared"
    ),
)


def known(version: str) -> list[str]:
    """Return what a release is known to do."""
    return [fact.text for fact in FACTS if fact.holds_for(release_of(version))]
