"""The command line: `python -m trainer train | prewarm | check | key`. The only place that turns errors into an exit.

Heavy imports happen inside the commands, after the stop signals are in place, so that a signal is never lost to a
process that is still loading torch, and after the recipe was read, so that a wrong one is told at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import EXIT_CHECK_SAYS_NO, EXIT_STOPPED, TrainerError
from trainer.signals import StopRequested, StopSignals, stop_with_parent

if TYPE_CHECKING:
    from trainer.recipe import Recipe

_OVERRIDES_HELP = "recipe values to replace, for example optim.lr=1e-3 data.rows=4"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parse(arguments)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        stop_with_parent()
    command: Callable[[argparse.Namespace, StopSignals], int] = options.run
    with StopSignals() as signals:
        try:
            return command(options, signals)
        except StopRequested as stop:
            _complain(f"stopped by {stop}")
            return EXIT_STOPPED
        except TrainerError as error:
            _complain(str(error))
            return error.exit_code
        except RuntimeError as error:
            return _compile_exit_code(error)


def _output_file(name: str) -> Path:
    """Refuse before the work what could not be written after it."""
    from trainer.files import output_file

    try:
        return output_file(name)
    except (ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; key=value words may stand behind options too, which argparse alone does not allow."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not (hasattr(options, "overrides") and all(re.match(r"[\w.]+=", word) for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _compile_exit_code(error: RuntimeError) -> int:
    """Return the status of a broken compile discipline; any other error is passed on."""
    from trainer.compile import CompileError

    if not isinstance(error, CompileError):
        raise error
    _complain(str(error))
    return error.exit_code


def _complain(text: str) -> None:
    _talk(f"trainer: {text}")


def _talk(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Train a DFlash drafter for a language model."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands)
    _add_prewarm(commands)
    _add_preflight(commands)
    _add_check(commands)
    _add_export(commands)
    _add_key(commands)
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, example: str
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=text, epilog=f"example: python -m trainer {example}")


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Train a drafter here, one process a GPU. "
        "Exit: 0 finished, 1 crashed, 2 recipe, 3 non-finite loss, 4 compile discipline, 75 stopped."
    )
    parser = _add(commands, "train", text, "train configs/demo.yaml steps=100")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES_HELP)
    _add_nproc(parser)
    nodes = parser.add_argument_group(
        "several machines", "the same command on each, in a folder that all of them share"
    )
    nodes.add_argument("--nnodes", type=int, default=1, metavar="N", help="machines (default: this one alone)")
    nodes.add_argument("--node-rank", type=int, default=0, metavar="R", help="which of them this one is, from 0")
    nodes.add_argument(
        "--rdzv-endpoint", default="", metavar="HOST:PORT", help="where they meet: a free port of node 0"
    )
    parser.set_defaults(run=_train)


def _add_nproc(parser: argparse.ArgumentParser) -> None:
    text = "processes, each with a GPU of its own (default: one a visible GPU; one on the CPU)"
    parser.add_argument("--nproc", type=int, metavar="N", help=text)


def _train(options: argparse.Namespace, signals: StopSignals) -> int:
    folder = Path.cwd()
    recipe = _recipe_of(options, folder)

    from trainer.device import resolve_device, resolve_num_ranks
    from trainer.launch import Nodes
    from trainer.ranks import is_rank
    from trainer.recipe_checks import check_on
    from trainer.run import run, run_ranks

    device = resolve_device(recipe.device)
    num_ranks = 1 if is_rank() else resolve_num_ranks(options.nproc, device)
    nodes = Nodes(options.nnodes, options.node_rank, options.rdzv_endpoint) if options.nnodes > 1 else Nodes()
    check_on(recipe, device.type)
    if is_rank() or num_ranks * nodes.size == 1:
        return run(recipe, folder=folder, signals=signals)
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


def _add_prewarm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Compile all that a recipe needs into TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR, and say how warm it was."
    parser = _add(commands, "prewarm", text, "prewarm configs/demo.yaml --require-warm")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES_HELP)
    parser.add_argument("--result", type=_output_file, metavar="FILE", help="write the report to this file as JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--require-warm", action="store_true", help="exit 1 if anything had to be compiled")
    _add_nproc(parser)
    parser.set_defaults(run=_prewarm)


def _prewarm(options: argparse.Namespace, signals: StopSignals) -> int:
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


def _add_preflight(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Have replicas of a recipe compile and run at once for about a minute. Exit: 0 safe, 1 not, 2 recipe."
    parser = _add(commands, "preflight", text, "preflight --replicas threads configs/demo.yaml")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES_HELP)
    parser.add_argument(
        "--replicas",
        choices=("processes", "threads", "shared-threads"),
        default="processes",
        help="threads: as trainer.compile guards them; shared-threads: sharing compiled code, as most pipelines do",
    )
    parser.add_argument("--nproc", type=int, metavar="N", help="replicas (default: one a visible GPU; two on the CPU)")
    parser.add_argument(
        "--lock",
        choices=("auto", "on", "off"),
        default="auto",
        help="over steps of threads (auto: where torch needs it)",
    )
    parser.add_argument("--result", type=_output_file, metavar="FILE", help="write the report to this file as JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_preflight)


def _preflight(options: argparse.Namespace, signals: StopSignals) -> int:
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


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Compare the trainer with a folder of golden numbers. Exit: 0 within tolerance, 1 beyond, 2 broken case."
    parser = _add(commands, "check", text, "check tests/data/dflash/case1_basic_bs4_d1")
    parser.add_argument("case", type=Path)
    parser.add_argument(
        "--attention", choices=("dense", "flex"), default="dense", help="flex has no gradients on the CPU"
    )
    parser.add_argument("--compiled", action="store_true", help="compile the functions, as training does")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace, signals: StopSignals) -> int:
    from trainer.check import check_case
    from trainer.compile import Discipline
    from trainer.device import resolve_device

    device = resolve_device(options.device)
    wrap = Discipline(device.type).add if options.compiled else None
    report = check_case(options.case, form=options.attention, wrap=wrap, device=device)
    print(json.dumps(report.as_dict()) if options.json else "\n".join(report.lines()))
    return 0 if report.is_within else EXIT_CHECK_SAYS_NO


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Write a checkpoint, or the newest one of a run's folder, as a folder that vLLM and SGLang load."
    parser = _add(commands, "export", text, "export . dflash-drafter")
    parser.add_argument("source", type=Path, help="a checkpoint, or the folder of a run")
    parser.add_argument("folder", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace, signals: StopSignals) -> int:
    from trainer.export import export

    print("\n".join(export(options.source, options.folder, dtype=options.dtype).lines()))
    return 0


def _add_key(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Print what separates compile caches: torch, triton, CUDA, GPU models, Python ABI, CPU instruction set."
    parser = _add(commands, "key", text, "key --json")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_key)


def _key(options: argparse.Namespace, signals: StopSignals) -> int:
    from trainer.cache_key import cache_key

    key = cache_key()
    print(
        json.dumps({"schema": 1, **key})
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in key.items())
    )
    return 0
