"""The rules that name what a row of text means: data from rules/*.json, matched first come, first served.

A row's words are looked up before any regular expression; rules are read once, patterns compiled when first needed.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from dataclasses import dataclass
from typing import Any

FILES = ("harmless", "compile", "collectives", "process", "data", "gpu", "python", "progress")
ROLES = ("harmless", "hint", "phase", "done", "skip", "wait", "restart", "slow", "eager", "echo", "stop", "fatal")
DEFAULT_WEIGHT = 50
_TRANSLATED = re.compile(r"\{([A-Z][A-Za-z ]+)\}")
# before a shell's word on how a job ended: script, line and pid, as `run.sh: line 9:  8123 `, or a number, as `[1]+ `
_SHELL = r"^(?:\S+[:\uff1a].{0,12}?\d+.{0,4}?[:\uff1a]?\s{1,12}\d+ )?(?:\[\d+\][+-]?\s{1,12})?"
# before words that a message may also name as one of several reasons: none of these stands in the row
_SURE = r"^(?!.*\b(?:could|may|might|potential|possibl[ey])\b).*?"
_WORD = re.compile(r"[a-z]{3,}")


@dataclass(frozen=True)
class Rule:
    """One wording and what it means.

    `role` says how it counts: fatal ends a job unless steps follow, echo follows something graver, stop is an end
    from outside, eager and slow are compile discipline lost, skip and wait matter when they do not end.
    `needs`: lower-case texts of which a matching row holds at least one; the longest Latin word in each is a whole
    word of that row. `weight` ranks root causes. In the data, `{Killed}` in a pattern stands for what the C library
    says for that in any language, and each of these is a need; `{shell}` for what a shell puts before it, `{sure}`
    for the begin of a row that does not guess.
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
    is_firm: bool = False  # a failure even where no exception or error level says so

    @property
    def shape_needs(self) -> tuple[str, ...]:
        """`needs` with every digit as 0."""
        return _without_digits(self.needs)

    def search(self, text: str) -> re.Match[str] | None:
        """Where in `text` the rule's wording stands."""
        return _compiled(self.pattern).search(text)


@dataclass(frozen=True)
class RuleBook:
    """All rules in order, and for each word those that can match a row holding it."""

    rules: tuple[Rule, ...]
    by_word: dict[str, tuple[int, ...]]
    by_sign: dict[str, tuple[int, ...]]  # what has no Latin word in it: looked for as it stands

    def candidates(self, low: str) -> list[int]:
        """The rules, in order, of which a word is in the lower-case row `low`; most rows have none."""
        found: set[int] = set()
        for word in self.by_word.keys() & _WORD.findall(low):
            found.update(self.by_word[word])
        if "^" in low or not low.isascii():
            found.update(*(indices for sign, indices in self.by_sign.items() if sign in low))
        return sorted(found)

    def may_match(self, low: str) -> bool:
        """Whether a row like `low`, of which all digits are 0, can match any rule: then one must look closer."""
        return any(need in low for index in self.candidates(low) for need in self.rules[index].shape_needs)

    def match(self, text: str) -> Rule | None:
        """The first rule that `text` matches."""
        low = text.lower()
        for index in self.candidates(low):
            rule = self.rules[index]
            if any(need in low for need in rule.needs) and rule.search(text):
                return rule
        return None


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
    said = read_json("translations")
    rules = tuple(_rule(raw, said) for name in FILES for raw in read_json(name))
    by_word: dict[str, set[int]] = {}
    by_sign: dict[str, set[int]] = {}
    for index, rule in enumerate(rules):
        for need in rule.needs:
            words = _WORD.findall(need)
            key = max(words, key=len) if words else need
            (by_word if words else by_sign).setdefault(key, set()).add(index)
    return RuleBook(rules, _sorted(by_word), _sorted(by_sign))


def match(text: str) -> Rule | None:
    """The first rule that matches a row, for rows taken one by one.

    >>> match("ModuleNotFoundError: No module named 'einops'").cause
    'missing_module'
    """
    return book().match(text)


def _rule(raw: dict[str, Any], said: dict[str, list[str]]) -> Rule:
    needs = [*raw["needs"], *(text.lower() for name in _TRANSLATED.findall(raw["pattern"]) for text in said[name])]
    pattern = _TRANSLATED.sub(lambda found: "|".join(map(re.escape, said[found.group(1)])), raw["pattern"])
    pattern = pattern.replace("{shell}", _SHELL).replace("{sure}", _SURE)
    told = raw.get("advice") or advice(raw["cause"])
    return Rule(**{**raw, "needs": tuple(dict.fromkeys(needs)), "pattern": pattern, "advice": told})


def _sorted(by_key: dict[str, set[int]]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(sorted(indices)) for key, indices in by_key.items()}


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@functools.cache
def _without_digits(needs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d", "0", need) for need in needs)
