"""opsctl.yaml: the example is complete, and every refusal names its place and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from opsctl.config import Config, HostConfig, Section
from opsctl.config_file import find, load, models_in, parse
from opsctl.errors import ConfigError
from opsctl.ops.init import example
from opsctl.ops.sets import PinnedSet

HEAD = "default_target: a\ntargets: {a: {}}\n"
PATH = Path("opsctl.yaml")


def test_the_example_loads_and_shows_the_defaults() -> None:
    config = parse(example(), PATH)
    assert config.targets["here"].host == HostConfig()
    assert (config.env, config.docker) == (type(config.env)(), type(config.docker)())


def _known(model: type[Section], place: str) -> Iterator[str]:
    """The key paths below `place` that `model` takes; `*` stands for a name of the user's."""
    for name, field in model.model_fields.items():
        yield f"{place}.{name}"
        inside = f"{place}.{name}.*" if "dict" in str(field.annotation) else f"{place}.{name}"
        for inner in models_in(field.annotation):
            yield from _known(inner, inside)  # type: ignore[arg-type]  # all models are sections


def _shown(model: type[Section], data: object, place: str) -> Iterator[str]:
    """The key paths below `place` that `data` shows; a short form such as `none` shows none."""
    for name, value in data.items() if isinstance(data, dict) else ():
        yield f"{place}.{name}"
        annotation = model.model_fields[name].annotation
        for inner in models_in(annotation):
            values = value.values() if "dict" in str(annotation) else [value]
            inside = f"{place}.{name}.*" if "dict" in str(annotation) else f"{place}.{name}"
            for one in values:
                yield from _shown(inner, one, inside)  # type: ignore[arg-type]  # all models are sections


def _with_commented_targets() -> str:
    """The example with the targets that stand in it as comments."""
    return re.sub(r"^  # ", "  ", example(), flags=re.MULTILINE)


def test_the_commented_targets_are_valid() -> None:
    parsed = parse(_with_commented_targets(), PATH)
    assert [one.pct for one in (target.container for target in parsed.targets.values()) if one.pct] == [200]


def test_the_example_shows_every_key() -> None:
    shown = set(_shown(Config, yaml.safe_load(_with_commented_targets()), "opsctl"))
    # secrets are the one section that a comment beside an empty default explains
    missing = {path for path in _known(Config, "opsctl") if path not in shown and ".secrets." not in path}
    assert missing == set()


def test_the_example_beside_the_readme_is_the_shipped_one() -> None:
    assert Path("opsctl.example.yaml").read_text() == example()


@pytest.mark.parametrize(
    ("body", "line", "said", "hint"),
    [
        ("jobs: {j: {command: [x], gpu: [1]}}\n", 3, "unknown key 'jobs.j.gpu'", "did you mean 'gpus'?"),
        ("evn: {}\n", 3, "unknown key 'evn'", "did you mean 'env'?"),
        ("env:\n  keep: 0\n", 4, "env.keep", ""),
        ("docker:\n  shm: 1g\n", 4, "unknown key 'docker.shm'", "did you mean 'shm_size'?"),
        ("docker:\n  shm_size: lots\n", 4, "docker.shm_size", ""),
        ("docker:\n  gpus: [-1]\n", 4, "docker.gpus.0", ""),
        ("docker:\n  volumes: [data]\n", 4, "docker.volumes.0", ""),
        ("docker:\n  restart: never\n", 4, "docker.restart", ""),
        ("jobs: {j: {}}\n", 3, "'jobs.j.command' is missing", ""),
        ("notify: {webhook: 'http://x'}\n", 3, "notify.webhook: 'http://x' is not an https address", ""),
        ("jobs: {j: {command: python -m x}}\n", 3, "must be a list of words, for example [python, -m, x]", ""),
        ("jobs: {j: {command: [x], gpus: 5}}\n", 3, "jobs.j.gpus: must be a list, such as [5]", ""),
        ("jobs: {j: {command: []}}\n", 3, "jobs.j.command: must not be empty", ""),
        ("jobs: {a b: {command: [x]}}\n", 3, "jobs.a b: 'a b' is not a name of letters", ""),
        ("jobs: {j: {command: ['{cdoe}/x']}}\n", 3, "{cdoe} is no placeholder; did you mean {code}?", ""),
        ("jobs: {j: {command: ['{code}'], code: false}}\n", 3, "command: '{code}': {code} needs `code: true`", ""),
        ("jobs: {j: {command: ['{cache}'], env: false}}\n", 3, "{cache} needs `env: true` or", ""),
        ("jobs: {j: {command: [x], preflight: ['{cache}']}}\n", 3, "preflight: '{cache}': {cache} needs", ""),
        ("jobs: {j: {command: [x], environment: {A: '{Data}'}}}\n", 3, "did you mean {data}?", ""),
        ("env: {keep: 1}\ndefault_target: a\n", 4, "'default_target' stands in line 1 already", "take one"),
        ("jobs:\n  j: {command: [x]}\n  j: {command: [y]}\n", 5, "'j' stands in line 4 already", "take one"),
    ],
)
def test_a_bad_key_is_named_with_its_place(body: str, line: int, said: str, hint: str) -> None:
    _refused(HEAD + body, line, said, hint)


@pytest.mark.parametrize(
    ("host", "said", "hint"),
    [
        ("lcoal", "targets.a.host: 'lcoal' is neither `local` nor like {ssh: user@host}", ""),
        ("{shs: x}", "unknown key 'targets.a.host.shs'", "did you mean 'ssh'?"),
        ("{ssh: '-oProxyCommand=x'}", "targets.a.host.ssh", ""),
        ("{ssh: x, jump: '-oProxyCommand=x'}", "targets.a.host.jump", ""),
        ("{port: 22}", "targets.a.host: 'port' needs `ssh: user@host` beside it", ""),
        ("{ssh: x, port: 0}", "targets.a.host.port", ""),
        ("{ssh: x, key_file: id}", "targets.a.host.key_file", ""),
        ("{ssh: x, host_keys: 'no'}", "targets.a.host.host_keys", ""),
        ("{ssh: x, connect_timeout_s: 0}", "targets.a.host.connect_timeout_s", ""),
    ],
)
def test_a_bad_host_is_named_with_its_place(host: str, said: str, hint: str) -> None:
    _refused(f"default_target: a\ntargets:\n  a:\n    host: {host}\n", 4, said, hint)


@pytest.mark.parametrize(
    ("container", "said", "hint"),
    [
        ("nnoe", "targets.a.container: 'nnoe' is neither `none` nor like {docker: NAME}", ""),
        ("{dokcer: x}", "unknown key 'targets.a.container.dokcer'", "did you mean 'docker'?"),
        ("{docker: '-x'}", "targets.a.container.docker", ""),
        ("{docker: x, user: '-u'}", "targets.a.container.user", ""),
        ("{docker: x, lxc: y}", "targets.a.container: docker and lxc exclude each other", ""),
        ("{user: x}", "targets.a.container: `user` needs docker, lxc or pct beside it", ""),
        ("{lxc: x, user: 1000}", "targets.a.container: user '1000' must be a name", ""),
        ("{pct: 99}", "targets.a.container.pct", ""),
    ],
)
def test_a_bad_container_is_named_with_its_place(container: str, said: str, hint: str) -> None:
    _refused(f"default_target: a\ntargets:\n  a:\n    container: {container}\n", 4, said, hint)


def test_braces_that_are_no_placeholder_stay_as_they_are() -> None:
    words = ["{epoch}.pt", '{"run": 1}', "{a: 1}", "{{cdoe}}", "${cdoe}", "{}", "{code}", "{cache}"]
    assert parse(HEAD + f"jobs: {{j: {{command: {words}}}}}\n", PATH).jobs["j"].command == tuple(words)


def test_a_mistyped_default_target_gets_the_nearest_key() -> None:
    _refused(
        "defualt_target: a\ntargets: {a: {}}\n", 1, "unknown key 'defualt_target'", "did you mean 'default_target'?"
    )


@pytest.mark.parametrize("home", ["relative/x", "~ana/x", "."])
def test_a_home_in_the_current_folder_is_refused(home: str) -> None:
    _refused(f"default_target: a\ntargets:\n  a:\n    home: {home}\n", 4, "is not an absolute path", "")


def _refused(text: str, line: int, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, PATH)
    assert caught.value.message.startswith(f"opsctl.yaml:{line}: ")
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "default_target: b\ntargets: {a: {}}\n"])
def test_a_broken_file_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, PATH)


def test_an_unknown_name_gets_the_nearest() -> None:
    config = parse(HEAD + "jobs: {drafter: {command: [x]}}\n", PATH)
    with pytest.raises(ConfigError) as caught:
        config.job("draftr")
    assert caught.value.hint == "did you mean 'drafter'?"


def test_short_forms_of_docker_mean_what_they_say() -> None:
    docker = parse(HEAD + "docker: {gpus: none, restart: no}\n", PATH).docker
    assert (docker.gpus, docker.restart) == ((), "no")
    assert parse(HEAD + "docker: {gpus: [5, GPU-a1]}\n", PATH).docker.gpus == ("5", "GPU-a1")


def test_the_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    (tmp_path / "opsctl.yaml").write_text(HEAD)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert load(find(inner)).default_target == "a"
    with pytest.raises(ConfigError):
        find(Path("/proc"))


@pytest.mark.parametrize("name", ["opsctl.yaml", "env/a.in"])
def test_a_file_that_is_no_utf8_is_named_with_the_byte(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(ConfigError, match=f"{path}:2: byte 9 of the file, 0xe4, is not UTF-8") as refused:
        load(path) if name == "opsctl.yaml" else PinnedSet("a", path.parent).wanted_text()
    assert refused.value.hint == "save the file as UTF-8"
