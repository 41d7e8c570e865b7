"""Which environment a process lives in, told from its words and its environment alone."""

from __future__ import annotations

import pytest

from opsctl.agent.env.prune import reasons
from opsctl.agent.env.users import env_of

ENVS = "/h/envs/"
CASES: dict[str, tuple[tuple[bytes, ...], tuple[bytes, ...], str]] = {
    "its interpreter": ((b"/h/envs/ab-1/bin/python", b"x.py"), (), "/h/envs/ab-1"),
    "a shell that activated it": ((b"-bash",), (b"VIRTUAL_ENV=/h/envs/ab-1",), "/h/envs/ab-1"),
    "a run that is over, and left a process": (
        (b"/h/envs/ab-1/bin/python",),
        (b"OPSCTL_RUN_ID=old-1",),
        "/h/envs/ab-1",
    ),
    "a live run, which says so itself": ((b"/h/envs/ab-1/bin/python",), (b"OPSCTL_RUN_ID=run-1",), ""),
    "another environment": ((b"python",), (b"VIRTUAL_ENV=/root/venv",), ""),
    "a folder of the same beginning": ((b"/h/envs2/ab-1/bin/python",), (), ""),
    "a thread of the kernel": ((), (), ""),
    "what is not text": ((b"\xff\xfe",), (b"VIRTUAL_ENV=\xff",), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_where_a_process_lives(case: str) -> None:
    argv, environment, expected = CASES[case]
    assert env_of(argv, environment, ENVS, {"run-1"}) == expected


def test_an_environment_in_use_stays_however_old_it_is() -> None:
    found = [("old", 1.0), ("used", 2.0), ("new", 3.0)]
    why = reasons(found, active_id="", keep=1, used={"used": ["a", "b", "c", "d"]})
    assert why == {"new": "among the newest 1", "used": "used by a, b, c and 1 more"}
    assert reasons(found, active_id="old", keep=9, used={})["old"] == "active"
