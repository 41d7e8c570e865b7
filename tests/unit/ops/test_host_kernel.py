"""Whose a kernel row is, by what the host showed of a container's processes."""

from __future__ import annotations

import pytest

from opsctl.detect.kernel import FIRST_PID_NAMESPACE
from opsctl.ops.host_kernel import Pids

ROW = "[ 99.1] NVRM: Xid (PCI:0000:1b:00): 31, pid={}, name=python3, Ch 00000008"
LOOK = [FIRST_PID_NAMESPACE, "500", "771 12", "772 13", "32001"]


@pytest.mark.parametrize(
    ("pid", "moment", "told"),
    [
        (771, 100.0, (12, None)),
        (771, 10.0, (12, None)),  # known since, and of then too
        (500, 100.0, (None, False)),  # was there, and not in the container
        (500, 10.0, (None, None)),  # before anybody looked
        (32001, 100.0, (None, False)),  # older than the newest, whose number begins anew
        (501, 100.0, (None, None)),  # came after the look or went before it, and may have been the container's
        ("'<unknown>'", 100.0, (None, None)),
    ],
)
def test_whose_a_row_is(pid: int | str, moment: float, told: tuple[int | None, bool | None]) -> None:
    pids = Pids()
    pids.look(LOOK, 50.0)
    text = ROW.format(pid)
    assert pids.of(text, moment) == {"text": text, "pid": told[0], "is_own": told[1]}


def test_a_process_that_is_gone_is_still_known() -> None:
    pids = Pids()
    pids.look(LOOK, 50.0)
    pids.look([FIRST_PID_NAMESPACE, "500", "772 13"], 60.0)
    assert pids.of(ROW.format(771), 55.0)["pid"] == 12


def test_a_number_is_its_newest_owners() -> None:
    pids = Pids()
    pids.look(LOOK, 50.0)
    pids.look([FIRST_PID_NAMESPACE, "771", "500 14"], 60.0)
    assert [pids.of(ROW.format(pid), 70.0)["pid"] for pid in (771, 500)] == [None, 14]
    assert pids.of(ROW.format(771), 70.0)["is_own"] is False


@pytest.mark.parametrize("rows", [["pid:[4026532000]", *LOOK[1:]], LOOK[:1], ["", *LOOK[1:]], []])
def test_a_host_that_shows_no_numbers_of_its_kernel_tells_nothing(rows: list[str]) -> None:
    pids = Pids()
    pids.look(rows, 50.0)
    assert pids.of(ROW.format(771), 100.0)["pid"] is None
    assert pids.of(ROW.format(500), 100.0)["is_own"] is None
