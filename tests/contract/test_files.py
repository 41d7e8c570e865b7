"""`put` and `get` over every host and container: large files, trees, hostile names, and the way of errors."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from opsctl.errors import UsageError
from opsctl.ops.files import get, put
from opsctl.ops.workspace import Workspace
from tests.support.place import Place

SIZE_BYTES = 50_000_000


@pytest.fixture
def there(home: str, place: Place) -> str:
    """A folder on the target, with a name that needs quoting."""
    folder = f'{home[: home.rindex("/")]}/in $HOME \n"x"'
    place.outside(folder).mkdir()
    return folder


def test_fifty_megabytes_go_there_and_back(workspace: Workspace, place: Place, there: str, tmp_path: Path) -> None:
    block = os.urandom(1_000_000)
    (tmp_path / "big").write_bytes(block * (SIZE_BYTES // len(block)))
    (tmp_path / "big").chmod(0o640)
    moved = put(workspace, tmp_path / "big", f"{there}/")
    assert (moved.path, moved.num_files, moved.num_bytes) == (f"{there}/big", 1, SIZE_BYTES)
    assert place.outside(moved.path).stat().st_mode & 0o777 == 0o640
    (tmp_path / "back").mkdir()
    back = get(workspace, moved.path, tmp_path / "back")
    assert back.path == str(tmp_path / "back" / "big")
    with (tmp_path / "big").open("rb") as sent, Path(back.path).open("rb") as came:
        assert hashlib.file_digest(sent, "sha256").digest() == hashlib.file_digest(came, "sha256").digest()


def test_a_tree_goes_there_and_back(workspace: Workspace, there: str, tmp_path: Path) -> None:
    names = ("it's", "a b", "-n", "$(id)", "\n", "\u2603", os.fsdecode(b"\xff"))
    for name in names:
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / name).write_bytes(os.fsencode(name))
    (tmp_path / "tree" / "link").symlink_to("a b/a b")
    (tmp_path / "tree" / "-n" / "-n").chmod(0o750)
    moved = put(workspace, tmp_path / "tree", f"{there}/copy")
    assert moved.num_files == len(names)
    get(workspace, f"{there}/copy", tmp_path / "back")
    assert {path.name for path in (tmp_path / "back").iterdir()} == {*names, "link"}
    assert all((tmp_path / "back" / name / name).read_bytes() == os.fsencode(name) for name in names)
    assert (tmp_path / "back" / "-n" / "-n").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "back" / "link").readlink() == Path("a b/a b")


def test_what_is_not_there_is_named(workspace: Workspace, there: str, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(UsageError, match="no folder"):
        put(workspace, tmp_path / "f", f"{there}/no/f")
    with pytest.raises(UsageError, match="no file"):
        put(workspace, tmp_path / "nothing", there)
    with pytest.raises(UsageError, match="no file"):
        get(workspace, f"{there}/nothing", tmp_path)
