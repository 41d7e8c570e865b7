"""Where distributions come from, as variables for uv, and what uv's failures mean. Looks at folders, runs nothing.

Shared by `env lock` (the operator's side) and `env rebuild` (the target); shipped inside the agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from opsctl.errors import CommandFailed, DiskFull, OpsctlError
from opsctl.records.env import Sources

_TAIL_ROWS = 25
_CUT = ("error decoding response body", "end of file before message length", "connection closed before message")
_WHEEL_URL = re.compile(r"^wheels = \[\s*\{[^\n]*?\b(url|path) = \"(?P<url>[^\"]+)\"", re.M)
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_SOURCE_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
    *("UV_FIND_LINKS", "UV_TORCH_BACKEND"),
)
_CREDENTIALS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@")
_HASH_MISMATCH = re.compile(
    r"Hash mismatch for `?(?P<what>[^`\s]+)`?.*?Expected:\s*(?P<expected>.*?)\s*Computed:\s*(?P<found>\S+:\S+)", re.S
)


def masked(text: str) -> str:
    """The text without user names and passwords in its addresses.

    >>> masked("see https://me:secret@host/simple")
    'see https://***@host/simple'
    """
    return _CREDENTIALS.sub(r"\g<scheme>***@", text)


def _first_of(environment: dict[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def with_environment(sources: Sources, environment: dict[str, str]) -> Sources:
    """The sources, completed from uv's and pip's variables where the configuration is silent."""
    extra = _first_of(environment, "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL").split()
    links = _first_of(environment, "UV_FIND_LINKS", "PIP_FIND_LINKS").replace(",", " ").split()
    return replace(
        sources,
        index_url=sources.index_url or _first_of(environment, "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
        extra_index_urls=sources.extra_index_urls or tuple(extra),
        find_links=sources.find_links or tuple(links),
        ca_bundle=sources.ca_bundle or _first_of(environment, "SSL_CERT_FILE", "PIP_CERT"),
    )


def local_folders(find_links: tuple[str, ...]) -> tuple[Path, ...]:
    """Those find-links entries that are folders on this machine."""
    paths = (Path(text.removeprefix("file://")).expanduser() for text in find_links if not _is_remote(text))
    return tuple(path for path in paths if path.is_dir())


def _is_remote(link: str) -> bool:
    return "://" in link and not link.startswith("file://")


def _holds_torch(folders: tuple[Path, ...], version: str, backend: str) -> bool:
    pattern = f"torch-{version}-*.whl" if version else f"torch-*+{backend}-*.whl"
    return any(next(folder.glob(pattern), None) for folder in folders)


def _link(link: str) -> str:
    """A find-links entry as uv's variable takes it: a comma there would part two entries."""
    return link if "://" in link else Path(link).expanduser().absolute().as_uri()


def source_variables(sources: Sources, *, torch_backend: str = "", torch_version: str = "") -> dict[str, str]:
    """uv's variables that say where files come from; not options, which every user of the machine could read.

    torch's own index is left out when a find-links folder has the wheel: of `torch_version` once it
    is locked, of any version for `torch_backend` before.
    """
    has_torch = _holds_torch(local_folders(sources.find_links), torch_version, torch_backend)
    found = {
        "UV_OFFLINE": "1" if sources.is_offline else "",
        "UV_DEFAULT_INDEX": "" if sources.is_offline else sources.index_url,
        "UV_INDEX": "" if sources.is_offline else " ".join(sources.extra_index_urls),
        "UV_FIND_LINKS": ",".join(map(_link, sources.find_links)),
        "UV_TORCH_BACKEND": "" if has_torch or sources.is_offline else torch_backend,
        "UV_PYTHON_INSTALL_MIRROR": sources.python_mirror,
        "SSL_CERT_FILE": sources.ca_bundle,
        **dict.fromkeys(_PROXY_VARIABLES, sources.proxy),
        "NO_PROXY": sources.no_proxy,
    }
    return {name: value for name, value in found.items() if value}


def uv_environment(variables: dict[str, str], inherited: dict[str, str]) -> dict[str, str]:
    """What uv is started with: where files come from is as `variables` say, and only there."""
    overruled = {name.lower() for name in variables} | {name.lower() for name in _SOURCE_VARIABLES}
    kept = {name: value for name, value in inherited.items() if name.lower() not in overruled}
    return {**kept, **variables, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def origin_in(pylock: str, name: str) -> str:
    """The address of a distribution's file in a pylock.toml, without credentials; "" if it names none.

    >>> origin_in('[[packages]]\\nname = "a"\\nwheels = [{ url = "https://me:pw@h/a.whl" }]\\n', "a")
    'https://***@h/a.whl'
    """
    blocks = pylock.split("[[packages]]")
    block = next((block for block in blocks if f'\nname = "{name}"\n' in block), "")
    match = _WHEEL_URL.search(block)
    return masked(match["url"]) if match else ""


def failure(text: str, status: int, *, doing: str, origin: Callable[[str], str] | None = None) -> OpsctlError:
    """The error that uv's output amounts to; `origin` tells where a distribution's file lies, for a wrong hash."""
    mismatch = _HASH_MISMATCH.search(text)
    if mismatch:
        expected = ", ".join(mismatch["expected"].split())
        place = origin(mismatch["what"].partition("==")[0]) if origin else ""
        return CommandFailed(
            f"{mismatch['what']}: its file has hash {mismatch['found']}, the lock says {expected}"
            + (f"; it comes from {place}" if place else ""),
            hint="the index or folder serves another file than was locked: check find_links and index_url,"
            " or lock again if the change is wanted",
        )
    if "os error 28" in text or "No space left on device" in text:
        return DiskFull(f"no space left while {doing}", hint="free space there, then run the command again")
    tail = "\n".join(text.splitlines()[-_TAIL_ROWS:])
    return CommandFailed(f"uv ended with status {status} while {doing}:\n{tail}", hint=_advice(text))


def _advice(text: str) -> str:
    if any(words in text for words in _CUT):
        return "a download was cut: run the command again, what came whole is kept"
    if "No solution found" in text:
        return "a version is not where we look: check the set, index_url and find_links"
    if "Failed to fetch" in text or "error sending request" in text or "dns error" in text:
        return "an index cannot be reached: set index_url, find_links or a proxy"
    return "the output above is uv's own"
