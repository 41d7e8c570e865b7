"""Where a launch takes place: this machine alone, or one of several. No torch: a wrong place is told at once."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import ConfigError

LOOPBACK = "127.0.0.1"
ANY_PORT = f"{LOOPBACK}:0"


@dataclass(frozen=True)
class Nodes:
    """This machine among the `size` machines of a launch; `endpoint`, as HOST:PORT, is where the one of rank 0 listens.

    All of them start equally many ranks.
    """

    size: int = 1
    rank: int = 0
    endpoint: str = ANY_PORT

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"--nnodes {self.size}: at least one machine must train")
        if not 0 <= self.rank < self.size:
            raise ConfigError(
                f"--node-rank {self.rank}: with --nnodes {self.size} it must be below that, and not negative"
            )
        host, _, port = self.endpoint.rpartition(":")
        is_port = port.isdigit() and int(port) <= 65535 and (self.size == 1 or int(port) > 0)
        if not host or not is_port:
            raise ConfigError(f"--rdzv-endpoint {self.endpoint}: it must be HOST:PORT of the first machine")
