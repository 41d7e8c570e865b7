"""The main job, with the commands a user would type; each is printed as it runs.

It runs on this machine, or where the words given to it lead, those of `opsctl init`: `root@HOST --docker NAME`.
A second run reuses what stands: the environment, the trained verifier and the warm compile cache.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
OPSCTL = Path(sys.executable).with_name("opsctl")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)  # paths stay whole in a file


def opsctl(*words: str) -> None:
    """Show one command, run it on this terminal, and stop the demo where it fails."""
    console.print(f"\n[bold]$ opsctl {' '.join(words)}[/bold]")
    started = time.monotonic()
    status = subprocess.run([OPSCTL, *words], cwd=ROOT).returncode
    if status:
        console.print(f"[red]`opsctl {' '.join(words)}` ended with status {status}; the demo stops here[/red]")
        sys.exit(status)
    console.print(f"[dim]{time.monotonic() - started:.1f} s[/dim]")


def ask(*words: str) -> Any:
    """What one command says in JSON."""
    return json.loads(subprocess.run([OPSCTL, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def number(value: float | None, form: str = ".2f") -> str:
    """A number for the table, or a dash where it is not known."""
    return "-" if value is None else format(value, form)


def summary(run: dict[str, Any], result: dict[str, Any], snapshot: str, seconds: float) -> Table:
    """The closing table."""
    counters = result["counters"]
    hits, misses = (counters[f"fx_{kind}"] + counters[f"aot_{kind}"] for kind in ("hits", "misses"))
    rows = [
        ("steps", str(result["steps"])),
        ("loss, first and last", f"{number(result['loss_first'])} -> {number(result['loss_last'])}"),
        ("acceptance length, before and after", f"{number(result['tau_before'])} -> {number(result['tau_after'])}"),
        ("  on prompts that do not loop", number(result["tau_not_looping"])),
        ("  prompt-lookup baseline on those", number(result["lookup_tau_not_looping"])),
        ("looping prompts", number(result["looping_share"], ".0%")),
        ("tokens/s", number(result["tokens_per_s"], ",.0f")),
        ("compile cache, hits and misses", f"{hits} and {misses}"),
        ("run", run["folder"]),
        ("log", f"{run['folder']}/train.log"),
        ("snapshot", snapshot),
        ("whole demo", f"{seconds:.0f} s"),
    ]
    table = Table(box=box.SIMPLE, show_header=False, title="What came out", title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def main() -> None:
    """Walk the mission."""
    if not OPSCTL.exists() or not shutil.which("tmux"):
        sys.exit("run `make demo`: it installs opsctl and names what this machine lacks")
    started = time.monotonic()
    opsctl("init", *(sys.argv[1:] or ("--local",)))
    opsctl("env", "rebuild")
    opsctl("cache", "prewarm", "drafter")
    opsctl("train", "start", "drafter")
    opsctl("watch")
    opsctl("cache", "snapshot")
    opsctl("status")
    run = ask("train", "status", "--json")
    result = ask("exec", "--no-stdin", "--", "cat", f"{run['folder']}/result.json")
    snapshot = ask("cache", "list", "--json")["snapshots"][0]["path"]
    console.print(summary(run, result, snapshot, time.monotonic() - started))


if __name__ == "__main__":
    main()
