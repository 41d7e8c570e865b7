"""The agent's entry: a verb that answers a client, or a long job that a run's tmux pane holds."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.agent.session import Call, Session
from opsctl.errors import FULL, REFUSED, CommandFailed, DiskFull, OpsctlError, UsageError

# verb -> "module:function"; imported only when asked, so that a call costs what it uses
VERBS: dict[str, str] = {
    "probe": "opsctl.agent.probe:probe",
    "doctor": "opsctl.agent.doctor:facts",
    "doctor-compile": "opsctl.agent.doctor_compile:facts",
    "exec": "opsctl.agent.exec:run",
    "put": "opsctl.agent.transfer:put",
    "get": "opsctl.agent.transfer:get",
    "run-start": "opsctl.agent.run_start:start",
    "run-list": "opsctl.agent.run_queries:list_runs",
    "run-status": "opsctl.agent.run_queries:show_status",
    "run-wait": "opsctl.agent.run_queries:wait",
    "run-logs": "opsctl.agent.run_logs:logs",
    "run-watch": "opsctl.agent.run_watch:watch",
    "baseline-save": "opsctl.agent.baselines:save",
    "run-kernel": "opsctl.agent.run_kernel:hand_on",
    "pane-watch": "opsctl.agent.pane.watch:watch",
    "run-stop": "opsctl.agent.run_stop:stop",
    "job-follow": "opsctl.agent.job_follow:follow",
    "wheels-wanted": "opsctl.agent.env.wheelhouse:wanted",
    "put-wheel": "opsctl.agent.env.wheelhouse:put",
    "put-tool": "opsctl.agent.tools:put_tool",
    "env-list": "opsctl.agent.env.verbs:list_envs",
    "env-plan": "opsctl.agent.env.planning:plan",
    "env-rebuild": "opsctl.agent.env.verbs:rebuild",
    "env-verify": "opsctl.agent.env.verify:verify",
    "env-activate": "opsctl.agent.env.verbs:activate",
    "env-contents": "opsctl.agent.env.contents:contents",
    "env-adopt": "opsctl.agent.env.adopt:adopt",
    "env-archives": "opsctl.agent.env.adopt_restore:archives",
    "env-restore": "opsctl.agent.env.adopt_restore:restore",
    "env-prune": "opsctl.agent.env.prune:prune",
    "preflight": "opsctl.agent.preflight:preflight",
    "cache-list": "opsctl.agent.cache.list:list_caches",
    "cache-prewarm": "opsctl.agent.cache.prewarm:prewarm",
    "cache-snapshot": "opsctl.agent.cache.snapshot:snapshot",
    "cache-restore": "opsctl.agent.cache.restore:restore",
    "cache-verify": "opsctl.agent.cache.verify:verify",
    "cache-diff": "opsctl.agent.cache.compare:diff",
    "cache-explain": "opsctl.agent.cache.compare:explain",
    "cache-prune": "opsctl.agent.cache.prune:prune",
    "cache-manifest": "opsctl.agent.cache.exchange:manifest",
    "cache-pull": "opsctl.agent.cache.exchange:pull",
    "cache-offer": "opsctl.agent.cache.exchange:offer",
    "cache-push": "opsctl.agent.cache.exchange:push",
    "cache-at-start": "opsctl.agent.cache.at_start:look",
    "run-attach": "opsctl.agent.run_queries:attach",
    "has-code": "opsctl.agent.code:has_code",
    "put-code": "opsctl.agent.code:put_code",
}
# what a run's pane or a recorder starts: `AGENT job NAME ARG...`, no client attached
JOBS: dict[str, str] = {
    "recorder": "opsctl.agent.recorder.main:record",
    "stacks": "opsctl.agent.recorder.stacks:main",
    "notify": "opsctl.agent.recorder.notify:deliver",
    "env-build": "opsctl.agent.env.build:main",
    "env-adopt": "opsctl.agent.env.adopt:main",
    "preflight": "opsctl.agent.preflight:main",
    "cache-prewarm": "opsctl.agent.cache.prewarm:main",
    "cache-snapshot": "opsctl.agent.cache.snapshot:main",
    "cache-verify": "opsctl.agent.cache.verify:main",
}


def agent_argv() -> tuple[str, ...]:
    """The words that start this same agent again, for long jobs and for what a recorder starts."""
    return (sys.executable, str(Path(sys.argv[0]).absolute()))


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def as_opsctl_error(error: BaseException) -> OpsctlError:
    """The foreseen form of whatever a handler raised; a bug keeps its traceback in the message."""
    if isinstance(error, OpsctlError):
        return error
    if isinstance(error, OSError) and error.errno in FULL:
        return DiskFull(f"no space left on the target: {error}", hint="free space there, then run the command again")
    if isinstance(error, OSError) and error.errno in REFUSED:
        return CommandFailed(f"refused on the target: {error}", hint="check owner, mode and limits of that path there")
    import traceback  # 4 ms that only a bug costs

    return OpsctlError("the agent failed unexpectedly:\n" + "".join(traceback.format_exception(error)).rstrip())


def _answer(verb: str, session: Session) -> int:
    try:
        request = session.start()
        session.hello()
        if verb not in VERBS:
            raise UsageError(f"the agent has no verb {verb!r}")
        value = _load(VERBS[verb])(Call(session, request))
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary: every failure becomes one message
        session.error(as_opsctl_error(error))
        return 1
    finally:
        session.end_children()
    session.result(value)
    return 0


def serve(verb: str) -> int:
    """Answer one client on stdin and stdout; stray prints go to stderr."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    output_fd = os.dup(1)
    os.dup2(2, 1)
    session = Session(0, output_fd)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: session.abandon())
    return _answer(verb, session)


def main(arguments: list[str]) -> int:
    """Run `AGENT VERB` or `AGENT job NAME ARG...`; returns the exit status."""
    if len(arguments) >= 2 and arguments[0] == "job" and arguments[1] in JOBS:
        return int(_load(JOBS[arguments[1]])(arguments[2:]) or 0)
    if len(arguments) == 1:
        return serve(arguments[0])
    sys.stderr.write("usage: opsctl-agent VERB | job NAME [ARG...]\n")
    return 2
