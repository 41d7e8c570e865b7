"""The Docker side of `opsctl container`: what to create (pure), and creating, starting and removing it by the SDK."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import resource
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
from docker.types import DeviceRequest, Ulimit

from opsctl.config import DOCKER_ULIMITS
from opsctl.errors import CommandFailed, ConfigError, ContainerMissing

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container as DockerModel

    from opsctl.config import DockerConfig

Say = Callable[[str], None]

# where Debian and Ubuntu keep the certificates that everything trusts
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
SETTINGS_LABEL = "opsctl.settings"
_STOP_GRACE_S = 60
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what the classic builder puts around stderr
_LOG_ROWS = 20
# how runc and crun name a limit that the host does not let them set
_LIMIT = re.compile(r"rlimit type (?P<number>\d+)|RLIMIT_(?P<name>[A-Z]+)")


def device_requests(settings: DockerConfig) -> list[DeviceRequest]:
    """What Docker is asked for GPUs: all of them, some by index or UUID, or CDI names."""
    if not settings.gpus:
        return []
    if settings.cdi:
        return [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={name}" for name in settings.gpus])]
    if settings.gpus == ("all",):
        return [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    return [DeviceRequest(device_ids=list(settings.gpus), capabilities=[["gpu"]])]


def volumes(name: str, settings: DockerConfig) -> list[str]:
    """The mounts, with the container's name filled in and the certificates last."""
    wanted = [one.replace("{name}", name) for one in settings.volumes]
    return [*wanted, f"{settings.ca_bundle}:{CA_BUNDLE}:ro"] if settings.ca_bundle else wanted


def create_arguments(name: str, settings: DockerConfig) -> dict[str, Any]:
    """The arguments of the SDK's `containers.create` for the container called `name`."""
    wanted: dict[str, Any] = {
        "image": settings.image,
        "name": name,
        "hostname": name,
        "init": True,  # reaps what jobs leave behind
        "device_requests": device_requests(settings),
        "shm_size": settings.shm_size,
        "ulimits": [Ulimit(name=key, soft=limit, hard=limit) for key, limit in sorted(settings.ulimits.items())],
        "volumes": volumes(name, settings),
        "network": settings.network,
        "restart_policy": {"Name": settings.restart},
    }
    return {**wanted, "labels": {SETTINGS_LABEL: _hash(wanted)}}


def _hash(wanted: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]


def find(client: DockerClient, name: str) -> DockerModel | None:
    """The container, or None where there is none of this name."""
    try:
        return client.containers.get(name)
    except docker.errors.NotFound:
        return None


def make(client: DockerClient, name: str, settings: DockerConfig) -> None:
    """Create and start the container; raises CommandFailed. A default limit that the engine refuses is left out."""
    without: set[str] = set()
    while True:
        container = _create(client, name, settings, without)
        try:
            start(container)
        except CommandFailed as error:
            limit = refused_limit(error.message)
            is_default = bool(limit) and settings.ulimits.get(limit) == DOCKER_ULIMITS.get(limit)
            if not is_default or limit in without:
                raise
            without.add(limit)
        else:
            return


def refused_limit(said: str) -> str:
    """The limit that an engine refuses to set in these words, "" for none that we know.

    >>> refused_limit("error setting rlimit type 8: operation not permitted"), refused_limit("no space left")
    ('memlock', '')
    """
    found = _LIMIT.search(said)
    if found is None:
        return ""
    numbers = {str(getattr(resource, f"RLIMIT_{name.upper()}")): name for name in DOCKER_ULIMITS}
    return numbers.get(found["number"], "") if found["number"] else found["name"].lower()


def _create(client: DockerClient, name: str, settings: DockerConfig, without: Collection[str]) -> DockerModel:
    wanted = create_arguments(name, settings)
    wanted["ulimits"] = [limit for limit in wanted["ulimits"] if limit["Name"] not in without]
    try:
        return client.containers.create(**wanted)
    except docker.errors.ImageNotFound:
        hint = "`opsctl container build` builds it; an image of a registry is fetched by `docker pull` on the host"
        raise CommandFailed(f"the image {settings.image} is not on the host", hint=hint) from None


def start(container: DockerModel) -> None:
    """Start it, or let it go on; raises CommandFailed with what Docker says. One that never ran is removed again."""
    try:
        (container.unpause if container.status == "paused" else container.start)()
    except docker.errors.APIError as error:
        if container.status == "created":  # else the next `up` would start these same settings
            container.remove()
        said = str(error.explanation or error)
        raise CommandFailed(f"container {container.name} does not start: {said}", hint=start_hint(said)) from error


def start_hint(said: str) -> str:
    """What to do about Docker's words on a container that does not start.

    >>> start_hint('could not select device driver "" with capabilities: [[gpu]]')[:40]
    'install the NVIDIA container toolkit on '
    """
    lowered = said.lower()
    if any(word in lowered for word in ("device driver", "nvidia", "cdi")):
        return (
            "install the NVIDIA container toolkit on the host; `docker.cdi: true` asks by CDI, `docker.gpus: none` not"
        )
    if "rlimit" in lowered:
        return "the host does not allow these limits: set `docker.ulimits` to what it allows, {} for Docker's own"
    return ""


def notes(container: DockerModel, settings: DockerConfig) -> tuple[str, ...]:
    """What a person should know of a container that stands: made by hand or by other settings, an older image."""
    found = []
    label = container.labels.get(SETTINGS_LABEL)
    limits = {one["Name"] for one in container.attrs["HostConfig"].get("Ulimits") or ()}
    if label != create_arguments(str(container.name), settings)["labels"][SETTINGS_LABEL]:
        made = "by other settings" if label else "by other means"
        found.append(f"it was made {made} than `docker:` names now; `opsctl container down`, then `up`, makes it anew")
    elif refused := sorted(settings.ulimits.keys() - limits):
        found.append(f"this engine may not set the default ulimits {', '.join(refused)}: its own hold for those")
    assert container.client is not None, "a container that a client found knows it"
    if _image_id(container.client, settings.image) not in ("", container.attrs["Image"]):
        found.append(f"image {settings.image} is not the one that it was made from; `down`, then `up`, takes it")
    return tuple(found)


def _image_id(client: DockerClient, name: str) -> str:
    """The id of the image of this name, "" where there is none."""
    try:
        return str(client.images.get(name).id)
    except docker.errors.ImageNotFound:
        return ""


def facts(container: DockerModel) -> dict[str, str]:
    """What Docker says of a container, as words for people."""
    state, host = container.attrs["State"], container.attrs["HostConfig"]
    requests = host.get("DeviceRequests") or []
    asked = [",".join(one.get("DeviceIDs") or ["all" if one.get("Count") == -1 else "?"]) for one in requests]
    return {
        "image": str(container.attrs["Config"]["Image"]),
        "since": str(state["StartedAt"] if state["Running"] else state["FinishedAt"]),
        "health": str(state.get("Health", {}).get("Status", "")),
        "gpus": " ".join(asked) or "none",
        "restart": str(host["RestartPolicy"]["Name"]),
        "volumes": ", ".join(
            f"{one.get('Name') or one['Source']}:{one['Destination']}" for one in container.attrs["Mounts"]
        ),
    }


def remove(container: DockerModel) -> None:
    """Stop it, with a minute for its processes, and remove it; its volumes stay."""
    container.stop(timeout=_STOP_GRACE_S)
    container.remove()


def last_words(container: DockerModel) -> str:
    """The end of what its first process wrote."""
    return container.logs(tail=_LOG_ROWS).decode(errors="replace").strip()


def build_arguments(settings: DockerConfig, env_name: str) -> dict[str, str]:
    """The Dockerfile's arguments: the set's name, the base, and what the configuration adds."""
    base = {"BASE": settings.base} if settings.base else {}
    return {"ENV_NAME": env_name, **base, **settings.build_args}


def build(client: DockerClient, folder: Path, settings: DockerConfig, *, env_name: str, say: Say) -> str:
    """Build the image from the project's Dockerfile, row by row to `say`; returns its id."""
    if not (folder / settings.dockerfile).is_file():
        raise ConfigError(f"no {settings.dockerfile} in {folder}", hint="`docker.dockerfile` names it")
    before = _image_id(client, settings.image)
    rows: list[str] = []
    stream = client.api.build(
        path=str(folder),
        dockerfile=settings.dockerfile,
        tag=settings.image,
        buildargs=build_arguments(settings, env_name),
        rm=True,
        forcerm=True,
        decode=True,
        timeout=None,
    )
    for message in stream:
        if "error" in message:
            tail = "\n".join(rows[-_LOG_ROWS:])
            raise CommandFailed(f"the image did not build: {message['error'].strip()}\n{tail}", hint=_BUILD_HINT)
        for row in _COLOUR.sub("", str(message.get("stream", ""))).splitlines():
            if row.strip():
                rows.append(row)
                say(row)
    after = _image_id(client, settings.image)
    if before not in ("", after):
        with contextlib.suppress(docker.errors.APIError):  # a container still runs it
            client.images.remove(before, noprune=True)
    return after


_BUILD_HINT = "the rows above name the step; the finished steps are kept, so that the next build starts there"


def missing(name: str, where: str) -> ContainerMissing:
    """The error for a container that nobody has made yet."""
    return ContainerMissing(f"there is no container {name} on {where}", hint="`opsctl container up` makes it")
