"""Text that every Python ships, for a demo that downloads nothing. It tokenises nothing."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

MIN_MODULE_CHARS = 500
MAX_CHARS = 450_000


@dataclass(frozen=True)
class Text:
    """A named text; the name, not its place, decides whether it is held out."""

    name: str
    text: str


def python_texts() -> tuple[Text, ...]:
    """Return the language reference that `help()` shows; the library's docstrings where it is not installed."""
    return _topics() or _docstrings(Path(sysconfig.get_path("stdlib")))


def is_held_out(name: str, *, one_in: int) -> bool:
    """Return whether a name falls into the held-out share; the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % one_in == 0


def _topics() -> tuple[Text, ...]:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:  # a Python built without its documentation
        return ()
    return tuple(Text(name, topics[name]) for name in sorted(topics))


def _docstrings(stdlib: Path) -> tuple[Text, ...]:
    """Return the docstrings of modules, in order of name, until there are as many characters as the reference has."""
    texts: list[Text] = []
    for path in sorted(stdlib.glob("*.py")):
        text = Text(path.stem, _docstrings_of(path))
        if len(text.text) >= MIN_MODULE_CHARS:
            texts.append(text)
        if sum(len(text.text) for text in texts) >= MAX_CHARS:
            break
    return tuple(texts)


def _docstrings_of(path: Path) -> str:
    nodes = ast.walk(ast.parse(path.read_bytes()))
    documented = (
        node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return "\n\n".join(filter(None, map(ast.get_docstring, documented)))
