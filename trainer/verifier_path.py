"""Where the verifier is, told before anything is loaded. It only looks."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.sections import VerifierConfig


def check_path(config: VerifierConfig) -> str:
    """Return the configured path; raises ConfigError where it is missing or would need a download."""
    path = config.path
    if path is None:
        raise ConfigError("verifier.path is not set")
    if (Path(path).expanduser() / "config.json").is_file():
        return str(Path(path).expanduser())
    if config.allow_download:
        return path
    raise ConfigError(
        f"verifier.path: {path} is not a folder with a config.json. "
        "To let transformers fetch that name from the hub, set verifier.allow_download: true"
    )
