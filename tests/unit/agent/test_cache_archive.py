"""Archives of caches: what may be in one, and that nothing else ever reaches the disk."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.cache.archive import Codec, gzip_codec, is_safe_name, pack, refusal, unpack, zstd_codec
from opsctl.errors import CheckFailed, CommandFailed, DiskFull

CODECS: dict[str, Callable[[], Codec | None]] = {
    "gzip": gzip_codec,
    "zstd's own program": lambda: zstd_codec(()),
    "a Python's zstandard": lambda: _without_program(),
}


def _without_program() -> Codec | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        return zstd_codec((sys.executable,))


def _quiet(done: int, total: int) -> None:
    """Progress that nobody hears."""


def _hashes(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    root = tmp_path / "cache"
    (root / "inductor" / "ab").mkdir(parents=True)
    (root / "inductor" / "ab" / "x.so").write_bytes(b"\x7fELF" + bytes(200_000))
    (root / "inductor" / "it's.py").write_text("x = 1\n")
    (root / "triton").mkdir()
    (root / "triton" / "empty").touch()
    return root


@pytest.mark.parametrize("name", CODECS)
def test_what_is_packed_comes_back(cache: Path, tmp_path: Path, name: str) -> None:
    codec = CODECS[name]()
    if codec is None:
        pytest.skip(f"{name} is not here")
    archive, back = tmp_path / f"a{codec.suffix}", tmp_path / "back"
    hashes = _hashes(cache)
    pack(cache, sorted(hashes), archive, codec, told=_quiet)
    assert archive.stat().st_size < 20_000
    back.mkdir()
    unpack(archive, back, hashes, codec, limit_bytes=1 << 20, told=_quiet)
    assert _hashes(back) == hashes


@pytest.mark.parametrize("name", CODECS)
def test_a_disk_that_fills_up_is_told_as_such(cache: Path, name: str) -> None:
    codec = CODECS[name]()
    if codec is None:
        pytest.skip(f"{name} is not here")
    with pytest.raises(DiskFull):
        pack(cache, sorted(_hashes(cache)), Path("/dev/full"), codec, told=_quiet)


def test_the_same_files_give_the_same_gzip_archive(cache: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(cache, sorted(_hashes(cache)), tmp_path / name, gzip_codec(), told=_quiet)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- hostile archives ----------------------------------------------------------------------------------


def _member(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


GOOD = hashlib.sha256(b"good").hexdigest()
HOSTILE = {
    "absolute": _member("/tmp/x"),
    "upwards": _member("../x"),
    "upwards in the middle": _member("a/../../x"),
    "a link": _member("ok", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": _member("ok", type=tarfile.LNKTYPE, linkname="../x"),
    "a device": _member("ok", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a pipe": _member("ok", type=tarfile.FIFOTYPE),
    "a folder": _member("ok", type=tarfile.DIRTYPE),
    "a stranger": _member("stranger"),
    "another spelling": _member("./ok"),
}


def _archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("case", HOSTILE)
def test_a_member_that_is_not_ours_is_refused_and_nothing_is_written_outside(tmp_path: Path, case: str) -> None:
    archive = _archive(tmp_path / "a.tar.gz", (HOSTILE[case], b"evil"))
    back = tmp_path / "own" / "x" / "back"
    back.mkdir(parents=True)
    with pytest.raises(CheckFailed, match="the archive holds"):
        unpack(archive, back, {"ok": GOOD}, gzip_codec(), limit_bytes=1 << 20, told=_quiet)
    assert list(back.iterdir()) == []
    assert [path.name for path in (tmp_path / "own").rglob("*")] == ["x", "back"]


def test_a_changed_file_a_double_one_a_missing_one_and_a_bomb_are_refused(tmp_path: Path) -> None:
    cases = {
        "is not what its manifest says": [(_member("ok"), b"evil")],
        "twice": [(_member("ok"), b"good"), (_member("ok"), b"good")],
        "lacks 1 files": [],
        "too large": [(_member("ok"), bytes(2000))],
    }
    for number, (words, members) in enumerate(cases.items()):
        back = tmp_path / str(number)
        back.mkdir()
        archive = _archive(tmp_path / f"{number}.tar.gz", *members)
        with pytest.raises(CheckFailed, match=words):
            unpack(archive, back, {"ok": GOOD}, gzip_codec(), limit_bytes=1000, told=_quiet)


def test_a_cut_archive_is_an_error_and_not_a_part(cache: Path, tmp_path: Path) -> None:
    hashes = _hashes(cache)
    archive, back = tmp_path / "a.tar.gz", tmp_path / "back"
    pack(cache, sorted(hashes), archive, gzip_codec(), told=_quiet)
    archive.write_bytes(archive.read_bytes()[:-100])
    back.mkdir()
    with pytest.raises((CheckFailed, CommandFailed)):
        unpack(archive, back, hashes, gzip_codec(), limit_bytes=1 << 20, told=_quiet)


@given(st.text(st.sampled_from("a./\\\0"), max_size=8))
def test_a_name_that_is_safe_stays_below_in_one_spelling(name: str) -> None:
    if is_safe_name(name):
        root = Path("/root/of/cache")
        joined = root / name
        assert joined.resolve().is_relative_to(root)
        assert joined != root
        assert joined.relative_to(root).as_posix() == name


@given(st.text(min_size=1, max_size=12), st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE]))
def test_only_plain_files_of_the_manifest_pass(name: str, kind: bytes) -> None:
    member = _member(name, type=kind)
    passes = refusal(member, {"a/b": GOOD}, set()) == ""
    assert passes == (name == "a/b" and kind == tarfile.REGTYPE)
