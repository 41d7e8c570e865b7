"""Where distributions come from, as options for uv; and what uv's failures mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import CommandFailed, DiskFull
from opsctl.formats.sources import failure, masked, source_variables, uv_environment, with_environment
from opsctl.records.env import Sources


def test_the_configuration_wins_over_the_environment() -> None:
    environment = {"UV_INDEX_URL": "u", "PIP_INDEX_URL": "p", "PIP_FIND_LINKS": "/a /b", "PIP_EXTRA_INDEX_URL": "x y"}
    assert with_environment(Sources(), environment) == Sources("u", ("x", "y"), ("/a", "/b"))
    own = Sources("i", ("e",), ("f",), "c")
    assert with_environment(own, environment) == own


def test_torchs_own_index_is_asked_only_where_the_wheel_is_not_at_hand(tmp_path: Path) -> None:
    links = Sources(find_links=(str(tmp_path),))
    wanted = {"torch_backend": "cpu", "torch_version": "2.13.0+cpu"}
    at_hand = {"UV_FIND_LINKS": tmp_path.as_uri()}
    assert source_variables(links, **wanted) == {**at_hand, "UV_TORCH_BACKEND": "cpu"}
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    assert source_variables(links, **wanted) == at_hand
    assert source_variables(links, torch_backend="cpu") == at_hand
    assert "UV_TORCH_BACKEND" in source_variables(links, torch_backend="cu130")
    assert "UV_TORCH_BACKEND" in source_variables(Sources(find_links=("https://host/",)), **wanted)


def test_everything_that_is_configured_reaches_uv() -> None:
    found = Sources(
        "https://i", ("https://e", "https://f"), ("/a,b", "https://l"), "/ca", "http://p", "h,k", "https://m"
    )
    proxies = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"), "http://p")
    assert source_variables(found, torch_version="2.13.0") == {
        "UV_DEFAULT_INDEX": "https://i",
        "UV_INDEX": "https://e https://f",
        "UV_FIND_LINKS": "file:///a%2Cb,https://l",
        "UV_PYTHON_INSTALL_MIRROR": "https://m",
        "SSL_CERT_FILE": "/ca",
        "NO_PROXY": "h,k",
        **proxies,
    }


def test_a_build_from_a_wheelhouse_asks_nobody_else() -> None:
    offline = Sources("https://i", ("https://e",), ("/w",), is_offline=True)
    assert source_variables(offline, torch_backend="cpu") == {"UV_OFFLINE": "1", "UV_FIND_LINKS": "file:///w"}


def test_variables_of_the_machine_do_not_steer_uv_past_the_configuration() -> None:
    inherited = {
        "UV_INDEX_URL": "x",
        "UV_TORCH_BACKEND": "cu130",
        "https_proxy": "y",
        "PATH": "/bin",
        "UV_OFFLINE": "1",
    }
    found = uv_environment({"HTTPS_PROXY": "p"}, inherited)
    assert found == {"HTTPS_PROXY": "p", "PATH": "/bin", "UV_OFFLINE": "1", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


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
