"""opsctl.yaml as frozen models: strict, every key documented in opsctl.example.yaml. No I/O; `config_file` reads."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from opsctl.config_texts import Address, Destination, GpuName, Home, Jump, LocalPath, Name, ShmSize, UserName, Volume
from opsctl.errors import ConfigError
from opsctl.formats import placeholders

FILE_NAME = "opsctl.yaml"


# NCCL pins memory, deep stacks and many open files are common; -1 is unlimited
DOCKER_ULIMITS = {"memlock": -1, "stack": 67_108_864, "nofile": 1_048_576}


class Section(BaseModel):
    """The base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HostConfig(Section):
    """This machine (`local`), or one behind sshd; what is left out is as ssh_config says."""

    ssh: Destination | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key_file: LocalPath | None = None
    jump: Jump | None = None
    ssh_config: LocalPath | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"
    connect_timeout_s: Annotated[float, Field(ge=1, le=300)] = 10.0

    @model_validator(mode="after")
    def _has_a_destination(self) -> HostConfig:
        changed = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.ssh is None and changed:
            raise ValueError(f"{_quoted(changed)} needs `ssh: user@host` beside it")
        return self


class ContainerConfig(Section):
    """A container on the host: `none`, or one of docker, lxc and pct, and perhaps a user inside."""

    docker: Name | None = None
    lxc: Name | None = None
    pct: Annotated[int, Field(ge=100, le=999_999_999)] | None = None
    user: UserName | None = None

    @model_validator(mode="after")
    def _is_one_container(self) -> ContainerConfig:
        kinds = [kind for kind in ("docker", "lxc", "pct") if getattr(self, kind) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} exclude each other")
        if self.user and not kinds:
            raise ValueError("`user` needs docker, lxc or pct beside it")
        if self.user and self.user[0].isdigit() and kinds != ["docker"]:
            raise ValueError(f"user {self.user!r} must be a name: only docker takes a number")
        return self


class TargetConfig(Section):
    """Where things run."""

    host: HostConfig = HostConfig()
    container: ContainerConfig = ContainerConfig()
    home: Home = "~/.opsctl"
    python: str = "python3"
    become: tuple[str, ...] = ()

    @field_validator("host", mode="before")
    @classmethod
    def _short_host(cls, value: Any) -> Any:
        if value == "local":
            return HostConfig()
        if value is None or isinstance(value, str):
            raise ValueError(f"{value!r} is neither `local` nor like {{ssh: user@host}}")
        return value

    @field_validator("container", mode="before")
    @classmethod
    def _short_container(cls, value: Any) -> Any:
        if value == "none":
            return ContainerConfig()
        if value is None or isinstance(value, str):
            raise ValueError(f"{value!r} is neither `none` nor like {{docker: NAME}}, {{lxc: NAME}}, {{pct: 200}}")
        return value


class DockerConfig(Section):
    """What `container build` builds, and how `container up` makes the container of a target with `docker`."""

    image: str = "opsctl-gpu"
    dockerfile: str = "Dockerfile"
    base: str | None = None
    build_args: dict[str, str] = Field(default_factory=dict)
    gpus: tuple[GpuName, ...] = ("all",)
    cdi: bool = False
    shm_size: ShmSize = "16g"
    ulimits: dict[Name, Annotated[int, Field(ge=-1)]] = Field(default_factory=lambda: dict(DOCKER_ULIMITS))
    volumes: tuple[Volume, ...] = ("{name}-home:/home/opsctl/.opsctl", "{name}-cache:/home/opsctl/.cache")
    ca_bundle: str | None = None
    network: str = "bridge"
    restart: Literal["no", "always", "unless-stopped", "on-failure"] = "unless-stopped"

    @field_validator("gpus", mode="before")
    @classmethod
    def _short_gpus(cls, value: Any) -> Any:
        """`all` and `none` without brackets."""
        return {"all": ("all",), "none": ()}.get(value, value) if isinstance(value, str) else value

    @field_validator("restart", mode="before")
    @classmethod
    def _yaml_no(cls, value: Any) -> Any:
        return "no" if value is False else value  # YAML reads a bare `no` as false


class EnvConfig(Section):
    """Which pinned set is built, and where its files come from."""

    name: Name = "cpu"
    dir: str = "env"
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    ca_bundle: str | None = None
    proxy: str | None = None
    no_proxy: tuple[str, ...] = ()
    python_mirror: str | None = None
    keep: Annotated[int, Field(ge=1)] = 3


class CodeConfig(Section):
    """Which sources a run gets, relative to the folder of opsctl.yaml."""

    paths: tuple[str, ...] = ("trainer", "configs")
    exclude: tuple[str, ...] = ("__pycache__", "*.pyc", ".git")


class FromEnv(Section):
    """A secret by reference: the operator's environment variable that holds it."""

    from_env: str


class RestartConfig(Section):
    """When the recorder starts a job again by itself."""

    max: Annotated[int, Field(ge=0)] = 0
    backoff_s: Annotated[float, Field(ge=0)] = 10.0


class JobConfig(Section):
    """One thing that `train start` can run."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    prewarm: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    env: bool = True
    code: bool = True
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    share: bool = False
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, FromEnv] = Field(default_factory=dict)
    stop_grace_s: Annotated[float, Field(gt=0)] = 60.0
    sample_period_s: Annotated[float, Field(ge=0.2)] = 1.0
    restart: RestartConfig = RestartConfig()
    expect_compiled: bool | None = None
    baseline: Name | None = None

    @model_validator(mode="after")
    def _has_its_placeholders(self) -> JobConfig:
        for key, texts in (
            ("command", self.command),
            ("prewarm", self.prewarm),
            ("preflight", self.preflight),
            ("environment", self.environment.values()),
        ):
            problem = placeholders.problem(texts, self.missing_placeholders(key))
            if problem:
                raise ValueError(f"{key}: {problem}")
        return self

    def missing_placeholders(self, key: str) -> dict[str, str]:
        """The placeholders that have no folder in the words under `key`, and what each needs."""
        missing = {} if self.code else {"code": "`code: true`"}
        if key == "preflight":
            missing["cache"] = "a live cache, which a preflight leaves alone"
        elif not (self.env or self.prewarm):
            missing["cache"] = "`env: true` or a `prewarm` command"
        return missing


class NotifyConfig(Section):
    """Whom the recorder tells when a verdict changes."""

    command: tuple[str, ...] = ()
    webhook: Address = ""
    heartbeat: Address = ""


class Config(Section):
    """The whole of opsctl.yaml."""

    default_target: str
    targets: Annotated[dict[Name, TargetConfig], Field(min_length=1)]
    docker: DockerConfig = DockerConfig()
    env: EnvConfig = EnvConfig()
    code: CodeConfig = CodeConfig()
    jobs: dict[Name, JobConfig] = Field(default_factory=dict)
    notify: NotifyConfig = NotifyConfig()

    @model_validator(mode="after")
    def _default_target_exists(self) -> Config:
        if self.default_target not in self.targets:
            raise ValueError(f"default_target is {self.default_target!r}, but targets has {_quoted(self.targets)}")
        return self

    def target(self, name: str | None) -> tuple[str, TargetConfig]:
        """The target called `name`, or the default one; raises ConfigError naming the nearest."""
        wanted = name or self.default_target
        return wanted, _pick(self.targets, wanted, "target")

    def job(self, name: str) -> JobConfig:
        """The job called `name`; raises ConfigError naming the nearest."""
        return _pick(self.jobs, name, "job")


def _quoted(names: typing.Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def nearest(name: str, known: Sequence[str]) -> str:
    """A sentence that helps with a mistyped name.

    >>> nearest("trian", ["train", "env"])
    "did you mean 'train'?"
    """
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known: {_quoted(known)}"


_S = typing.TypeVar("_S", bound=Section)


def _pick(sections: dict[str, _S], name: str, noun: str) -> _S:
    if name in sections:
        return sections[name]
    raise ConfigError(f"no {noun} {name!r} in {FILE_NAME}", hint=nearest(name, list(sections)))
