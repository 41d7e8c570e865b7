"""What `status` advises, and in which order it lists runs."""

from __future__ import annotations

from dataclasses import replace

from opsctl.config import Config
from opsctl.ops.status import TargetStatus, live_first, next_steps
from opsctl.records.cache import CacheList, LiveCache, Snapshot, Warmed
from opsctl.records.env import Drift, EnvCheck, EnvEntry, EnvRecord
from opsctl.records.run import RunRecord, RunSpec, RunStatus
from opsctl.records.verdict import Verdict

CONFIG = Config.model_validate(
    {
        "default_target": "here",
        "targets": {"here": {}},
        "jobs": {"drafter": {"command": ["python", "a.py"], "prewarm": ["python", "b.py"]}},
    }
)
ENV = EnvEntry("abc-1", "/envs/abc-1", True, EnvRecord("cpu", "abc", "1", 0.0, "3.11", "linux"), 900.0, 12)
CACHE = LiveCache("k", "/cache/k", {}, 9, 3.0, is_current=True, warmed=(Warmed("drafter", 0.0, 9.0, 80.0, 4, True),))
REACHED = TargetStatus(
    "here", "here (this machine)", reach_s=0.2, envs=(ENV,), env_check=EnvCheck("abc-1", "quick", 12, 0.1)
)
SNAPSHOT = Snapshot("s", 0.0, {}, 9, 3.0, "s.tar.zst", 1.0, fits=True)


def _run(name: str, state: str, created: float, verdict: str = "finished") -> RunStatus:
    run = RunRecord(f"{name}-id", RunSpec(name, ("true",)), created, "sock", name)
    return RunStatus(run, state, Verdict(verdict))


def test_live_runs_come_first_and_newer_ones_before_older() -> None:
    listed = [_run("a", "over", 3.0), _run("b", "running", 1.0), _run("c", "lost", 2.0), _run("d", "unwatched", 2.0)]
    assert [one.run.spec.name for one in live_first(listed)] == ["d", "b", "a", "c"]


def test_each_state_of_a_target_has_its_next_step() -> None:
    warm = replace(REACHED, caches=CacheList((CACHE,), ()))
    saved = replace(REACHED, caches=CacheList((replace(CACHE, snapshot_id="s"),), (SNAPSHOT,)))
    drifted = replace(saved, env_check=replace(REACHED.env_check, drifts=(Drift("edited", "torch", "x.py"),)))
    assert next_steps(TargetStatus("here", "here"), CONFIG) == []
    assert "env rebuild" in next_steps(replace(REACHED, envs=(), env_check=None), CONFIG)[0]
    bare = next_steps(replace(REACHED, envs=(), env_check=None), CONFIG, missing_set="write env/cpu.in")
    assert bare[0] == "for an environment: write env/cpu.in"
    assert "`opsctl train start -- COMMAND` starts a run, which needs no environment" in bare
    assert "env verify" in next_steps(drifted, CONFIG)[0]
    assert "cache prewarm drafter" in next_steps(REACHED, CONFIG)[0]
    assert "cache restore" in next_steps(replace(REACHED, caches=CacheList((), (SNAPSHOT,))), CONFIG)[0]
    assert "cache snapshot" in next_steps(warm, CONFIG)[0]
    assert next_steps(saved, CONFIG) == ["`opsctl train start drafter` starts a run"]


def test_a_live_run_is_followed_and_a_crash_explained() -> None:
    done = replace(REACHED, caches=CacheList((replace(CACHE, snapshot_id="s"),), ()))
    assert "watch b-id" in next_steps(replace(done, runs=(_run("b", "running", 1.0, "healthy"),)), CONFIG)[0]
    assert "watch --once c-id" in next_steps(replace(done, runs=(_run("c", "over", 1.0, "crashed"),)), CONFIG)[0]
    assert next_steps(replace(done, runs=(_run("c", "over", 1.0),)), CONFIG) == []
