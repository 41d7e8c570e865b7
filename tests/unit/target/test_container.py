"""The wrappers put the right words in front, and read the state from the hosts' own words."""

from __future__ import annotations

import pytest

from opsctl.config import ContainerConfig
from opsctl.errors import ContainerMissing, MissingTool, Unreachable
from opsctl.ops.workspace import build_container
from opsctl.target.container import ENTER, Container, Docker, Lxc, NoContainer, Pct
from opsctl.target.container_state import ContainerState
from opsctl.target.host import LocalHost
from opsctl.target.target import Target, refusal

HOSTILE = ("printf", "%s", "a b", "it's", "$(id)", "-x", "")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize(
    ("wrapper", "front"),
    [
        (Docker("c"), ("docker", "exec", "-i", "c")),
        (Docker("c", "12:34"), ("docker", "exec", "-i", "-u", "12:34", "c")),
        (Lxc("c"), ("lxc-attach", "-n", "c", "--clear-env", "--", "env", PATH)),
        (Lxc("c", "ml"), ("lxc-attach", "-n", "c", "--clear-env", "--", "env", PATH, "runuser", "-u", "ml", "--")),
        (Pct(200), ("pct", "exec", "200", "--", "env", "-i", PATH)),
        (Pct(200, "ml"), ("pct", "exec", "200", "--", "env", "-i", PATH, "runuser", "-u", "ml", "--")),
    ],
)
def test_words_go_in_front_and_the_argv_stays_last(wrapper: Container, front: tuple[str, ...]) -> None:
    assert wrapper.wrap(HOSTILE) == (*front, "sh", "-c", ENTER, "opsctl", *HOSTILE)


def test_nothing_but_a_locale_goes_in_front_without_a_container() -> None:
    assert NoContainer().wrap(HOSTILE) == ("env", "LC_ALL=C.UTF-8", *HOSTILE)
    assert NoContainer().wrap_interactive(HOSTILE, terminal="xterm") == NoContainer().wrap(HOSTILE)


@pytest.mark.parametrize("wrapper", [Docker("c"), Lxc("c"), Pct(200)])
def test_a_terminal_inside_knows_its_type(wrapper: Container) -> None:
    words = wrapper.wrap_interactive(("top",), terminal="screen-256color")
    assert words[-6:] == ("TERM=screen-256color", "sh", "-c", ENTER, "opsctl", "top")
    assert ("-it" in words) == isinstance(wrapper, Docker)


@pytest.mark.parametrize("wrapper", [Docker("c", "ml"), Lxc("c", "ml"), Pct(200, "ml")])
def test_root_inside_is_asked_for_a_users_name(wrapper: Container) -> None:
    assert wrapper.user_argv[-1] == "ml"
    assert "runuser" not in wrapper.user_argv
    assert wrapper.user_argv[:4] != ("docker", "exec", "-u", "ml")


@pytest.mark.parametrize("wrapper", [NoContainer(), Docker("c"), Docker("c", "12:34"), Lxc("c"), Pct(200)])
def test_nobody_is_asked_for_a_number_or_no_user(wrapper: Container) -> None:
    assert wrapper.user_argv == ()


def test_become_goes_before_the_container() -> None:
    sudoer = Target("t", LocalHost(), Pct(200), become=("sudo", "-n"))
    assert sudoer.interactive_argv(("top",))[:4] == ("sudo", "-n", "pct", "exec")


@pytest.mark.parametrize(
    ("settings", "built", "label"),
    [
        ({}, NoContainer(), ""),
        ({"docker": "c", "user": 1000}, Docker("c", "1000"), "docker c as 1000"),
        ({"lxc": "c"}, Lxc("c"), "lxc c"),
        ({"pct": 200, "user": "ml"}, Pct(200, "ml"), "pct 200 as ml"),
    ],
)
def test_the_configuration_names_the_wrapper(settings: dict[str, object], built: Container, label: str) -> None:
    found = build_container(ContainerConfig.model_validate(settings))
    assert (found, found.label) == (built, label)


# what real tools said: docker 20.10 and 28, lxc 5.0, pct of Proxmox VE 8
@pytest.mark.parametrize(
    ("wrapper", "code", "output", "errors", "kind"),
    [
        (Docker("c"), 0, "running\n", "", "running"),
        (Docker("c"), 0, "exited\n", "", "stopped"),
        (Docker("c"), 0, "restarting\n", "", "stopped"),
        (Docker("c"), 0, "paused\n", "", "paused"),
        (Docker("c"), 1, "\n", "Error: No such container: c\n", "missing"),
        (Docker("c"), 1, "", "Error response from daemon: No such container: c\n", "missing"),
        (Docker("c"), 1, "", "permission denied while trying to connect to the Docker daemon socket\n", "unknown"),
        (Docker("c"), 127, "", "sh: 1: docker: not found\n", "no_tool"),
        (Lxc("c"), 0, "RUNNING\n", "", "running"),
        (Lxc("c"), 0, "STOPPED\n", "", "stopped"),
        (Lxc("c"), 0, "FROZEN\n", "", "paused"),
        (Lxc("c"), 1, "", "c doesn't exist\n", "missing"),
        (Lxc("c"), 1, "", "sudo: a password is required\n", "unknown"),
        (Pct(200), 0, "status: running\n", "", "running"),
        (Pct(200), 0, "status: stopped\n", "", "stopped"),
        (Pct(200), 2, "", "Configuration file 'nodes/pve/lxc/200.conf' does not exist\n", "missing"),
        (Pct(200), None, "", "", "unknown"),
    ],
)
def test_states_are_told_apart(wrapper: Container, code: int | None, output: str, errors: str, kind: str) -> None:
    assert wrapper.parse_state(code, output, errors).kind == kind


@pytest.mark.parametrize(
    ("kind", "error", "said", "hint"),
    [
        ("stopped", ContainerMissing, "container lxc c on this machine does not run", "`sudo lxc-start -n c`"),
        ("missing", ContainerMissing, "there is no container lxc c on this machine", "`opsctl container up -t t`"),
        ("paused", ContainerMissing, "is paused", "`sudo lxc-unfreeze -n c`"),
        ("no_tool", MissingTool, "lxc-info is not on this machine", "install it there"),
        ("unknown", Unreachable, "no word on container lxc c on this machine: words", "`become:`"),
    ],
)
def test_a_refusal_says_what_is_and_what_to_do(kind: str, error: type[Exception], said: str, hint: str) -> None:
    sudoer = Target("t", LocalHost(), Lxc("c"), become=("sudo",))
    found = refusal(ContainerState(kind, "words" if kind == "unknown" else ""), sudoer)
    assert isinstance(found, error)
    assert said in str(found)
    assert hint in found.hint  # type: ignore[union-attr]  # isinstance said that it is one of ours


def test_a_running_container_refuses_nothing() -> None:
    assert refusal(ContainerState("running"), Target("t", LocalHost(), Lxc("c"))) is None
