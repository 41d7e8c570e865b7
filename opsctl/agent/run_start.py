"""Verb run-start: one run of a name at a time, GPUs leased, a tmux server of its own, back once the job is named."""

from __future__ import annotations

import json
import os
import re
import secrets as randomness
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from opsctl.agent import baselines, gpus, leases, tmux
from opsctl.agent.files import folder_mode, read_record, write_atomic, write_record
from opsctl.agent.home import Home, RunPaths
from opsctl.agent.locks import held
from opsctl.agent.main import agent_argv
from opsctl.agent.processes import identity, is_alive
from opsctl.agent.recorder.secrets import write_once
from opsctl.agent.run_state import all_runs, is_live
from opsctl.agent.session import Call
from opsctl.errors import Busy, CheckFailed, CommandFailed, TimedOut, UsageError, error_named
from opsctl.records.call import from_json
from opsctl.records.events import GpuSample
from opsctl.records.process import LockOwner
from opsctl.records.run import RunRecord, RunSpec

START_LIMIT_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_GPU_LOCK_WAIT_S = 60.0


def start(call: Call, secrets: dict[str, str] | None = None, *, files: Mapping[str, bytes] | None = None) -> RunRecord:
    """Start the run that the request's `spec` describes; secrets come after it, unless given, and stay off the disk.

    `files` lie in the run's folder, by their names there, before its job begins.

    Raises Busy (name or GPU taken), UsageError, MissingTool, and what kept the job from starting.
    """
    spec = from_json(RunSpec, call.request["spec"])
    check(spec)
    spec = locate(call.home, spec, has_cache=bool(call.request.get("cache")))
    if spec.baseline:
        baselines.load(call.home, spec.baseline)  # one that is not there is told now, not found missing later
    tmux.require_tmux()
    secrets = _receive_secrets(call, spec) if secrets is None else secrets
    call.home.ensure()
    lock = call.home.locks / f"run-{spec.name}.lock"
    with held(lock, operator=call.operator, why=f"start of run {spec.name}") as left:
        _refuse_second(call.home, spec.name)
        run_id = new_run_id(spec.name, time.time(), randomness.token_hex(2))
        if call.request.get("placeholders"):
            spec = fill_in(spec, str(call.home.run(run_id).folder), data=str(call.home.data))
        uuids, notes = _lease(call.home, spec, run_id, operator=call.operator)
        spec = _noted(call, spec, (left, *notes))
        try:
            return _launch(call.home, spec, run_id, uuids, secrets, files or {})
        except BaseException:
            if not is_live(call.home.run(run_id)):
                leases.release(call.home, run_id)
            raise


def check(spec: RunSpec) -> None:
    """Raise UsageError for a request that can never start."""
    if not _NAME.match(spec.name):
        raise UsageError(
            f"{spec.name!r} is no name for a run",
            hint="letters, digits, dot, dash and underscore, at most 100, the first a letter or digit",
        )
    if not spec.argv or not spec.argv[0]:
        raise UsageError("the run has no command", hint="name a job, or put the command after --")
    for text in (*spec.argv, *spec.environment, *spec.environment.values()):
        if "\0" in text:
            raise UsageError("a NUL byte cannot be part of a command or its environment")
    for name in (*spec.environment, *spec.secret_names):
        if not _VARIABLE.match(name):
            raise UsageError(f"{name!r} is no name for an environment variable")


def locate(home: Home, spec: RunSpec, *, has_cache: bool) -> RunSpec:
    """The spec with folders where the client gave ids of an environment and of sources; raises CheckFailed."""
    env = _folder(home.envs, spec.env)
    code = _folder(home.code, spec.code)
    cache_dir = spec.cache_dir or (_cache_dir(home, env) if has_cache else "")
    place, note = _place(home, env)
    return replace(spec, env=env, env_place=place, code=code, cache_dir=cache_dir, notes=(*spec.notes, *note))


def _place(home: Home, env: str) -> tuple[str, tuple[str, ...]]:
    """The path by which the job sees its environment, and a sentence where that must be the build's own."""
    from opsctl.agent.env.place import ensure_place, leads_to, place

    if not env:
        return "", ()
    root, link = Path(env), place(Path(env))
    # turning the link would give a run that goes on what it imports later from another build than its own
    others = () if leads_to(link, root) else (run for run in all_runs(home) if run.spec.env_place == str(link))
    for run in others:
        if run.spec.env != env and is_live(home.run(run.run_id)):
            return env, (f"run {run.run_id} lives in another build of the set: a compile cache may be cold here",)
    return str(ensure_place(root)), ()


def _folder(parent: Path, name: str) -> str:
    if not name:
        return ""
    folder = parent / name  # an absolute name stays as it is
    if not folder.is_dir():
        raise CheckFailed(f"{folder} is not on the target", hint="it was removed in the meantime; try again")
    return str(folder)


def _cache_dir(home: Home, env: str) -> str:
    from opsctl.agent.cache.key import key_of, key_without_env
    from opsctl.agent.cache.live import ensure_live
    from opsctl.agent.env.layout import EnvPaths

    home.ensure()
    return str(ensure_live(home, key_of(EnvPaths(Path(env))) if env else key_without_env()).root)


def new_run_id(name: str, now: float, suffix: str) -> str:
    """A run's id: it sorts by time, and is a folder's name.

    >>> new_run_id("train", 0.0, "00ff")
    'train-19700101-000000-00ff'
    """
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{suffix}"


def session_name(name: str) -> str:
    """The tmux session's name; tmux keeps dots for panes.

    >>> session_name("demo.v2")
    'demo_v2'
    """
    return name.replace(".", "_")


def _receive_secrets(call: Call, spec: RunSpec) -> dict[str, str]:
    data = b"".join(call.session.uploads())
    secrets: dict[str, str] = json.loads(data) if data else {}
    missing = set(spec.secret_names) - set(secrets)
    if missing:
        raise UsageError(f"no value came for the secret {sorted(missing)[0]}")
    return {name: secrets[name] for name in spec.secret_names}


def _refuse_second(home: Home, name: str) -> None:
    for record in all_runs(home):
        if record.spec.name == name and is_live(home.run(record.run_id)):
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.created))
            raise Busy(
                f"run {record.run_id} of {record.spec.operator or 'somebody'} goes on since {since}",
                hint=f"`opsctl train stop {name}` ends it; `--name` starts another beside it",
            )


def _noted(call: Call, spec: RunSpec, notes: tuple[str, ...]) -> RunSpec:
    """The spec with what a person should know of its start, which is also said at once."""
    said = tuple(filter(None, notes))
    for note in said:
        call.session.progress(note)
    return replace(spec, notes=(*spec.notes, *said))


def _lease(home: Home, spec: RunSpec, run_id: str, *, operator: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The GPUs that the run holds now, by UUID, and from whom they were taken over."""
    if not spec.gpus:
        return (), ()
    chosen: tuple[GpuSample, ...] = gpus.choose(gpus.ask(), spec.gpus)
    me = identity(os.getpid())
    assert me is not None, "a running process has an identity"
    owner = LockOwner(operator, me, time.time(), f"run {run_id}")
    with held(home.locks / "gpus.lock", operator=operator, why=owner.why, wait_s=_GPU_LOCK_WAIT_S) as left:
        notes = leases.clear_dead(home, chosen, lambda other: is_live(home.run(other)))
        if not spec.share:
            leases.refuse_taken(home, chosen, lambda other: is_live(home.run(other)))
        leases.take(home, chosen, run_id, owner)
    return tuple(gpu.uuid for gpu in chosen), (left, *notes)


# --- launch ----------------------------------------------------------------------------------------


def fill_in(spec: RunSpec, folder: str, *, data: str) -> RunSpec:
    """The spec with {run}, {data}, {code} and {cache} replaced in its command and environment."""
    places = {"{run}": folder, "{data}": data, "{code}": spec.code, "{cache}": spec.cache_dir}

    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    environment = {name: filled(value) for name, value in spec.environment.items()}
    return replace(spec, argv=tuple(map(filled, spec.argv)), environment=environment)


def _launch(
    home: Home,
    spec: RunSpec,
    run_id: str,
    uuids: tuple[str, ...],
    secrets: dict[str, str],
    files: Mapping[str, bytes],
) -> RunRecord:
    paths = home.run(run_id)
    paths.folder.mkdir(mode=folder_mode(home.runs))
    for name, data in files.items():
        write_atomic(paths.folder / name, data)
    socket = tmux.socket_path(paths, uid=os.getuid())
    record = RunRecord(
        run_id=run_id,
        spec=spec,
        created=time.time(),
        socket=str(socket),
        session=session_name(spec.name),
        gpu_uuids=uuids,
        folder=str(paths.folder),
    )
    write_record(paths.record, record)
    if secrets:
        os.mkfifo(paths.secrets, 0o600)
    try:
        recorder = (*agent_argv(), "job", "recorder", str(paths.folder))
        tmux.start_server(socket, record.session, recorder, run_id=run_id, secrets=set(secrets.values()))
        if secrets:
            write_once(paths.secrets, secrets)
        return _await_job(paths)
    finally:
        paths.secrets.unlink(missing_ok=True)


def _await_job(paths: RunPaths) -> RunRecord:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        is_coming = _is_coming(paths)  # asked first: a quick job's recorder names it, ends it, and leaves
        record = read_record(RunRecord, paths.record)
        if paths.error.exists():
            refused = json.loads(paths.error.read_text())
            raise error_named(refused["kind"], refused["message"], hint=refused["hint"])
        if record is not None and record.job is not None:
            return record
        if not is_coming:
            raise CommandFailed("the run's recorder ended before the job began", hint=_look(paths))
        time.sleep(0.02)
    raise TimedOut(f"the run's recorder did not start the job within {START_LIMIT_S:g} s", hint=_look(paths))


def _is_coming(paths: RunPaths) -> bool:
    record = read_record(RunRecord, paths.record)
    if record is None:
        return False
    return is_alive(record.recorder) if record.recorder else tmux.is_serving(record.socket)


def _look(paths: RunPaths) -> str:
    return f"see {paths.recorder_log} on the target"
