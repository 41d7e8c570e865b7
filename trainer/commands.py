"""What each command of the command line does, given its options; returns the exit status.

Heavy imports happen inside the commands, after the stop signals are in place, so that a signal is never lost to a
process that is still loading torch, and after the recipe was read, so that a wrong one is told at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import EXIT_CHECK_SAYS_NO
from trainer.signals import StopSignals

if TYPE_CHECKING:
    from trainer.recipe import Recipe


def train(options: argparse.Namespace, signals: StopSignals) -> int:
    """Train, as one rank or as the launcher of several."""
    from trainer.nodes import Nodes

    folder = Path.cwd()
    nodes = Nodes(options.nnodes, options.node_rank, options.rdzv_endpoint)
    recipe = _recipe_of(options, folder)

    from trainer.device import resolve_device, resolve_num_ranks
    from trainer.ranks import is_rank
    from trainer.recipe_checks import check_on

    device = resolve_device(recipe.device)
    num_ranks = 1 if is_rank() else resolve_num_ranks(options.nproc, device)
    check_on(recipe, device.type)
    if is_rank() or num_ranks * nodes.size == 1:
        from trainer.run import run

        return run(recipe, folder=folder, signals=signals)

    from trainer.run_ranks import run_ranks  # without the compiler and the verifier, for which the ranks would wait

    words = ("train", str(options.recipe), *options.overrides)
    return run_ranks(words, num_ranks=num_ranks, nodes=nodes, uses_gpus=device.type == "cuda", folder=folder)


def _recipe_of(options: argparse.Namespace, run_folder: Path | None = None) -> Recipe:
    """Return the recipe, checked as far as that goes before torch loads; with `run_folder` as a run there needs it."""
    from trainer.recipe import load_recipe
    from trainer.recipe_checks import check_drafter, check_run

    recipe = load_recipe(options.recipe, options.overrides)
    if run_folder is None:
        check_drafter(recipe)
    else:
        check_run(recipe, run_folder)
    return recipe


def prewarm(options: argparse.Namespace, signals: StopSignals) -> int:
    """Compile what a recipe needs, and report how warm it was."""
    recipe = _recipe_of(options)

    from trainer.device import resolve_device, resolve_num_ranks
    from trainer.files import write_json
    from trainer.prewarm import prewarm, prewarm_rank, prewarm_ranks
    from trainer.ranks import is_rank

    device = resolve_device(recipe.device)
    if is_rank():
        return prewarm_rank(recipe, say=_talk)
    num_ranks = resolve_num_ranks(options.nproc, device)
    if num_ranks == 1:
        report = prewarm(recipe, say=_talk)
    else:
        words = (str(options.recipe), *options.overrides)
        status, found = prewarm_ranks(words, num_ranks=num_ranks, uses_gpus=device.type == "cuda")
        if found is None:
            return status
        report = found
    if options.result:
        write_json(options.result, report.as_dict())
    print(json.dumps(report.as_dict()) if options.json else "\n".join(report.lines()))
    is_as_wished = report.others_loaded and (report.warmth.is_warm or not options.require_warm)
    return 0 if is_as_wished else EXIT_CHECK_SAYS_NO


def preflight(options: argparse.Namespace, signals: StopSignals) -> int:
    """Try a topology, and report whether it is safe."""
    recipe = _recipe_of(options)

    from trainer.device import resolve_device, resolve_num_ranks
    from trainer.files import write_json
    from trainer.ranks import is_rank

    device = resolve_device(recipe.device)
    if is_rank():
        from trainer.preflight.rank import preflight_rank

        return preflight_rank(recipe, device)

    from trainer.preflight.preflight import preflight  # without the compiler, which only ranks and threads load

    asked = 2 if options.nproc is None and device.type == "cpu" else options.nproc
    report = preflight(
        recipe,
        replicas=options.replicas,
        num_replicas=resolve_num_ranks(asked, device),
        lock=options.lock,
        words=(str(options.recipe), *options.overrides),
    )
    if options.result:
        write_json(options.result, report.as_dict())
    print(json.dumps(report.as_dict()) if options.json else "\n".join(report.lines()))
    return EXIT_CHECK_SAYS_NO if report.problems else 0


def check(options: argparse.Namespace, signals: StopSignals) -> int:
    """Compare with a golden case, and report."""
    from trainer.check import check_case
    from trainer.compile import Discipline
    from trainer.device import resolve_device

    device = resolve_device(options.device)
    wrap = Discipline(device.type).add if options.compiled else None
    report = check_case(options.case, form=options.attention, wrap=wrap, device=device)
    print(json.dumps(report.as_dict()) if options.json else "\n".join(report.lines()))
    return 0 if report.is_within else EXIT_CHECK_SAYS_NO


def export(options: argparse.Namespace, signals: StopSignals) -> int:
    """Write a drafter for serving engines."""
    from trainer.export import export

    print("\n".join(export(options.source, options.folder, dtype=options.dtype).lines()))
    return 0


def key(options: argparse.Namespace, signals: StopSignals) -> int:
    """Print what separates compile caches."""
    from trainer.cache_key import cache_key

    key = cache_key()
    print(
        json.dumps({"schema": 1, **key})
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in key.items())
    )
    return 0


def _talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
