"""Trees as messages: what goes in comes out; nothing is written outside, and nothing half."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.errors import CommandFailed, OpsctlError, UsageError
from opsctl.formats.transfer import Writer, inner_link, landing, reading, size_of


def copy(source: Path, path: Path) -> None:
    with Writer(path) as writer:
        for message in reading(source):
            writer.take(message)
        writer.finish()


def write(path: Path, *messages: Any) -> None:
    with Writer(path) as writer:
        for message in messages:
            writer.take(message)
        writer.finish()


def file(name: str, data: bytes = b"new", mode: int = 0o644) -> Iterator[Any]:
    yield {"type": "file", "path": name, "mode": mode}
    yield data
    yield {"type": "file-end", "sha256": hashlib.sha256(data).hexdigest()}


FOLDER = {"type": "folder", "path": "", "mode": 0o755}


def listing(folder: Path) -> dict[str, Any]:
    """Every path below, with its kind, mode and content."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        else:
            found[name] = (path.is_dir(), path.stat().st_mode & 0o777, None if path.is_dir() else path.read_bytes())
    return found


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "empty").mkdir(parents=True)
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "deep" / "er" / "run.sh").chmod(0o755)
    (root / "none").touch(mode=0o600)
    (root / "big").write_bytes(os.urandom(700_001))
    (root / "it's a\nname").write_bytes(b"x")
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"not UTF-8")
    (root / "deep" / "link").symlink_to("er/run.sh")
    (root / "dangling").symlink_to("nowhere")
    (root / "deep").chmod(0o555)
    return root


def test_a_tree_arrives_as_it_was(tree: Path, tmp_path: Path) -> None:
    copy(tree, tmp_path / "copy")
    assert listing(tmp_path / "copy") == listing(tree)
    assert {path.name for path in tmp_path.iterdir()} >= {"tree", "copy"}
    assert not list(tmp_path.rglob(".*.part"))
    assert size_of(tree) == 700_001 + 10 + 1 + 9


def test_a_tree_is_merged_into_one_that_stands(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "copy" / "empty").mkdir(parents=True)
    (tmp_path / "copy" / "empty" / "mine").write_text("stays")
    (tmp_path / "copy" / "none").write_text("replaced")
    copy(tree, tmp_path / "copy")
    assert listing(tmp_path / "copy") == {**listing(tree), "empty/mine": (False, 0o644, b"stays")}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200_000), st.sampled_from([0o600, 0o644, 0o755, 0o444]))
def test_a_file_arrives_as_it_was(tmp_path: Path, data: bytes, mode: int) -> None:
    (tmp_path / "source").unlink(missing_ok=True)
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "source").chmod(mode)
    copy(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert (tmp_path / "copy").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "messages",
    [
        list(file(""))[:2],
        [*list(file(""))[:2], {"type": "file-end", "sha256": "0" * 64}],
        [{"type": "file-end", "sha256": "0" * 64}],
        [b"of no file"],
        [],
    ],
    ids=["cut", "damaged", "no file", "no entry", "nothing"],
)
def test_a_transfer_that_fails_leaves_the_old_file(there: Path, messages: list[Any]) -> None:
    (there / "old").write_text("old")
    with pytest.raises(CommandFailed):
        write(there / "old", *messages)
    assert listing(there) == {"old": (False, 0o644, b"old")}


def test_a_new_tree_that_fails_is_not_seen_at_all(there: Path) -> None:
    with pytest.raises(CommandFailed):
        write(there / "new", FOLDER, *file("whole"), *list(file("half"))[:2])
    assert listing(there) == {}


HOSTILE = ["../out", "/out", "a/../../out", "a/\0b", "lnk/out", "sub/lnk/out"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_is_written_outside_of_the_tree(tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    standing = tmp_path / "tree"
    (standing / "sub").mkdir(parents=True)
    (standing / "lnk").symlink_to(outside)
    (standing / "sub" / "lnk").symlink_to(outside)
    entry = {"file": list(file(name)), "folder": [{**FOLDER, "path": name}]}.get(
        kind, [{"type": "link", "path": name, "to": "x"}]
    )
    with pytest.raises(OpsctlError):
        write(standing, FOLDER, *entry)
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["/etc/passwd", "../../x", "..", "sub/../../x"])
def test_links_that_lead_out_are_refused_on_both_sides(tmp_path: Path, to: str) -> None:
    with pytest.raises(UsageError, match="leads out"):
        write(tmp_path / "new", FOLDER, {"type": "link", "path": "l", "to": to})
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "l").symlink_to(to)
    with pytest.raises(UsageError, match="leads out"):
        list(reading(tmp_path / "tree"))
    assert inner_link("sub/l", "../x") == "../x"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo"):
        list(reading(tmp_path))
    with pytest.raises(UsageError, match="no file"):
        list(reading(tmp_path / "nowhere"))


def test_setuid_is_not_carried_over(tmp_path: Path) -> None:
    write(tmp_path / "f", *file("", mode=0o4755))
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o755


def test_where_it_lands(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert landing(tmp_path / "folder", "a", is_folder_meant=False) == tmp_path / "folder" / "a"
    assert landing(tmp_path / "b", "a", is_folder_meant=False) == tmp_path / "b"
    with pytest.raises(UsageError, match="no folder"):
        landing(tmp_path / "b", "a", is_folder_meant=True)
    with pytest.raises(UsageError, match="no folder"):
        landing(tmp_path / "no" / "b", "a", is_folder_meant=False)


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(CommandFailed, match="is a folder"):
        write(tmp_path / "f", *file(""))
    (tmp_path / "g").touch()
    with pytest.raises(CommandFailed, match="cannot write"):
        write(tmp_path / "g", FOLDER)
    assert (tmp_path / "g").is_file()


def test_a_fifo_is_not_replaced(there: Path) -> None:
    os.mkfifo(there / "fifo")
    (there / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        with pytest.raises(UsageError, match=f"{there}/fifo is a FIFO"):
            landing(there / name, "new", is_folder_meant=False)
    for entry in ([*file("fifo")], [{"type": "link", "path": "fifo", "to": "x"}]):
        with pytest.raises(UsageError, match=f"{there}/fifo is a FIFO"):
            write(there, FOLDER, *entry)
    assert (there / "fifo").is_fifo()
    assert {path.name for path in there.iterdir()} == {"fifo", "link"}


def test_a_link_to_a_file_is_written_through(there: Path) -> None:
    (there / "file").write_bytes(b"old")
    (there / "link").symlink_to("file")
    write(landing(there / "link", "new", is_folder_meant=False), *file(""))
    assert (there / "link").is_symlink()
    assert (there / "file").read_bytes() == b"new"


@pytest.mark.parametrize("to", ["nowhere", "link"])
def test_a_link_to_nothing_is_told(there: Path, to: str) -> None:
    (there / "link").symlink_to(to)
    with pytest.raises(UsageError, match=f"link is a link to {to}: "):
        landing(there / "link", "new", is_folder_meant=False)
