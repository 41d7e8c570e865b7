"""Variables that change what a job imports: named by verify, refused by a start, kept in the run's record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.envs import Envs

pytestmark = pytest.mark.tmux

NAP = {"command": ["python", "-c", "import time; time.sleep(600)"], "code": False}


def _folder(envs: Envs) -> str:
    (envs.project / "elsewhere").mkdir()
    return str(envs.project / "elsewhere")


def test_a_variable_of_the_target_is_named_and_keeps_a_run_from_starting(envs: Envs) -> None:
    envs.configure(jobs={"nap": NAP})
    first = envs.rebuild()["outcome"]["env_id"]
    folder = _folder(envs)
    found = envs.opsctl("env", "verify", "--json", PYTHONPATH=folder)
    drifts = [(one["kind"], one["path"]) for one in found.json()["check"]["drifts"]]
    assert (found.code, drifts) == (1, [("variable", "PYTHONPATH")])
    text = envs.opsctl("env", "verify", PYTHONPATH=folder).out
    for words in (folder, "before the environment's own packages", "unset these on the target"):
        assert words in text
    assert envs.rebuild(PYTHONPATH=folder)["outcome"]["env_id"] == first, "nothing that a rebuild could mend"
    refused = envs.opsctl("train", "start", "nap", PYTHONPATH=folder)
    assert (refused.code, "variable PYTHONPATH" in refused.err) == (1, True)
    assert "--allow-drift" in refused.err
    envs.opsctl("train", "start", "nap", "--allow-drift", PYTHONPATH=folder).ok()
    assert "started although" in envs.opsctl("train", "status", "nap").ok().out


def test_a_variable_that_never_reaches_the_job_is_no_drift_for_it(envs: Envs) -> None:
    envs.configure(jobs={"nap": {**NAP, "environment": {"PYTHONPATH": "{run}/own"}}})
    envs.rebuild()
    started = envs.opsctl("train", "start", "nap", "--json", PYTHONPATH=_folder(envs)).ok()
    notes = started.json()["run"]["spec"]["notes"]
    assert notes == ["the job sets PYTHONPATH ({run}/own): it may import something else than the environment holds"]
    assert "the job nap sets PYTHONPATH" in envs.opsctl("env", "verify").ok().out
    assert envs.opsctl("env", "verify", PYTHONPATH="/nowhere").ok().code == 0, "a folder that is not there"


def test_libraries_that_shadow_the_environments_own_are_told(envs: Envs) -> None:
    envs.wheel("tiny-b", "2.0", files={"tiny_b/lib/libtiny.so.1": b"\x7fELF"})
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    envs.rebuild()
    folder = Path(_folder(envs))
    assert "LD_LIBRARY_PATH" not in envs.opsctl("env", "verify", LD_LIBRARY_PATH=str(folder)).ok().out
    (folder / "libtiny.so.1").write_bytes(b"\x7fELF")
    found = envs.opsctl("env", "verify", LD_LIBRARY_PATH=str(folder)).ok().out
    assert f"{folder}/libtiny.so.1 (tiny-b==2.0)" in found


def test_a_start_in_a_drifted_environment_is_refused_or_recorded(envs: Envs) -> None:
    envs.configure(jobs={"nap": NAP})
    envs.rebuild()
    (envs.site_packages / "tiny_a/__init__.py").write_text("VERSION = 'mine'\n")
    refused = envs.opsctl("train", "start", "nap")
    assert refused.code == 1
    for words in ("edited", "tiny_a/__init__.py", "`opsctl env rebuild` repairs", "--allow-drift"):
        assert words in refused.err
    assert envs.opsctl("train", "list", "--json").ok().json()["items"][0]["run"]["spec"]["kind"] == "rebuild"
    run = envs.opsctl("train", "start", "nap", "--allow-drift", "--json").ok().json()
    notes = json.loads((Path(run["folder"]) / "run.json").read_text())["spec"]["notes"]
    assert len(notes) == 1
    assert notes[0].startswith(f"started although environment {envs.active.name} drifted: edited ")
    assert notes[0] in envs.opsctl("train", "status", "nap").ok().out


def test_what_only_a_login_shell_sets_is_a_note(envs: Envs, own_home: Path) -> None:
    envs.rebuild()
    (own_home / ".profile").write_text("echo welcome\nexport PYTHONPATH=/by/hand\n")
    found = envs.opsctl("env", "verify").ok().out
    assert "note: a login shell on the target sets PYTHONPATH (/by/hand): what is started there by hand" in found
