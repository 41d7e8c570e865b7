"""Where a progress row of the common trainers says which step it is of, and of how many. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

STEP_ELSEWHERE = (  # in Chinese, Japanese, Korean, German, French, Spanish and Russian, as are the losses
    r"\u6b65[\u6570\u9aa4]?|\u30b9\u30c6\u30c3\u30d7|\uc2a4\ud15d|\bschritt\b|\b\u00e9tape\b|\bpaso\b|\b\u0448\u0430\u0433\b"
)
_WORDS = ("step", "iter", "it ", "it:", "it=", "update", "batch", "schritt", "paso")  # the ASCII ones of _STEP
_KERAS = re.compile(r"\s{0,8}(?P<n>\d{1,9})/(?P<total>\d{1,9}) (?:\[[=>.\s]*\]|[\u2500-\u257f]+)")
_NESTED = re.compile(
    r"\[\d+/\d+\]\s?\[\s{0,12}(?P<a>\d+)/(?P<at>\d+)\]"  # [epoch/epochs][step/steps]
    r"|epoch:? ?\[\d+\]\s?\[\s{0,12}(?P<b>\d+)/(?P<bt>\d+)\]"
    r"|train(?:ing)?(?: epoch)?:? \d+ \[\s{0,12}(?P<c>\d+)/\s{0,12}(?P<ct>\d+)"
    r"|\| epoch \d+:\s{1,12}(?P<d>\d+) / (?P<dt>\d+)"
    r"|global_step/max_steps'?: '?(?P<e>\d+)/(?P<et>\d+)"
    r"|(?:epoch|iter)\(train\)\s{1,12}(?:\[\d+\])?\[\s{0,12}(?P<g>\d+)/(?P<gt>\d+)\]"
    r"|\|\s{1,12}(?P<h>\d+)/\s{0,12}(?P<ht>\d+) batches"
    r"|\.py:\d+\] \[(?P<i>\d+)\] \w+="  # a row of flax or clu
    r"|\[\s{0,12}(?P<f>\d+)/\s{0,12}(?P<ft>\d+) [\d:]+ < [\d:]+, "  # a notebook's bar as text
)
_STEP = re.compile(
    r"(?:\b(?:(?:global|train|optimizer|current)[_ ]?)?(?:step|iter|iteration|it(?=[ :=])|update|batch|num_updates)\b"
    rf"|{STEP_ELSEWHERE})['\"]?"
    r"\s{0,12}[:=#]?\s{0,12}"
    r"\[?\(?\s{0,12}(?P<n>\d+(?:,\d{3})*)(?!\d|\.\d|[km]\b)(?:\s{0,12}(?:/|\bof\b)\s{0,12}(?P<total>\d+(?:,\d{3})*))?"
    r"(?!\s{0,12}(?:mb|mib|gb|gib|s\b|ms\b|%))"
)
_MENTION = re.compile(
    r"resum|restor|load|every|warm.?up|from (?:step|checkpoint)|sav(?:e|ing|ed)|writ|checkpoint|error|fail"
)

Span = tuple[int, int]


class Count(NamedTuple):
    """Where step and steps in all stand in a row, and whether it only mentions them in passing."""

    step: Span | None = None
    num_steps: Span | None = None
    is_mention: bool = False


def find(low: str) -> Count:
    """What a lower-case row counts.

    >>> find("step 12/300")
    Count(step=(5, 7), num_steps=(8, 11), is_mention=False)
    """
    may_nest = "[" in low or "| epoch" in low or "max_steps" in low or "batches" in low
    nested = _NESTED.search(low) if may_nest else None
    if nested:
        spans = [nested.span(name) for name, value in nested.groupdict().items() if value]
        return Count(spans[0], spans[1] if len(spans) > 1 else None)
    match = _KERAS.match(low) if low[:1].isdigit() or low[:1] == " " else None
    if match is None and (not low.isascii() or any(word in low for word in _WORDS)):
        match = _STEP.search(low)
    if match is None:
        return Count()
    return Count(match.span("n"), match.span("total") if match["total"] else None, bool(_MENTION.search(low)))
