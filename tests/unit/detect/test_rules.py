"""The rules are data: every example matches its own rule and none before it; every cause is of the table."""

from __future__ import annotations

import re

import pytest

from opsctl.detect import rules
from opsctl.detect.rules import ROLES, Rule

BOOK = rules.book()
SEVERITIES = {"info", "warning", "error", "fatal"}


@pytest.mark.parametrize("rule", BOOK.rules, ids=lambda rule: rule.name)
def test_an_example_matches_its_rule_and_no_earlier_one(rule: Rule) -> None:
    assert rule.search(rule.example), "the pattern does not match its example"
    assert rules.match(rule.example) is rule


@pytest.mark.parametrize("rule", BOOK.rules, ids=lambda rule: rule.name)
def test_a_rule_is_complete(rule: Rule) -> None:
    assert rule.role in ROLES
    assert rule.severity in SEVERITIES
    assert rule.cause in rules.read_json("causes")
    assert rule.needs
    assert all(need == need.lower() for need in rule.needs)
    assert rule.advice or rule.cause in ("ok", "compile_warmup")
    assert not re.search(r"\(\?i\)(?<!^\(\?i\))", rule.pattern[4:]) or rule.pattern.count("(?i)") <= 1


def test_names_are_unique() -> None:
    names = [rule.name for rule in BOOK.rules]
    assert len(names) == len(set(names))


def test_every_cause_says_what_it_means_and_what_to_do() -> None:
    for cause, told in rules.read_json("causes").items():
        assert told["meaning"], cause
        assert told["advice"] or cause in ("ok", "compile_warmup"), cause


def test_every_xid_has_an_action_and_a_cause_of_the_table() -> None:
    causes = rules.read_json("causes")
    for code, told in rules.read_json("xid").items():
        assert told["action"], code
        assert told["cause"] in causes or told["cause"] == "", code
        assert told["severity"] in SEVERITIES


@pytest.mark.parametrize(
    "text",
    [
        "step 000080 | loss 2.4009 | gnorm 0.81 | 0.414 s/step | 412k tok/s",
        "{'loss': 0.2051, 'grad_norm': 1.31, 'learning_rate': 9.77e-06, 'epoch': 0.53}",
        "iter: 240  loss: 3.18 (3.64)  time: 0.57  data: 0.02  max mem: 6045",
        "registered a segfault handler",
        "the batch was shuffled",
    ],
)
def test_plain_rows_match_no_rule(text: str) -> None:
    assert rules.match(text) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 44.99 GiB)", "cuda_oom"),
        ("RuntimeError: CUDA error: out of memory", "cuda_oom"),
        ("RuntimeError: HIP out of memory. Tried to allocate 20.00 GiB", "cuda_oom"),
        ("OutOfMemoryError: out of resource: triton_x Required: 1 Hardware limit:2", "triton_compile_error"),
        ("java.lang.OutOfMemoryError: Java heap space", None),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", None),
        ("ncclRemoteError: A call failed possibly due to a network error", "peer_lost"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", "cublas_error"),
        ("zsh: killed     python train.py", "sigkill_unknown"),
        ("The process was killed in the story", None),
        ("./a.sh: ligne 4 :  811 Processus arrêté       python a.py", "sigkill_unknown"),
        ("./a.sh\uff1a第 3 行\uff1a 4410 段错误               (核心已转储) python train.py", "segfault"),
        ("./run.sh: line 9:  8123 Bus error               python train.py", "shm_bus_error"),
        ("[1]+  Bus error               python train.py", "shm_bus_error"),
        ("The Bus error was told in the story", None),
        ("Terminated", "sigterm"),
        ("Terminated early by the callback", None),
        ("train.py: error: argument --lr: invalid float value: 'x'", "bad_arguments"),
        ("OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "disk_full"),
    ],
)
def test_wordings(text: str, cause: str | None) -> None:
    rule = rules.match(text)
    assert (rule.cause if rule else None) == cause
