"""Verb `doctor-compile`: in which state torch compiles in the active environment, asked of its own Python."""

from __future__ import annotations

import json
import os
import subprocess

from opsctl.agent.env.layout import find
from opsctl.agent.env.scripts import program
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed, TimedOut
from opsctl.records.call import from_json
from opsctl.records.doctor import CompileFacts

_LIMIT_S = 240.0


def facts(call: Call) -> CompileFacts:
    """The CompileFacts of the active environment; request["variables"] names what is read of the environment's own.

    Raises CheckFailed where none is active or its Python does not answer, TimedOut.
    """
    env = find(call.home)
    names = call.request["variables"]
    variables = {name: os.environ[name] for name in names if name in os.environ}
    argv = (str(env.python), "-I", "-B", "-c", program("compile_probe_script"))
    child = call.session.spawn(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
    call.session.progress("asking the environment's torch")
    try:
        out, errors = child.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"torch in {env.env_id} did not answer within {_LIMIT_S:g} s", hint="a driver may be stuck: try nvidia-smi"
        ) from None
    try:
        answer = json.loads(out.decode(errors="replace").rstrip().rpartition("\n")[2])
    except ValueError:
        said = errors.decode(errors="replace").strip()[-2000:]
        raise CheckFailed(
            f"the Python of {env.env_id} ended with status {child.returncode}:\n{said}",
            hint="`opsctl env verify` says what changed in it",
        ) from None
    return from_json(CompileFacts, {**answer, "env_id": env.env_id, "variables": variables})
