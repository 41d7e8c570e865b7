"""What an environment's answers about torch mean: each way to say no names what it means and the way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.ops.doctor_compile_checks import judge, switches
from opsctl.records.doctor import AskedFacts, Check, CompileFacts, HiddenFacts, TracingFacts

FLEX = AskedFacts(("torch/nn/attention/flex_attention.py:1917", "transformers/integrations/flex_attention.py:89"))
WELL = CompileFacts(
    env_id="e",
    torch="2.13.0",
    tracing=TracingFacts(),
    hidden=HiddenFacts("5.24.0", flex=FLEX),
    caches={"fx_graph_cache": True, "autograd_cache": True, "force_disable_caches": False},
)


def _checks(facts: CompileFacts, **jobs: dict[str, str]) -> dict[str, Check]:
    return {check.name: check for check in judge(facts, jobs)}


def test_a_well_environment_has_four_answers_and_warns_of_flex_attention() -> None:
    found = _checks(WELL, drafter={"OMP_NUM_THREADS": "1"})
    assert {name: check.ok for name, check in found.items()} == dict.fromkeys(
        ("fx tracing", "hidden compile", "compile caches", "kill switches"), True
    )
    assert "transformers/integrations/flex_attention.py:89" in found["hidden compile"].found
    assert "torch/nn" not in found["hidden compile"].found
    assert "sdpa" in found["hidden compile"].todo


@pytest.mark.parametrize(
    ("changes", "name", "word"),
    [
        ({"tracing": TracingFacts(after_compiled=True)}, "fx tracing", "after_compiled"),
        ({"tracing": TracingFacts(problem="RuntimeError: Detected that you are using FX")}, "fx tracing", "Detected"),
        ({"hidden": HiddenFacts("5.24.0", callback=True)}, "hidden compile", "as soon as torch is imported"),
        ({"hidden": HiddenFacts("5.24.0", default=FLEX)}, "hidden compile", "flex_attention.py:89"),
        ({"caches": {"fx_graph_cache": False, "autograd_cache": True}}, "compile caches", "fx_graph_cache"),
        ({"caches": {"fx_graph_cache": True, "force_disable_caches": True}}, "compile caches", "force_disable"),
        ({"variables": {"TORCHDYNAMO_DISABLE": "1"}}, "kill switches", "TORCHDYNAMO_DISABLE=1 on the target"),
        ({"config": ("torch._dynamo.config.suppress_errors=True",)}, "kill switches", "suppress_errors=True"),
        ({"error": "Traceback\nImportError: libtorch.so"}, "compile", "libtorch.so"),
    ],
)
def test_each_fault_is_one_no_with_a_way_out(changes: dict[str, object], name: str, word: str) -> None:
    found = _checks(replace(WELL, **changes))  # type: ignore[arg-type]  # the fields are right
    assert [check.name for check in found.values() if check.ok is False] == [name]
    assert word in found[name].found
    assert found[name].todo


def test_a_switch_in_a_job_names_the_job_and_a_harmless_value_is_none() -> None:
    jobs = {"drafter": {"TORCH_COMPILE_DISABLE": "1"}, "other": {"TORCH_COMPILE_DISABLE": "0"}}
    found = switches({}, (), jobs)
    assert (found.ok, found.found) == (False, "TORCH_COMPILE_DISABLE=1 in jobs.drafter")
    assert "eager" in found.todo
    past = switches({}, (), {"drafter": {"TORCHINDUCTOR_CACHE_DIR": "/scratch"}})
    assert (past.ok, "past the live cache" in past.todo) == (False, True)
