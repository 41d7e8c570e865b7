"""Verbs env-list, env-rebuild and env-activate; env-plan is in `planning`, env-verify in `verify`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from opsctl.agent.env.layout import EnvPaths, active, flip, standing
from opsctl.agent.env.manifest import read_totals
from opsctl.agent.env.plan import understood
from opsctl.agent.env.users import users
from opsctl.agent.env.verify import check, resolve
from opsctl.agent.job_start import start_job
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.agent.tools import has_tool
from opsctl.errors import CheckFailed
from opsctl.formats.listing import shortened
from opsctl.records.call import from_json, to_json
from opsctl.records.env import SOURCES_VARIABLE, EnvCheck, EnvEntry, EnvRecord, EnvRequest, Sources
from opsctl.records.run import RunSpec

RUN_NAME = "env-rebuild"
_SHOWN = 5


def list_envs(call: Call) -> list[EnvEntry]:
    """Every environment that stands, newest first."""
    call.home.ensure()
    now = active(call.home)
    used = users(call.home)
    found = [_entry(paths, record, now, used) for paths, record in standing(call.home)]
    return found[::-1]


def _entry(paths: EnvPaths, record: EnvRecord, now: EnvPaths | None, used: dict[str, list[str]]) -> EnvEntry:
    num_files, num_bytes = read_totals(paths.manifest)
    return EnvEntry(
        env_id=paths.env_id,
        path=str(paths.root),
        is_active=paths == now,
        record=record,
        size_mib=round(num_bytes / 2**20, 1),
        num_files=num_files,
        used_by=tuple(used.get(str(paths.root), ())),
    )


def rebuild(call: Call) -> Any:
    """Start the build of request["env"]: {"run": RunRecord}, or {"needs_tool": true} until uv is there."""
    call.home.ensure()
    request = from_json(EnvRequest, call.request["env"])
    understood(request, call.home)  # a wrong lock or a missing Python is told at once, not by a run
    if request.tool is not None and not has_tool(call.home, request.tool):
        return {"needs_tool": True, "run": None}
    kept = replace(request, sources=Sources())
    body = {"home": str(call.home.root), "operator": call.operator, "request": to_json(kept)}
    spec = RunSpec(
        RUN_NAME,
        (*agent_argv(), "job", "env-build"),
        kind="rebuild",
        operator=call.operator,
        why=f"env rebuild of {request.name}",
        secret_names=(SOURCES_VARIABLE,),
    )
    secrets = {SOURCES_VARIABLE: json.dumps(to_json(request.sources))}
    return {"needs_tool": False, "run": start_job(call, spec, request=body, secrets=secrets)}


def describe(found: EnvCheck) -> str:
    """What drifted, in a few rows."""
    rows = [f"{one.kind}: {one.path} {one.detail}".rstrip() for one in found.drifts]
    return "\n".join(shortened(rows, _SHOWN))


def activate(call: Call) -> Any:
    """Make request["env"] the active environment, if it verifies; raises CheckFailed naming what drifted."""
    paths = resolve(call)
    found = check(paths, full=False)
    if not found.is_clean:
        raise CheckFailed(
            f"{paths.env_id} has drifted, and was not activated:\n{describe(found)}",
            hint="`opsctl env rebuild` builds the set anew; `opsctl env verify ID` shows all of it",
        )
    was = active(call.home)
    if was != paths:
        flip(call.home, paths)
    if not paths.root.is_dir():
        if was is not None:
            flip(call.home, was)
        raise CheckFailed(f"{paths.env_id} was removed in the meantime", hint="`opsctl env list` shows what stands")
    return {"env_id": paths.env_id, "path": str(paths.root), "before": was.env_id if was else "", "check": found}
