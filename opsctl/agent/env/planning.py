"""Verb env-plan: what a rebuild would do. Apart from the other verbs, since one that does nothing must be quick."""

from __future__ import annotations

import platform

from opsctl.agent.env.plan import chosen, understood, use_standing
from opsctl.agent.session import Call
from opsctl.formats.drivers import cuda_of, ensure_runs
from opsctl.formats.lockfile import parse_lock
from opsctl.records.call import from_json
from opsctl.records.env import EnvPlan, EnvRequest


def _driver() -> str:
    from opsctl.agent.env.driver import version  # starts programs: only where it matters

    return version()


def plan(call: Call) -> EnvPlan:
    """What a rebuild of one of request["envs"] would do; a standing environment that verifies is made active.

    Of several, the driver chooses; one too old for a set is told here, before anything is downloaded.
    """
    call.home.ensure()
    asked = [from_json(EnvRequest, one) for one in call.request["envs"]]
    driver = _driver() if len(asked) > 1 else ""
    request = chosen(asked, driver)
    wanted = understood(request, call.home)
    outcome, drifted = use_standing(call.home, wanted) if wanted else (None, ())
    if outcome is None and (cuda := cuda_of(parse_lock(request.lock, label=request.label))):
        driver = driver or _driver()
        ensure_runs(driver, cuda, name=request.name)
    if wanted is None:
        return EnvPlan(request.name, platform.machine(), driver=driver)
    return EnvPlan(
        name=request.name,
        machine=platform.machine(),
        fingerprint=wanted.fingerprint,
        python=wanted.python.version,
        platform=wanted.python.platform,
        driver=driver,
        outcome=outcome,
        drifted=drifted,
    )
