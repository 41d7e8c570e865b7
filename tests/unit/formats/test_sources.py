"""Where distributions come from, as options for uv; and what uv's failures mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import CommandFailed, DiskFull
from opsctl.formats.sources import failure, masked, source_options, with_environment
from opsctl.records.env import Sources


def test_the_configuration_wins_over_the_environment() -> None:
    environment = {"UV_INDEX_URL": "u", "PIP_INDEX_URL": "p", "PIP_FIND_LINKS": "/a /b", "PIP_EXTRA_INDEX_URL": "x y"}
    assert with_environment(Sources(), environment) == Sources("u", ("x", "y"), ("/a", "/b"))
    own = Sources("i", ("e",), ("f",), "c")
    assert with_environment(own, environment) == own


def test_torchs_own_index_is_asked_only_where_the_wheel_is_not_at_hand(tmp_path: Path) -> None:
    links = Sources(find_links=(str(tmp_path),))
    wanted = {"torch_backend": "cpu", "torch_version": "2.13.0+cpu"}
    assert source_options(links, **wanted) == ("--find-links", str(tmp_path), "--torch-backend", "cpu")
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    assert source_options(links, **wanted) == ("--find-links", str(tmp_path))
    assert source_options(links, torch_backend="cpu") == ("--find-links", str(tmp_path))
    assert "--torch-backend" in source_options(links, torch_backend="cu130")
    assert "--torch-backend" in source_options(Sources(find_links=("https://host/",)), **wanted)


def test_a_set_without_a_backend_asks_no_index_of_torch() -> None:
    assert source_options(Sources("https://i", ("https://e",)), torch_version="2.13.0") == (
        *("--default-index", "https://i"),
        *("--index", "https://e"),
    )


HASHES = """error: Failed to download `torch==2.13.0+cpu`
  cause: Hash mismatch for `torch==2.13.0+cpu`

         Expected:
           sha256:0746
           sha256:0747

         Computed:
           sha256:6746
"""


def test_a_hash_mismatch_names_package_and_both_hashes() -> None:
    found = failure(HASHES, 1, doing="x")
    assert isinstance(found, CommandFailed)
    assert found.message == "torch==2.13.0+cpu: its file has hash sha256:6746, the lock says sha256:0746, sha256:0747"


@pytest.mark.parametrize("text", ["failed: No space left on device (os error 28)", "os error 28"])
def test_a_full_disk_is_one(text: str) -> None:
    assert isinstance(failure(text, 2, doing="installing"), DiskFull)


def test_anything_else_shows_the_end_of_what_uv_said() -> None:
    found = failure("\n".join(f"row {number}" for number in range(99)), 2, doing="locking cpu")
    assert "status 2 while locking cpu" in found.message
    assert "row 98" in found.message
    assert "row 5\n" not in found.message


def test_credentials_are_masked() -> None:
    assert masked("https://me:secret@host/x and ssh://tok@h") == "https://***@host/x and ssh://***@h"
