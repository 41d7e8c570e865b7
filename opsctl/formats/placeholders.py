"""{run}, {data}, {code} and {cache} in a job's words: which of them are meant, and what is wrong with one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

NAMES = ("run", "data", "code", "cache")
# {{word}} and ${word} are other languages' own
_WORD = re.compile(r"(?<![{$])\{([A-Za-z_]+)\}(?!\})")


def problem(texts: Iterable[str], missing: Mapping[str, str]) -> str:
    """What is wrong with the first bad placeholder in `texts`; "" where all are well.

    `missing` says what those need that have no folder here. Braces that look like no placeholder are left alone.

    >>> problem(["{cdoe}/x"], {})
    "'{cdoe}/x': {cdoe} is no placeholder; did you mean {code}?"
    >>> problem(["{code}/x"], {"code": "`code: true`"})
    "'{code}/x': {code} needs `code: true`"
    >>> problem(['{"a": 1}', "{epoch}", "{{cdoe}}", "${cdoe}", "{run}"], {})
    ''
    """
    for text in texts:
        for word in _WORD.findall(text):
            if word in missing:
                return f"{text!r}: {{{word}}} needs {missing[word]}"
            meant = _meant(word)
            if meant and word not in NAMES:
                return f"{text!r}: {{{word}}} is no placeholder; did you mean {{{meant}}}?"
    return ""


def _meant(word: str) -> str:
    """The name that has the word's letters, in whatever order and case, but for one missing or too many."""
    letters = Counter(word.lower())
    for name in NAMES:
        known = Counter(name)
        if ((letters - known) + (known - letters)).total() <= 1:
            return name
    return ""
