"""What terminals, launchers and log collectors put around a log changes no verdict."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from opsctl.ops.diagnose import case_in, diagnose
from opsctl.ops.material import Material
from tests.support.cases import folders

WIDTH = 80


def _is_plain(folder: Path) -> bool:
    """Whether the case's log is one that nothing was put around yet."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    log = folder / "log.txt"
    return case.get("log_form") == "joined" and log.exists() and log.read_bytes().isascii()


FOLDERS = [folder for folder in folders("watch_own") if _is_plain(folder)]


def _each(form: str) -> Callable[[str], str]:
    return lambda text: "".join(form.format(row) + "\n" for row in text.splitlines())


def wrapped(text: str) -> str:
    """As a pane of 80 columns shows it: cut hard, trailing blanks gone."""
    rows = (row[at : at + WIDTH].rstrip() for row in text.splitlines() for at in range(0, max(len(row), 1), WIDTH))
    return "".join(f"{row}\n" for row in rows)


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "pane": wrapped,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "colours": _each("\x1b[36m{}\x1b[0m"),
    "kubernetes": _each("2026-11-02T10:00:00.123456789Z stdout F {}"),
    "times": _each("[2026-11-02 10:00:00] {}"),
    "kubectl": _each("[pod/train-0/main] {}"),
    "journal": _each("Nov  2 10:00:00 gpu-n1 python[812]: {}"),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_the_verdict_stays_the_same_whatever_is_around_the_rows(name: str) -> None:
    assert len(FOLDERS) > 100
    changed = []
    for folder in FOLDERS:
        material, before = _plain(folder)
        text = (folder / "log.txt").read_text()
        around = WRAPPINGS[name](text).encode()
        columns = WIDTH if name == "pane" else 0
        after = _pair(replace(material, log=around, columns=columns))
        if before != after:
            changed.append((folder.name, before, after))
    assert not changed


@functools.cache
def _plain(folder: Path) -> tuple[Material, tuple[str, str]]:
    """A case as it is, and what is said of it; the same for every wrapping."""
    material = case_in(folder)
    return material, _pair(material)


def _pair(material: Material) -> tuple[str, str]:
    verdict = diagnose(material).verdict
    return verdict.verdict, verdict.cause
