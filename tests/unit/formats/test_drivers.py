"""Which set a driver can run, and what is said where it can run none."""

from __future__ import annotations

import pytest

from opsctl.errors import CheckFailed, ConfigError
from opsctl.formats.drivers import choose, ensure_runs

SETS = {"cpu": "", "cu126": "12.6", "cu130": "13.0"}


@pytest.mark.parametrize(
    ("driver", "expected"),
    [("580.65.06", "cu130"), ("610.1", "cu130"), ("580.65.05", "cu126"), ("525.60.13", "cu126"), ("", "cpu")],
)
def test_the_newest_cuda_that_the_driver_runs_is_chosen(driver: str, expected: str) -> None:
    assert choose(SETS, driver) == expected


def test_a_driver_too_old_for_all_is_told_with_the_versions() -> None:
    with pytest.raises(CheckFailed) as caught:
        choose(SETS, "470.82.01")
    for words in ("driver 470.82.01", "cu126 (CUDA 12.6) needs 525.60.13", "cu130 (CUDA 13.0) needs 580.65.06"):
        assert words in caught.value.message
    assert "opsctl env rebuild cpu" in caught.value.hint


def test_no_driver_and_only_cuda_sets_is_an_error() -> None:
    with pytest.raises(CheckFailed, match="no NVIDIA driver"):
        choose({"cu130": "13.0"}, "")


def test_several_sets_without_cuda_are_not_guessed_at() -> None:
    with pytest.raises(ConfigError, match="a, b"):
        choose({"a": "", "b": ""}, "")
    assert choose({"a": "", "cu130": "13.0"}, "") == "a"


def test_only_sets_without_cuda_are_fine_for_any_driver() -> None:
    assert choose({"cpu": ""}, "580.1") == "cpu"


def test_a_named_set_is_held_against_the_driver_too() -> None:
    ensure_runs("580.65.06", "13.0", name="cu130")
    ensure_runs("", "13.0", name="cu130")  # no driver to ask: the machine may only build
    with pytest.raises(CheckFailed, match=r"driver 550.54 is too old for the set cu130: CUDA 13.0 needs 580.65.06"):
        ensure_runs("550.54", "13.0", name="cu130")
