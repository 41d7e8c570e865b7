"""The rules that name what a row of text means: data from rules/*.json, matched first come, first served.

A row is tested against a few short stems before any regular expression; rules are read once, patterns compiled when first needed.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from dataclasses import dataclass
from typing import Any

FILES = ("harmless", "compile", "collectives", "data", "gpu", "process", "python", "progress")
ROLES = ("harmless", "hint", "phase", "done", "skip", "wait", "restart", "slow", "eager", "echo", "stop", "fatal")
DEFAULT_WEIGHT = 50


@dataclass(frozen=True)
class Rule:
    """One wording and what it means.

    `role` says how it counts: fatal ends a job unless steps follow, echo follows something graver, stop is an end
    from outside, eager and slow are compile discipline lost, skip and wait matter when they do not end.
    `needs`: lower-case words of which a matching row holds at least one. `weight` ranks root causes.
    """

    name: str
    role: str
    cause: str
    severity: str
    needs: tuple[str, ...]
    pattern: str
    example: str
    advice: str
    weight: int = DEFAULT_WEIGHT

    def search(self, text: str) -> re.Match[str] | None:
        """Where in `text` the rule's wording stands."""
        return _compiled(self.pattern).search(text)


@dataclass(frozen=True)
class RuleBook:
    """All rules in order, and for each stem those that can match a row holding it."""

    rules: tuple[Rule, ...]
    by_stem: dict[str, tuple[int, ...]]
    other_stems: tuple[str, ...]  # of other scripts: looked for in rows that are not ASCII

    def stems_in(self, low: str) -> list[str]:
        """The stems that the lower-case text `low` holds; a row without any matches no rule."""
        found = [stem for stem in self.by_stem if stem in low]
        if not low.isascii():
            found += [stem for stem in self.other_stems if stem in low]
        return found

    def match(self, text: str, low: str, stems: list[str]) -> Rule | None:
        """The first rule that `text` matches; `stems` are what `stems_in` found in its lower case `low`."""
        for index in self._candidates(stems):
            rule = self.rules[index]
            if any(need in low for need in rule.needs) and rule.search(text):
                return rule
        return None

    def _candidates(self, stems: list[str]) -> list[int]:
        found: set[int] = set()
        for stem in stems:
            found.update(self.by_stem.get(stem) or self._of_other(stem))
        return sorted(found)

    def _of_other(self, stem: str) -> tuple[int, ...]:
        return tuple(index for index, rule in enumerate(self.rules) if stem in rule.needs)


def read_json(name: str) -> Any:
    """The data file rules/NAME.json, from a folder or from inside a zip archive."""
    data = pkgutil.get_data("opsctl.detect", f"rules/{name}.json")
    if data is None:
        raise FileNotFoundError(f"opsctl.detect has no rules/{name}.json")
    return json.loads(data)


@functools.cache
def _causes() -> dict[str, dict[str, str]]:
    return dict(read_json("causes"))


def advice(cause: str) -> str:
    """What to do about a cause, in plain words; "" for one that has none."""
    return _causes().get(cause, {}).get("advice", "")


def meaning(cause: str) -> str:
    """What a cause means, in a few words; the cause itself where it is not in the table."""
    return _causes().get(cause, {}).get("meaning", cause)


@functools.cache
def book() -> RuleBook:
    """All rules, read once a process."""
    rules = tuple(_rule(raw) for name in FILES for raw in read_json(name))
    stems = read_json("stems")
    by_stem = {stem: _holding(rules, stem) for stem in stems["ascii"]}
    return RuleBook(rules, by_stem, tuple(stems["other"]))


def match(text: str) -> Rule | None:
    """The first rule that matches a row, for rows taken one by one.

    >>> match("ModuleNotFoundError: No module named 'einops'").cause
    'missing_module'
    """
    low = text.lower()
    return book().match(text, low, book().stems_in(low))


def _rule(raw: dict[str, Any]) -> Rule:
    return Rule(**{**raw, "needs": tuple(raw["needs"]), "advice": raw.get("advice") or advice(raw["cause"])})


def _holding(rules: tuple[Rule, ...], stem: str) -> tuple[int, ...]:
    return tuple(index for index, rule in enumerate(rules) if any(stem in need for need in rule.needs))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
