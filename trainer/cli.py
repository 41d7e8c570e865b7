"""The command line: `python -m trainer train | prewarm | check | key`. The only place that turns errors into an exit.

What the commands do is in `trainer.commands`, which runs once the stop signals are in place.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.commands import check, export, key, preflight, prewarm, train
from trainer.errors import EXIT_STOPPED, TrainerError
from trainer.nodes import ANY_PORT
from trainer.signals import StopRequested, StopSignals, stop_with_parent

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
    print(f"trainer: {text}", file=sys.stderr, flush=True)


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
        "--rdzv-endpoint", default=ANY_PORT, metavar="HOST:PORT", help="where they meet: a free port of node 0"
    )
    parser.set_defaults(run=train)


def _add_nproc(parser: argparse.ArgumentParser) -> None:
    text = "processes, each with a GPU of its own (default: one a visible GPU; one on the CPU)"
    parser.add_argument("--nproc", type=int, metavar="N", help=text)


def _add_prewarm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Compile all that a recipe needs into TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR, and say how warm it was."
    parser = _add(commands, "prewarm", text, "prewarm configs/demo.yaml --require-warm")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES_HELP)
    parser.add_argument("--result", type=_output_file, metavar="FILE", help="write the report to this file as JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--require-warm", action="store_true", help="exit 1 if anything had to be compiled")
    _add_nproc(parser)
    parser.set_defaults(run=prewarm)


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
    parser.set_defaults(run=preflight)


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
    parser.set_defaults(run=check)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Write a checkpoint, or the newest one of a run's folder, as a folder that vLLM and SGLang load."
    parser = _add(commands, "export", text, "export . dflash-drafter")
    parser.add_argument("source", type=Path, help="a checkpoint, or the folder of a run")
    parser.add_argument("folder", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.set_defaults(run=export)


def _add_key(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Print what separates compile caches: torch, triton, CUDA, GPU models, Python ABI, CPU instruction set."
    parser = _add(commands, "key", text, "key --json")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=key)
