"""What a run would fail on later, told before anything is written, most of it before torch loads. It only looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.checkpoint_folders import find_checkpoint
from trainer.errors import ConfigError
from trainer.verifier_path import check_path

if TYPE_CHECKING:
    from trainer.recipe import Recipe


def check_run(recipe: Recipe, folder: Path) -> None:
    """Raise ConfigError where a run of the recipe in `folder` could not read its data, resume or save."""
    check_drafter(recipe)
    source = recipe.corpus.path
    if source is not None and not os.access(source, os.R_OK):
        raise ConfigError(f"corpus.path: cannot read {source}")
    for what, place in (("corpus.data_dir", recipe.corpus.data_dir), ("checkpoints", folder / "checkpoints")):
        if why := why_not_writable(folder / place):
            raise ConfigError(f"{what}: {why}")
    find_checkpoint(folder / "checkpoints", recipe.resume)


def check_drafter(recipe: Recipe) -> None:
    """Raise ConfigError where there is no verifier, or, for the demo's, where the drafter does not fit it.

    Another verifier's sizes are known only to transformers, which takes seconds to load.
    """
    if recipe.verifier.path is None:
        recipe.drafter_config()
    else:
        check_path(recipe.verifier)


def check_on(recipe: Recipe, device_type: str) -> None:
    """Raise ConfigError where the drafter does not fit the verifier, or a step the device. May load transformers."""
    recipe.drafter_config()
    if device_type == "cuda":
        recipe.check_tiles()


def why_not_writable(folder: Path) -> str | None:
    """Return why files could not be made in a folder, which may not be there yet; None if they can be."""
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        return f"{place} is no folder"
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} is not writable"
