"""Options that every noun shares, and the one way from them to a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from opsctl import ui
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.ops.workspace import Workspace

TargetName = Annotated[
    str | None,
    typer.Option("--target", "-t", envvar="OPSCTL_TARGET", help="Target to work on; default: default_target."),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="OPSCTL_CONFIG", help="Path of opsctl.yaml; default: the nearest one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]


def named(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """The argument as it is; raises UsageError for '', as of a variable that is not set: it must not mean the default.

    ctx tells a word that was given from the default.
    """
    source = ctx.get_parameter_source(param.name or "")
    if value == "" and source is not None and source.name == "COMMANDLINE":
        raise UsageError("an empty word is no name and no id", hint="was a variable not set? leave it out, or give one")
    return value


class Noun(TyperGroup):
    """A group that shows its help where it is called without a command: exit code 2, as for other bad usage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's own, once there are words."""
        if not args and not ctx.resilient_parsing:
            ui.say(ctx.get_help())
            raise typer.Exit(UsageError.exit_code)
        return super().parse_args(ctx, args)


def noun(name: str, help_text: str) -> typer.Typer:
    """A group of commands; help is plain text, so that showing it loads no renderer."""
    return typer.Typer(
        name=name,
        help=help_text,
        cls=Noun,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def workspace(config: Path | None, target: str | None) -> Workspace:
    """The workspace that these options name."""
    from opsctl.ops.workspace import open_workspace  # pydantic: 150 ms that `--help` must not pay

    return open_workspace(config, target)
