"""Downloads for the operator's side: resumed, hash-checked, by the configured proxy and passwords."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import SplitResult, unquote, urlsplit

import requests
import tenacity

from opsctl.errors import CommandFailed
from opsctl.formats.sources import masked
from opsctl.ops.local_file import sha256_of_file
from opsctl.records.env import Sources

Tell = Callable[[int], None]
_TIMEOUT_S = 30.0  # to connect, and between two pieces
_CHUNK_BYTES = 1 << 16  # what a cut link loses at most
_NUM_TRIES = 4
# what another try may cure; a body that ends early is a ChunkedEncodingError to requests
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class Downloader:
    """Fetches files; one connection a host."""

    def __init__(self, sources: Sources) -> None:
        self._session = requests.Session()
        self._session.verify = sources.ca_bundle or True
        if sources.proxy:
            self._session.proxies = {"http": sources.proxy, "https": sources.proxy, "no_proxy": sources.no_proxy}
        addresses = (sources.index_url, *sources.extra_index_urls, *sources.find_links)
        places = (urlsplit(address) for address in addresses if "@" in address)
        self._passwords = {
            _host(place): (unquote(place.username or ""), unquote(place.password or "")) for place in places
        }

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def bring(self, url: str, path: Path, *, sha256: str, tell: Tell) -> None:
        """Put the file at `path`, whole; raises CommandFailed, and keeps what came for the next time."""
        part = path.with_name(f".{sha256}.part")
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_PASSING),
            stop=tenacity.stop_after_attempt(_NUM_TRIES),
            wait=tenacity.wait_exponential(multiplier=0.2, max=5.0) + tenacity.wait_random(0.0, 0.3),
            reraise=True,
        )
        try:
            again(self._continue, url, part, tell)
        except requests.RequestException as error:
            raise CommandFailed(
                f"{masked(url)} cannot be fetched: {masked(str(error))}",
                hint="run the command again, it goes on where it ended; see index_url, proxy and ca_bundle",
            ) from None
        _check(part, path.name, url, sha256)
        part.replace(path)

    def _continue(self, url: str, part: Path, tell: Tell) -> None:
        """Append what is missing; a server that does not resume begins anew."""
        done = part.stat().st_size if part.exists() else 0
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
        auth = self._passwords.get(_host(urlsplit(url)))
        with self._session.get(url, headers=headers, auth=auth, stream=True, timeout=_TIMEOUT_S) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                return  # all of it is there; its hash will tell
            answer.raise_for_status()
            is_rest = answer.status_code == requests.codes.partial_content
            done = done if is_rest else 0
            with part.open("ab" if is_rest else "wb") as file:
                for piece in answer.iter_content(_CHUNK_BYTES):
                    file.write(piece)
                    done += len(piece)
                    tell(done)


def _host(place: SplitResult) -> str:
    return f"{place.scheme}://{place.hostname}:{place.port or ''}"


def _check(part: Path, name: str, url: str, sha256: str) -> None:
    found = sha256_of_file(part)
    if found != sha256:
        part.unlink()
        raise CommandFailed(
            f"{name} has hash sha256:{found}, the lock says sha256:{sha256}; it came from {masked(url)}",
            hint="it was cut or changed on its way, or the index serves another file: try again, or lock again",
        )
