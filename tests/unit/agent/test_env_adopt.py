"""Archives of whole environments: what changes under our hands is noticed, and nothing unexpected is unpacked."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from opsctl.agent.cache.archive import Codec, gzip_codec
from opsctl.agent.env.adopt_archive import FOLDER, pack, tree, unpack
from opsctl.agent.env.adopt_look import head_commit, outside, required_names
from opsctl.errors import Busy, CheckFailed

CODEC = gzip_codec()
PLAIN = Codec(".tar", ("cat",), ("cat",))


def _unheard(done: int, total: int) -> None:
    pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, a program, a link and an empty folder."""
    root = tmp_path / "venv"
    (root / "lib" / "closed").mkdir(parents=True)
    (root / "lib" / "closed").chmod(0o550)
    (root / "lib" / "a.py").write_text("a = 1\n" * 1000)
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "python").symlink_to("/usr/bin/python3")
    return root


def test_a_tree_comes_back_as_it_was(root: Path, tmp_path: Path) -> None:
    archive, back = tmp_path / "x.tar.gz", tmp_path / "back"
    manifest = pack(root, tree(root), archive, CODEC, told=_unheard)
    assert (manifest["lib"], manifest["python"]) == (FOLDER, "-> /usr/bin/python3")
    back.mkdir()
    unpack(archive, back, manifest, CODEC, total_bytes=1, told=_unheard)
    for path, before in tree(root).entries.items():
        now = (back / path).lstat()
        assert (now.st_mode, now.st_size) == (before.st_mode, before.st_size), path
    assert (back / "lib/a.py").read_text() == (root / "lib/a.py").read_text()
    assert str((back / "python").readlink()) == "/usr/bin/python3"


def test_a_file_cut_while_it_is_archived_is_noticed(root: Path, tmp_path: Path) -> None:
    before = tree(root)
    (root / "lib" / "a.py").write_text("cut\n")
    with pytest.raises(Busy, match=r"a\.py changed while it was archived"):
        pack(root, before, tmp_path / "x.tar.gz", CODEC, told=_unheard)


def test_only_bytecode_may_change_meanwhile(root: Path) -> None:
    (root / "lib" / "__pycache__").mkdir()
    before = tree(root)
    (root / "lib" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    assert tree(root).same_as(before)
    (root / "lib" / "b.py").write_text("")
    assert not tree(root).same_as(before)


def _archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 1 if member.isreg() else 0
            tar.addfile(member, io.BytesIO(b"x"))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of "x"
HOSTILE: dict[str, tuple[tuple[tarfile.TarInfo, ...], dict[str, str]]] = {
    "a name that leads out": ((_member("../x"),), {"../x": X}),
    "an absolute name": ((_member("/x"),), {"/x": X}),
    "a file that the manifest does not name": ((_member("y"),), {"x": X}),
    "a link to elsewhere than it says": ((_member("x", tarfile.SYMTYPE, "/etc"),), {"x": "-> /usr"}),
    "a link instead of a file": ((_member("x", tarfile.SYMTYPE, X),), {"x": X}),
    "a device": ((_member("x", tarfile.CHRTYPE),), {"x": X}),
    "a file twice": ((_member("x"), _member("x")), {"x": X}),
    "another content": ((_member("x"),), {"x": "0" * 64}),
    "too little": ((_member("x"),), {"x": X, "y": X}),
}


def test_an_archive_with_more_padding_than_a_pipe_holds_is_read_to_its_end(tmp_path: Path) -> None:
    padded = tmp_path / "x.tar"
    with tarfile.open(padded, "w") as tar:
        member = _member("x")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with padded.open("ab") as file:
        file.write(bytes(1 << 20))
    (tmp_path / "back").mkdir()
    unpack(padded, tmp_path / "back", {"x": X}, PLAIN, total_bytes=1, told=_unheard)
    assert (tmp_path / "back" / "x").read_bytes() == b"x"


@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_that_is_not_as_its_manifest_says_is_refused(case: str, tmp_path: Path) -> None:
    members, manifest = HOSTILE[case]
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(CheckFailed):
        unpack(_archive(tmp_path / "x.tar.gz", *members), root, manifest, CODEC, total_bytes=1, told=_unheard)
    assert not (tmp_path / "x").exists()


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    members = (_member("x", tarfile.SYMTYPE, str(tmp_path)), _member("x/y"))
    root = tmp_path / "root"
    root.mkdir()
    archive = _archive(tmp_path / "x.tar.gz", *members)
    with pytest.raises(OSError, match="x/y"):
        unpack(archive, root, {"x": f"-> {tmp_path}", "x/y": X}, CODEC, total_bytes=1, told=_unheard)
    assert not (tmp_path / "y").exists()


def test_what_lies_outside_is_told(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nInclude-System-Site-Packages = true\n")
    (packages / "own.pth").write_text("# a comment\nimport sys\n../site-packages\n/src/a\n/src/a\n")
    assert outside(tmp_path / "venv") == (
        "it also imports what is installed in the system's own Python (include-system-site-packages)",
        "own.pth adds /src/a",
    )


def test_the_commit_of_a_checkout_is_read_without_git(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        argv = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words)
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    assert head_commit(tmp_path) == ""
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert head_commit(tmp_path) == commit
    git("pack-refs", "--all")
    assert head_commit(tmp_path) == commit
    git("checkout", "-q", "--detach")
    assert head_commit(tmp_path) == commit


def test_requirements_of_extras_are_left_out() -> None:
    metadata = (
        "Name: x\nRequires-Dist: a.B; extra == 'test'\nRequires-Dist: c_D[e]>=1\n\nRequires-Dist: of the readme\n"
    )
    assert required_names(metadata) == ("c-d",)
