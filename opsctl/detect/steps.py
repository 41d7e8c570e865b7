"""Progress rows of the common trainers to numbers: step, loss, seconds a step, tokens a second.

Pure parsing; what a number means for the run is the folds' business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUM = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_BAR = re.compile(
    r"(?P<desc>[^|%]*?)\d{1,3}%(?:\|[^|]*\|)?\s*(?P<n>\d+)/(?P<total>\d+) \[[\d:]+<[^,\]]*,\s*"
    r"(?P<rate>[\d.]+|\?)\s*(?P<unit>[a-zA-Z]*/?[a-zA-Z]*)(?P<post>[^\]]*)\]?"
)
_KERAS = re.compile(r"^\s*(?P<n>\d+)/(?P<total>\d+) (?:\[[=>.\s]*\]|[\u2500-\u257f]+)")
_NESTED = re.compile(
    r"\[\d+/\d+\]\s?\[\s*(?P<a>\d+)/(?P<at>\d+)\]"  # [epoch/epochs][step/steps]
    r"|[Ee]poch:? ?\[\d+\]\s?\[\s*(?P<b>\d+)/(?P<bt>\d+)\]"
    r"|[Tt]rain(?:ing)?(?: [Ee]poch)?:? \d+ \[\s*(?P<c>\d+)/(?P<ct>\d+)"
    r"|\| epoch \d+:\s+(?P<d>\d+) / (?P<dt>\d+)"
    r"|global_step/max_steps'?: '?(?P<e>\d+)/(?P<et>\d+)"
)
_STEP = re.compile(
    r"(?:\b|_)(?:global[_ ]?)?(?:step|iter|iteration|update|batch|num_updates)\b['\"]?\s*[:=#]?\s*\[?\(?\s*"
    r"(?P<n>\d[\d,]*)(?:\s*(?:/|\bof\b)\s*(?P<total>\d[\d,]*))?(?![\d.]*\s*(?:MB|MiB|GB|GiB|s\b|ms\b|%))",
    re.IGNORECASE,
)
_MENTION = re.compile(
    r"resum|restor|load|every|warm.?up|from (?:step|checkpoint)|sav(?:e|ing|ed)|writ|checkpoint", re.IGNORECASE
)
_LOSS = re.compile(
    rf"(?<![\w/])(?:(?:train(?:ing)?|total|lm|avg|mean)[ _/.-]?)?loss['\"]?\s*[:=|]?\s*\(?(?P<v>{_NUM})(?![\w.])",
    re.IGNORECASE,
)
_GRAD = re.compile(rf"(?:grad(?:ient)?[_ ]?norm|gnorm)['\"]?\s*[:=|]?\s*(?P<v>{_NUM})", re.IGNORECASE)
_STEP_S = re.compile(
    r"(?P<a>\d+\.?\d*)\s*(?P<au>ms|s|sec|secs|seconds)\s*/\s*(?:step|it|iter|iteration|batch)\b"
    r"|(?P<b>\d+\.?\d*)\s*(?:it|its|steps?|iters?|batch(?:es)?)\s*/\s*s(?:ec(?:ond)?)?\b"
    r"|time per iteration \(ms\):\s*(?P<c>\d+\.?\d*)"
    r"|\b(?:(?:step|iter|batch)[_ ]?)?time['\"]?\s*[:=]?\s*(?P<d>\d+\.?\d*)(?P<du>ms)?\b",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"(?P<a>[\d.,]+)\s*(?P<au>[kKMG]?)\s*tok(?:ens?)?\s*/\s*s"
    r"|(?:\btps|\bwps|tokens?(?:_per_|/)s(?:ec(?:ond)?)?|tok/s)['\"]?\s*[:=]\s*(?P<b>[\d.,]+)\s*(?P<bu>[kKMG]?)"
)
_DATA = re.compile(r"\b[Dd]ata(?:[_ ]?(?:[Tt]ime|load\w*))?['\"]?\s*[:=]?\s*(?P<v>\d+\.\d+)")
_EVAL = re.compile(
    r"(?:^|[^a-z])(?:eval\w*|val(?:id\w*)?|test(?:ing)?|dev|predict\w*|sanity)(?:[^a-z]|$)", re.IGNORECASE
)
_PREPARE = re.compile(
    r"load|map\b|tokeniz|download|fetch|filter|generat|resolv|extract|pack|prepar|index|shard|scann?|build|convert|process|captur|compil|copy|upload",
    re.IGNORECASE,
)
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
HINTS = ("step", "loss", "iter", "epoch", "it/s", "s/it", "batch", "update", "%|", "% ", "train")


@dataclass(frozen=True)
class StepRow:
    """The numbers of one progress row; `kind` is train, eval or prepare. Seconds, tokens a second."""

    kind: str
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    data_s: float | None = None


def parse(text: str, low: str) -> StepRow | None:
    """The progress that a row reports, None where it reports none; `low` is its lower case.

    >>> row = "step 12/300 | loss 2.5 | 0.4 s/step"
    >>> parse(row, row)
    StepRow(kind='train', step=12, num_steps=300, loss=2.5, grad_norm=None, step_s=0.4, tokens_per_s=None, data_s=None)
    """
    if not any(hint in low for hint in HINTS):
        return None
    bar = _BAR.search(text) if "%" in text and "[" in text else None
    if bar:
        return _bar(bar, text, low)
    step, num_steps, mentioned = _count(text, low)
    loss = _value(_LOSS, text) if "loss" in low else None
    if step is None and loss is None and "grad" not in low:
        return None
    grad_norm = _value(_GRAD, text) if "norm" in low else None
    step_s = _step_s(text) if "/" in low or "time" in low else None
    tokens = _tokens(text) if "tok" in low or "ps" in low else None
    if loss is None and grad_norm is None and step_s is None and tokens is None and (mentioned or num_steps is None):
        return None
    data_s = _value(_DATA, text) if "data" in low else None
    return StepRow(_kind(text, low), step, num_steps, loss, grad_norm, step_s, tokens, data_s)


def _kind(text: str, low: str) -> str:
    if ("val" in low or "test" in low or "dev" in low or "predict" in low or "sanity" in low) and _EVAL.search(text):
        return "eval"
    return "train"


def _bar(bar: re.Match[str], text: str, low: str) -> StepRow:
    description = bar["desc"]
    kind = "eval" if _EVAL.search(description) else "train"
    post = bar["post"]
    if kind == "train" and _PREPARE.search(description) and "loss" not in low:
        kind = "prepare"
    loss = _value(_LOSS, post) if "loss" in post else None
    return StepRow(kind, int(bar["n"]), int(bar["total"]), loss, _value(_GRAD, post), _rate(bar), _tokens(post))


def _rate(bar: re.Match[str]) -> float | None:
    if bar["rate"] == "?" or not bar["rate"].strip("."):
        return None
    rate = float(bar["rate"])
    if bar["unit"].startswith("s/"):
        return rate
    return 1.0 / rate if rate else None


def _count(text: str, low: str) -> tuple[int | None, int | None, bool]:
    """Step, steps in all, and whether the row only mentions them in passing."""
    match = _NESTED.search(text) if "[" in text or "| epoch" in text or "max_steps" in text else None
    if match:
        found = [group for group in match.groups() if group]
        return int(found[0]), int(found[1]), False
    match = _KERAS.match(text) if text[:1].isdigit() or text[:1] == " " else None
    if match is None and ("step" in low or "iter" in low or "batch" in low or "update" in low):
        match = _STEP.search(text)
    if match is None:
        return None, None, False
    total = match["total"]
    return _int(match["n"]), _int(total) if total else None, bool(_MENTION.search(text))


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _value(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match["v"].replace(",", "").rstrip(".") or "nan") if match else None


def _step_s(text: str) -> float | None:
    match = _STEP_S.search(text)
    if match is None:
        return None
    if match["a"]:
        return float(match["a"]) * (0.001 if match["au"].lower() == "ms" else 1.0)
    if match["b"]:
        return 1.0 / float(match["b"]) if float(match["b"]) else None
    return float(match["c"]) / 1000 if match["c"] else float(match["d"]) * (0.001 if match["du"] else 1.0)


def _tokens(text: str) -> float | None:
    match = _TOKENS.search(text)
    if match is None:
        return None
    number, unit = (match["a"], match["au"]) if match["a"] else (match["b"], match["bu"])
    digits = number.replace(",", "").strip(".")
    return float(digits) * _SCALE[unit] if digits.replace(".", "", 1).isdigit() else None
