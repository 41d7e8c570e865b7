"""A rebuilt environment is another folder, and a warm cache stays warm for it: real torch, a real compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.caches import Caches
from tests.support.torch_env import lend_torch

pytestmark = [pytest.mark.tmux, pytest.mark.torch, pytest.mark.long]

WARM = """
import json, pathlib
import torch
from torch._dynamo.utils import counters
options = {"cpp_cache_precompile_headers": False, "cpp_wrapper": True}
torch.compile(lambda x: (x.sin() * 2).sum(), fullgraph=True, options=options)(torch.randn(64))
inductor = counters["inductor"]
found = {"fx_misses": inductor["fxgraph_cache_miss"], "fx_hits": inductor["fxgraph_cache_hit"]}
pathlib.Path("result.json").write_text(json.dumps({"compiler_starts": 0, "prefix": torch.__file__, **found}))
"""


def test_a_second_build_of_the_set_finds_its_code_compiled(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": ["python", "-c", WARM], "env": True})
    lend_torch(caches.home, build="one")
    cold = caches.prewarm()
    assert (cold["report"]["fx_misses"], cold["num_new_files"] > 0) == (1, True)
    lend_torch(caches.home, build="two")
    proved = caches.opsctl("cache", "verify", "--json", timeout_s=200)
    check = proved.json()["check"]
    assert (check["doubts"], check["report"]["fx_hits"]) == ([], 1)
    assert check["report"]["prefix"] == cold["report"]["prefix"], "torch is seen at the same path"
    assert "one" not in Path(check["report"]["prefix"]).parts
    explained = caches.opsctl("cache", "explain", "--json").ok().json()
    assert explained["matches"]
    assert json.loads((caches.home / "envs/active/env.json").read_text())["build"] == "two"
