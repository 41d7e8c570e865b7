"""`opsctl doctor --deep`: whether torch compiles in the environment as it should, question by question.

Each judgement is pure; only `compile_checks` asks the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.errors import OpsctlError
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.records.doctor import Check, CompileFacts

_ON, _OFF = ("1", "true", "True"), ("0", "false", "False")
NOT_REACHED = Check("compile", None, "the target was not reached")


@dataclass(frozen=True)
class Switch:
    """An environment variable, the values that do harm (() = any), and what they do."""

    bad: tuple[str, ...]
    effect: str


_EAGER = "torch.compile does nothing and all runs eager, without a word"
_COLD = "nothing compiled is kept or found: every start is cold"
SWITCHES: dict[str, Switch] = {
    "TORCH_COMPILE_DISABLE": Switch(_ON, _EAGER),
    "TORCHDYNAMO_DISABLE": Switch(_ON, _EAGER),
    "TORCHDYNAMO_SUPPRESS_ERRORS": Switch(_ON, "what fails to compile runs eager, without an error"),
    "TORCH_COMPILE_OVERRIDE_BACKENDS": Switch((), "another backend than the one that was asked for compiles"),
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": Switch(_ON, _COLD),
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": Switch(_ON, _COLD),
    "TORCHINDUCTOR_FX_GRAPH_CACHE": Switch(_OFF, "compiled graphs are not kept: every start is cold"),
    "TORCHINDUCTOR_AUTOGRAD_CACHE": Switch(_OFF, "forward and backward are traced anew at every start"),
}
# opsctl sets these for a run; a job that sets them itself compiles past the live cache
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def compile_checks(workspace: Workspace) -> tuple[Check, ...]:
    """The deep checks; one that says no where the environment cannot be asked."""
    jobs = {name: job.environment for name, job in workspace.config.jobs.items()}
    try:
        answer = workspace.client.call("doctor-compile", {"variables": sorted(SWITCHES)})
    except OpsctlError as error:
        return (Check("compile", False, error.message, error.hint), switches({}, (), jobs))
    facts = from_json(CompileFacts, answer)
    return judge(facts, jobs)


def judge(facts: CompileFacts, jobs: Mapping[str, Mapping[str, str]]) -> tuple[Check, ...]:
    """What the facts mean; pure."""
    found = switches(facts.variables, facts.config, jobs)
    if facts.error:
        text = f"torch of {facts.env_id} does not answer: {facts.error.splitlines()[-1]}"
        return (Check("compile", False, text, "`opsctl env verify` says what changed"), found)
    return (tracing(facts), hidden_compile(facts), caches(facts), found)


def tracing(facts: CompileFacts) -> Check:
    """Whether masks leave torch in the belief that FX traces: compiled calls of any thread would then fail."""
    seen = facts.tracing
    if seen is None:
        return Check("fx tracing", None, "not asked")
    if seen.problem:
        todo = "make masks before other threads compile, or launch a process for each replica: `opsctl train preflight`"
        return Check("fx tracing", False, f"after create_block_mask: {seen.problem}", todo)
    active = [when for when in ("before", "after_eager", "after_compiled") if getattr(seen, when)]
    if not active and "torch._dynamo.config.disable=True" in facts.config:
        return Check("fx tracing", None, "nothing is compiled here: see kill switches")
    if not active:
        return Check("fx tracing", True, f"off after create_block_mask, eager and compiled (torch {facts.torch})")
    todo = "compiled calls fail or run eager while it is on: find what traces, or use a newer torch"
    return Check("fx tracing", False, f"still on ({', '.join(active)}) with torch {facts.torch}", todo)


def hidden_compile(facts: CompileFacts) -> Check:
    """Whether a library compiles models by itself: then shapes and threads are not the trainer's own to keep."""
    seen = facts.hidden
    if seen is None:
        return Check("hidden compile", None, "not asked")
    if seen.callback:
        todo = "something in the environment sets dynamo's hook at import (a .pth file, sitecustomize): remove it"
        return Check("hidden compile", False, "every function is compiled as soon as torch is imported", todo)
    if not seen.transformers:
        return Check("hidden compile", True, "no transformers in the environment, and no hook is set")
    if callers := _foreign(seen.default.callers):
        todo = "load models with an attn_implementation that does not compile (sdpa), or pin another transformers"
        return Check("hidden compile", False, f"transformers {seen.transformers} compiles by itself: {callers}", todo)
    if seen.default.problem:
        return Check("hidden compile", None, f"a small model did not run: {seen.default.problem}")
    flex = _foreign(seen.flex.callers)
    warning = f'; with attn_implementation="flex_attention" it would ({flex})' if flex else ""
    todo = "load the verifier with sdpa or eager attention, not with flex_attention" if flex else ""
    return Check("hidden compile", True, f"transformers {seen.transformers} does not by itself{warning}", todo)


def _foreign(callers: tuple[str, ...]) -> str:
    return ", ".join(caller for caller in callers if not caller.startswith("torch/"))


def caches(facts: CompileFacts) -> Check:
    """Whether torch keeps what it compiles, graphs and what autograd needs."""
    off = [name for name in ("fx_graph_cache", "autograd_cache") if facts.caches.get(name) is False]
    off += ["force_disable_caches"] if facts.caches.get("force_disable_caches") else []
    if not facts.caches:
        return Check("compile caches", None, "not asked")
    if off:
        return Check("compile caches", False, f"switched: {', '.join(off)}", "every start is cold: see kill switches")
    return Check("compile caches", True, "FX graph cache and AOTAutograd cache are on")


def switches(variables: Mapping[str, str], config: tuple[str, ...], jobs: Mapping[str, Mapping[str, str]]) -> Check:
    """Which switches are set, where, and what each does."""
    bad = [(f"{name}={value} on the target", SWITCHES[name].effect) for name, value in _harmful(variables)]
    for job, environment in jobs.items():
        bad += [(f"{name}={value} in jobs.{job}", SWITCHES[name].effect) for name, value in _harmful(environment)]
        own = [name for name in FOLDERS if name in environment]
        bad += [(f"{name} in jobs.{job}", "the job compiles past the live cache") for name in own]
    if not variables:  # else they say it already
        bad += [(one, "torch's own default was changed in the environment") for one in config]
    if not bad:
        return Check("kill switches", True, "none is set on the target, in a job or in torch's configuration")
    todo = "; ".join(dict.fromkeys(effect for _, effect in bad))
    return Check("kill switches", False, ", ".join(place for place, _ in bad), f"unset: {todo}")


def _harmful(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in environment.items()
        if name in SWITCHES and value and (not SWITCHES[name].bad or value in SWITCHES[name].bad)
    ]
