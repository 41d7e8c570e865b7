"""Where an installed distribution came from, as its own direct_url.json says. Pure but for reading that file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opsctl.formats.sources import masked
from opsctl.records.env import Origin

_NO_ORIGIN = Origin("index")


def read_origin(info: Path) -> Origin:
    """The origin of the distribution whose .dist-info folder this is; credentials are masked."""
    try:
        text = (info / "direct_url.json").read_text(errors="replace")
    except OSError:
        return _NO_ORIGIN
    return parse_origin(text)


def parse_origin(text: str) -> Origin:
    """What a direct_url.json says.

    >>> parse_origin('{"url": "https://host/r", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}').url
    'git+https://host/r@ab12'
    """
    try:
        found: dict[str, Any] = dict(json.loads(text))
    except (ValueError, TypeError):
        return Origin("unknown", "its direct_url.json cannot be read")
    url = masked(str(found.get("url", "")))
    part = f"#subdirectory={found['subdirectory']}" if found.get("subdirectory") else ""
    if isinstance(vcs := found.get("vcs_info"), dict):
        return Origin(str(vcs.get("vcs", "git")), f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}{part}")
    if isinstance(folder := found.get("dir_info"), dict):
        return Origin("editable" if folder.get("editable") else "folder", url + part)
    if url.startswith("file://"):
        return Origin("file", url, _sha256(found.get("archive_info")))
    return Origin("url", url + part, _sha256(found.get("archive_info")))


def _sha256(archive: Any) -> str:
    """The hash that an archive was checked by, "" where none was given."""
    if not isinstance(archive, dict):
        return ""
    hashes = archive.get("hashes")
    if isinstance(hashes, dict) and "sha256" in hashes:
        return str(hashes["sha256"])
    algorithm, _, value = str(archive.get("hash") or "").partition("=")
    return value if algorithm == "sha256" else ""
