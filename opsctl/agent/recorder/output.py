"""What the job writes, on its way to the pane, to the log and to detection; and its metrics file."""

from __future__ import annotations

from opsctl.agent.home import RunPaths
from opsctl.agent.recorder.detection import Detection
from opsctl.agent.recorder.findings import log_behind
from opsctl.agent.recorder.log import Log
from opsctl.agent.recorder.metrics import MetricsTail
from opsctl.agent.recorder.pane import Pane
from opsctl.agent.recorder.redraws import Redraws


class Output:
    """Detection sees exactly what the log holds, with the times of its index, so that a replay tells the same."""

    def __init__(self, paths: RunPaths, pane: Pane, detection: Detection) -> None:
        self._pane = pane
        self._detection = detection
        self._redraws = Redraws()
        self._metrics = MetricsTail(paths.metrics)
        self._was_behind = False
        self.log = Log(paths.log, paths.log_index)

    def add(self, data: bytes, now: float) -> None:
        """Output that came just now."""
        self._pane.show(data)
        kept = self._redraws.feed(data, now)
        if kept:
            self._keep(kept, now)

    def poll(self, now: float) -> None:
        """What is due without new output: held redraws and new metrics."""
        if self._redraws.due is not None and now >= self._redraws.due:
            self._keep(self._redraws.overdue(now), now)
        start, data = self._metrics.read()
        if data:
            self._detection.data("metrics", data, start, now)

    def release(self, now: float) -> None:
        """Write all that is held back of a row that is being redrawn: no more of it is to come."""
        held = self._redraws.release(now)
        if held:
            self._keep(held, now)

    def _keep(self, data: bytes, now: float) -> None:
        offset = self.log.append(data, now)
        if offset is not None:
            self._detection.data("log", data, offset, now)
        if self.log.is_behind and not self._was_behind:
            self._detection.add(log_behind(now))
        self._was_behind = self.log.is_behind

    def retry(self) -> None:
        """Try again to write what waits for space."""
        self.log.retry()
        self._was_behind = self.log.is_behind
