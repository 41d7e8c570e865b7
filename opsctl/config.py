"""opsctl.yaml as frozen models: strict, every key documented in opsctl.example.yaml. Reads that one file."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from opsctl.errors import ConfigError

FILE_NAME = "opsctl.yaml"

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(pattern=NAME)]
# a name, a uid or uid:gid: it becomes a word of its own, and must not look like an option
UserName = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9._-]*|[0-9]+(:[0-9]+)?)$", coerce_numbers_to_str=True)]


# words of ssh's own command line: neither may look like an option
Destination = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\[][^\s,]*$")]
LocalPath = Annotated[str, Field(pattern=r"^[~/]")]  # not relative: commands run in any folder
Jump = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\[][^\s]*$")]


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
    home: str = "~/.opsctl"
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


GpuName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9:._-]*$", coerce_numbers_to_str=True)]
# SOURCE:FOLDER or SOURCE:FOLDER:ro; the source is a volume's name or a folder of the host
Volume = Annotated[str, Field(pattern=r"^[^:]+:/[^:]*(:(ro|rw))?$")]


class DockerConfig(Section):
    """What `container build` builds, and how `container up` makes the container of a target with `docker`."""

    image: str = "opsctl-gpu"
    dockerfile: str = "Dockerfile"
    base: str | None = None
    build_args: dict[str, str] = Field(default_factory=dict)
    gpus: tuple[GpuName, ...] = ("all",)
    cdi: bool = False
    shm_size: Annotated[str, Field(pattern=r"^[0-9]+[bkmg]?$")] = "16g"
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


class NotifyConfig(Section):
    """Whom the recorder tells when a verdict changes."""

    command: tuple[str, ...] = ()
    webhook: Annotated[str, Field(pattern=r"^(https://.*)?$")] = ""
    heartbeat: Annotated[str, Field(pattern=r"^(https://.*)?$")] = ""


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


# --- errors with a place ---------------------------------------------------------------------------


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for argument in typing.get_args(hint):
        yield from _models_in(argument)


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at this place knows."""
    model: type[BaseModel] = Config
    for part in location:
        field = model.model_fields.get(str(part))
        models = list(_models_in(field.annotation)) if field else []
        if models:
            model = models[0]
    return list(model.model_fields)


def _line_of(node: yaml.Node | None, location: tuple[str | int, ...]) -> int | None:
    """The line, counted from 1, of the deepest part of `location` that the file holds."""
    line = None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _explain(error: Any, path: Path, root: yaml.Node | None) -> tuple[str, str]:
    location = error["loc"]
    line = _line_of(root, location)
    place = f"{path}:{line}" if line else str(path)
    key = ".".join(map(str, location)) or "the file"
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key {key!r}", nearest(str(location[-1]), _known_keys(location[:-1]))
    if error["type"] == "missing":
        return f"{place}: {key!r} is missing", f"see {key!r} in opsctl.example.yaml"
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {key}: {message}", "see opsctl.example.yaml for what may stand there"


def _refuse(error: ValidationError, path: Path, root: yaml.Node | None) -> ConfigError:
    explained = [_explain(one, path, root) for one in error.errors()]
    return ConfigError("\n".join(message for message, _ in explained), hint=explained[0][1])


def parse(text: str, path: Path) -> Config:
    """The configuration in `text`; raises ConfigError with `path`, line and key."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}", hint="check indentation, quotes and colons") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file holds no settings", hint="`opsctl init --local` writes a complete one")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _refuse(error, path, root) from None


def find(start: Path) -> Path:
    """The nearest opsctl.yaml in `start` or a folder above it."""
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ConfigError(
        f"no {FILE_NAME} in {start} or above it",
        hint="`opsctl init --local` writes one for this machine; `--config FILE` names another",
    )


def load(path: Path) -> Config:
    """The configuration in the file at `path`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="check the path given by --config") from None
    return parse(text, path)
