"""What torch has compiled in this process, as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch._dynamo.utils import counters as torch_counters


@dataclass(frozen=True)
class Counters:
    """What torch has compiled in this process so far."""

    compiles: int = 0
    recompiles: int = 0
    lazy_backwards: int = 0
    graph_breaks: int = 0
    cudagraph_skips: int = 0
    fx_hits: int = 0
    fx_misses: int = 0
    fx_bypasses: int = 0
    aot_hits: int = 0
    aot_misses: int = 0
    aot_bypasses: int = 0

    @property
    def num_compiled(self) -> int:
        """Forwards and backwards together."""
        return self.compiles + self.lazy_backwards

    def risen_since(self, earlier: Counters) -> list[str]:
        """Return the counts that are higher than in `earlier`, as text."""
        before, now = asdict(earlier), asdict(self)
        return [f"{name} {before[name]} -> {now[name]}" for name in now if now[name] != before[name]]


def read_counters(compiles: int = 0, recompiles: int = 0, lazy_backwards: int = 0) -> Counters:
    """Return torch's own counters beside the compilations that a discipline has seen."""
    inductor, autograd = torch_counters["inductor"], torch_counters["aot_autograd"]
    fx = (inductor[f"fxgraph_cache_{what}"] for what in ("hit", "miss", "bypass"))
    aot = (autograd[f"autograd_cache_{what}"] for what in ("hit", "miss", "bypass"))
    graph_breaks = sum(torch_counters["graph_break"].values())
    return Counters(compiles, recompiles, lazy_backwards, graph_breaks, inductor["cudagraph_skips"], *fx, *aot)
