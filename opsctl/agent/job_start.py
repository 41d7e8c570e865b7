"""Starts a long job of opsctl's own as a run."""

from __future__ import annotations

import json
from typing import Any

from opsctl.agent.jobs import REQUEST
from opsctl.agent.run_start import start
from opsctl.agent.session import Call
from opsctl.errors import Busy
from opsctl.records.call import to_json
from opsctl.records.run import RunRecord, RunSpec


def start_job(
    call: Call,
    spec: RunSpec,
    *,
    has_placeholders: bool = False,
    request: Any = None,
    secrets: dict[str, str] | None = None,
) -> RunRecord:
    """The run of this job, once its process is there; raises Busy while one of its name goes on.

    `request` is what the words of a command cannot hold: the job finds it in its own folder. `secrets` are ours to
    give; without them, those that the spec names come from the client.
    """
    call.request = {"spec": to_json(spec), "placeholders": has_placeholders}
    files = {} if request is None else {REQUEST: json.dumps(request).encode()}
    try:
        return start(call, secrets, files=files)
    except Busy as error:
        hint = f"`opsctl train logs -f {spec.name}` shows how it comes along, `opsctl train stop {spec.name}` ends it"
        raise Busy(error.message, hint=hint) from None
