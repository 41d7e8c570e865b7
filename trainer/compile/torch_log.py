"""Hears in torch's log what torch reports nowhere else: a recompile limit that was hit. It changes no logging."""

from __future__ import annotations

import logging
from types import TracebackType

_LIMIT_HIT = "hit config."  # "torch._dynamo hit config.recompile_limit (8)", and accumulated_recompile_limit


class LimitsHit(logging.Handler):
    """While entered, counts the recompile limits that dynamo says it has hit."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.num = 0
        self._logger = logging.getLogger("torch._dynamo.convert_frame")

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one row of the log."""
        self.num += _LIMIT_HIT in record.getMessage()

    def __enter__(self) -> LimitsHit:
        self._logger.addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._logger.removeHandler(self)
