"""The small decisions around a run: names, addresses, restarts, environment, places, tails."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.code import unpack
from opsctl.agent.home import RunPaths
from opsctl.agent.recorder.kernel import cgroup_folders
from opsctl.agent.recorder.restarts import restarts
from opsctl.agent.recorder.smi import num_gpus, smi_argv
from opsctl.agent.recorder.spawn import environment
from opsctl.agent.run_logs import tail_start
from opsctl.agent.run_start import check, fill_in
from opsctl.agent.run_state import choose
from opsctl.agent.tmux import SOCKET_LIMIT_BYTES, socket_path
from opsctl.errors import CommandFailed, UsageError
from opsctl.records.run import Attempt, Restart, RunRecord, RunSpec
from opsctl.records.verdict import Verdict

SPEC = RunSpec("job", ("true",))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "../up"},
        {"name": ".hidden"},
        {"name": "x" * 101},
        {"name": "new\nline"},
        {"argv": ()},
        {"argv": ("",)},
        {"argv": ("a\0b",)},
        {"environment": {"A=B": "x"}},
        {"environment": {"A": "\0"}},
        {"secret_names": ("1A",)},
    ],
    ids=str,
)
def test_requests_that_can_never_start(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check(replace(SPEC, **changes))


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    spec = RunSpec("job", ("{code}/x", "a={data}:{run}", "{other}", "{}"), code="/c", environment={"A": "{cache}"})
    filled = fill_in(replace(spec, cache_dir="/k"), "/r", data="/d")
    assert filled.argv == ("/c/x", "a=/d:/r", "{other}", "{}")
    assert filled.environment == {"A": "/k"}


def _runs(*texts: str) -> list[RunRecord]:
    """Runs NAME or NAME:KIND, newest first; the n-th has the id NAME-2026-n."""
    found = []
    for place, text in enumerate(texts):
        name, _, kind = text.partition(":")
        spec = RunSpec(name, ("true",), kind=kind or "train")
        found.append(RunRecord(f"{name}-2026-{place}", spec, 100.0 - place, "", ""))
    return found


@pytest.mark.parametrize(
    ("address", "live", "expected"),
    [
        ("", (), "b-2026-1"),
        ("latest", (), "b-2026-1"),
        ("", ("b-2026-3",), "b-2026-3"),
        ("", ("env-2026-0", "b-2026-3"), "b-2026-3"),
        ("", ("env-2026-0",), "env-2026-0"),
        ("a", (), "a-2026-2"),
        ("b", (), "b-2026-1"),
        ("b-2026-3", (), "b-2026-3"),
        ("a-20", (), "a-2026-2"),
    ],
)
def test_which_run_is_meant(address: str, live: tuple[str, ...], expected: str) -> None:
    runs = _runs("env:rebuild", "b", "a", "b")
    assert choose(runs, address, is_live=lambda run: run.run_id in live).run_id == expected


@pytest.mark.parametrize("address", ["c", "b-", "b-2026-9"])
def test_which_run_is_not_meant(address: str) -> None:
    with pytest.raises(UsageError, match=address):
        choose(_runs("b", "a", "b"), address, is_live=lambda run: False)


def _attempts(*ends: tuple[int | None, int | None, int | None]) -> list[Attempt]:
    return [Attempt(place, 0.0, 1.0, code, number, step) for place, (code, number, step) in enumerate(ends, 1)]


KILLED = (None, 9, 10)


@pytest.mark.parametrize(
    ("maximum", "ends", "cause", "again"),
    [
        (0, [KILLED], "sigkill_unknown", False),
        (1, [KILLED], "sigkill_unknown", True),
        (1, [KILLED, (None, 9, 20)], "sigkill_unknown", False),
        (9, [(0, None, 10)], "ok", False),
        (9, [(75, None, 10)], "ok", True),
        (9, [(1, None, None)], "missing_module", False),
        (9, [(1, None, 10)], "nan_loss", False),
        (9, [(1, None, 10)], "gpu_lost", False),
        (9, [(1, None, 10)], "disk_full", False),
        (9, [(1, None, 10)], "nccl_timeout", True),
        (9, [(None, 9, step) for step in (10, 20, 30, 40, 50)], "sigkill_unknown", True),
        (9, [(None, 9, step) for step in (10, 10, 10)], "sigkill_unknown", True),
        (9, [(None, 9, step) for step in (10, 10, 10, 10)], "sigkill_unknown", False),
        (9, [(None, 9, None)] * 3, "sigkill_unknown", False),
    ],
)
def test_when_a_job_starts_again(maximum: int, ends: list[Any], cause: str, again: bool) -> None:
    assert restarts(Restart(max=maximum), _attempts(*ends), Verdict("crashed", cause)) is again


def test_no_restart_of_what_was_stopped() -> None:
    stopped = replace(_attempts(KILLED)[0], stop_requested=True)
    assert not restarts(Restart(max=9), [stopped], Verdict("stopped", "sigkill_unknown"))


def test_environment_of_a_job() -> None:
    spec = RunSpec(
        "job",
        ("true",),
        env="/e",
        code="/c",
        cache_dir="/k",
        gpus=(5, 6),
        environment={"PATH_X": "1", "PYTHONPATH": "/mine"},
    )
    base = {"PATH": "/bin", "HOME": "/root", "TMUX": "x", "TMUX_PANE": "y", "OPSCTL_RECORDER": "z"}
    found = environment(spec, base, run_id="r-1", folder=Path("/r"), secrets={"TOKEN": "t"})
    assert found["PATH"] == "/e/bin:/bin"
    assert found["VIRTUAL_ENV"] == "/e"
    assert found["PYTHONPATH"] == "/mine"
    assert found["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert (found["TORCHINDUCTOR_CACHE_DIR"], found["TRITON_CACHE_DIR"]) == ("/k/inductor", "/k/triton")
    assert (found["OPSCTL_RUN_ID"], found["OPSCTL_RUN_DIR"], found["TOKEN"]) == ("r-1", "/r", "t")
    assert not {"TMUX", "TMUX_PANE", "OPSCTL_RECORDER"} & found.keys()
    plain = environment(SPEC, base, run_id="r-1", folder=Path("/r"), secrets={})
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR"} & plain.keys()


def test_question_for_nvidia_smi() -> None:
    assert smi_argv(("index",), (), 1.0)[-2:] == ("-lms", "1000")
    assert smi_argv(("index",), (5, 6), 1.0)[3:5] == ("-i", "5,6")
    assert num_gpus(b"8, 0, GPU-a\n") == 8
    assert num_gpus(b"NVIDIA-SMI has failed\n") == 0


@pytest.mark.parametrize("length", [1, 200])
def test_sockets_have_short_names(length: int) -> None:
    paths = RunPaths(Path("/" + "h" * length) / "runs" / "job-20261102-101112-00ff")
    path = socket_path(paths, uid=1000)
    assert len(str(path)) <= SOCKET_LIMIT_BYTES
    assert (path == paths.socket) is (length == 1)


CGROUPS = [
    (
        "0::/user.slice/x\n",
        "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/user.slice/x/memory.events",
    ),
    (
        "4:memory:/docker/abc\n",
        "40 1 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "/sys/fs/cgroup/memory/memory.oom_control",
    ),
    (
        "3:cpu,cpuacct:/a\n4:memory:/a/b\n",
        "41 1 0:31 / /cg/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "40 1 0:30 / /cg/memory rw - cgroup cgroup rw,memory\n",
        "/cg/memory/a/b/memory.oom_control",
    ),
]


@pytest.mark.parametrize(("cgroups", "mounts", "expected"), CGROUPS, ids=["v2", "v1 in docker", "v1"])
def test_where_the_kernel_counts_kills(cgroups: str, mounts: str, expected: str) -> None:
    (found,) = cgroup_folders(cgroups, mounts)
    assert str(found[0] / found[1]) == expected


@pytest.mark.parametrize(
    ("data", "num_rows", "start"),
    [
        (b"", 3, 0),
        (b"a\nb\nc\n", 2, 2),
        (b"a\nb\nc", 2, 2),
        (b"a\nb\n", 9, 0),
        (b"a\nb\n", 0, 4),
        (b"a\nb", 0, 3),
        (b"\n\n\n", 1, 2),
    ],
)
def test_where_the_last_rows_begin(tmp_path: Path, data: bytes, num_rows: int, start: int) -> None:
    (tmp_path / "log").write_bytes(data)
    assert tail_start(tmp_path / "log", num_rows) == start


def test_last_rows_of_a_long_log(tmp_path: Path) -> None:
    rows = [f"{n} {'x' * (n % 700)}\n".encode() for n in range(3000)]
    (tmp_path / "log").write_bytes(b"".join(rows))
    for num_rows in (1, 10, 1500, 2999, 3000, 5000):
        assert tail_start(tmp_path / "log", num_rows) == len(b"".join(rows[: max(0, 3000 - num_rows)]))


def _archive(*members: tuple[str, bytes, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def test_sources_are_unpacked(tmp_path: Path) -> None:
    assert unpack(_archive(("a/b.py", tarfile.REGTYPE, b"x")), tmp_path / "new") == 1
    assert (tmp_path / "new/a/b.py").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/etc/x", tarfile.REGTYPE),
        ("../x", tarfile.REGTYPE),
        ("a/../../x", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_unsafe_sources_are_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(CommandFailed):
        unpack(_archive((name, kind, b"")), tmp_path / "in" / "new")
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["new"]
    assert not (tmp_path / "x").exists()
