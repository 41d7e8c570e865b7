"""Progress rows of the common trainers to numbers: step, loss, seconds a step, tokens a second.

Pure parsing. Rows of one shape (equal but for their digits) hold their numbers at equal places, so that a
shape is understood once and then only read.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from opsctl.detect import counts

MAX_COUNT = 1e15  # a longer number is no step

_NUM = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?|nan(?:\.0?)?|inf(?:inity)?)"
_LOSS_ELSEWHERE = (
    r"\u635f\u5931|\u640d\u5931|\uc190\uc2e4|verlust|perte|p\u00e9rdida|\u043f\u043e\u0442\u0435\u0440\u0438"
)
_TRAIN_ELSEWHERE = r"\u8bad\u7ec3|\u8a13\u7df4|\u5e73\u5747|\u603b"
_EVAL_ELSEWHERE = r"\u9a8c\u8bc1|\u9a57\u8b49|\u8bc4\u4f30|\u8a55\u4fa1|\u691c\u8a3c|\u6d4b\u8bd5"
_LATIN = ("schritt", "paso", "verlust", "perte")  # those of _ELSEWHERE that an ASCII row may hold
_ELSEWHERE = re.compile(f"{counts.STEP_ELSEWHERE}|{_LOSS_ELSEWHERE}")
_BAR = re.compile(
    r"\d{1,3}%(?:\|[^|]*\|)?\s{0,12}(?P<n>\d+)/(?P<total>\d+) \[[\d:]+<[^,\]]*,\s{0,12}"
    r"(?P<rate>[\d.]+|\?)\s{0,12}(?P<unit>[a-z]*/?[a-z]*)(?P<post>[^\]]*)\]?"
)
_LOSS_AT = re.compile(
    rf"(?:loss(?: train)?|{_LOSS_ELSEWHERE})['\"]?\s{{0,12}}[:=|]?\s{{0,12}}['\"(]?(?P<v>{_NUM})(?![\w.])"
)
_LOSS_BEFORE = re.compile(
    rf"(?:^|[^\w/])(?:(?:reduced_)?train(?:ing)?|total|lm|avg|mean|step|{_TRAIN_ELSEWHERE})?[ _/.-]?$"
)
_OTHERS = re.compile(r"\blr['\"]?[:=]|learning_rate|[ /]\w{0,12}loss['\"]?[ :=]\s?[-\d]")  # what goes with a step, too
_GRAD = re.compile(rf"(?:grad(?:ient)?[_ ]?norm|gnorm)['\"]?\s{{0,12}}[:=|]?\s{{0,12}}['\"]?(?P<v>{_NUM})")
_STEP_S = re.compile(
    r"(?<![\d.])\d{1,12}(?:\.\d{0,9})?\s{0,3}(?:"
    r"(?:ms|s|secs?|seconds)\s?/\s?(?:step|it|iter|iteration|batch)\b"
    r"|(?:it|its|steps?|iters?|batch(?:es)?)\s?/\s?s(?:ec(?:ond)?)?\b)"
)
_PER_ITERATION = re.compile(r"(?:time per iteration \(|\b)(?P<unit>ms)(?:\):|/batch)\s{0,12}(?P<v>\d+\.?\d*)")
_PER_SECOND = re.compile(r"\b(?:steps|it|iters?)(?:_per_|/)sec(?:ond)?[ :=]\s{0,12}(?P<v>\d+\.?\d*)")
_TIME = re.compile(
    r"(?:^|[^\w.])(?:(?:(?:step|iter|batch)[_ ]?)?time|dt|train_step_timing in s"
    r"|(?:step|iter|batch)(?= \d{1,9}\.\d{1,9} ?m?s\b))['\"]?"
    r"\s{0,12}[:=]?\s{0,12}(?P<v>\d+\.?\d*)\s?(?P<unit>ms|s)?(?![\w.])"
)
_TOKENS_AFTER = re.compile(
    r"(?<![\d.,])(?P<v>\d[\d,]{0,15}(?:\.\d{1,9})?)\s{0,3}(?P<unit>[kmg]?)\s{0,12}"
    r"tok(?:ens?)?\s{0,12}/\s{0,12}s(?!\w*['\"]?\s{0,12}[:=])"
)
_TOKENS_BEFORE = re.compile(
    r"(?:\btps|\bwps|tokens?(?:_per_|/)s(?:ec(?:ond)?)?|tok/s(?:ec)?)['\"]?"
    r"\s{0,12}[:= ]\s{0,12}(?P<v>\d[\d,]*\.?\d*)\s?(?P<unit>[kmg]?)\b"
)
_DATA = re.compile(
    r"\bdata(?:[_ ]?(?:time|load\w*))?['\"]?\s{0,12}[:=]?\s{0,12}(?P<v>\d+\.\d+|\d+(?=\s?ms))\s?(?P<unit>ms)?"
)
_HOST_MEMORY = re.compile(
    r"(?:\brss|\bram|\b(?:host|cpu|system|sys)[_ ](?:ram|mem(?:ory)?)(?:[_ ](?:used|usage|percent))?)['\"]?"
    r"\s{0,12}[:=|]?\s{0,12}(?P<v>\d+\.?\d*)"
)
_EVAL = re.compile(
    r"(?:^|[^a-z])(?:eval\w*|val(?:id\w*)?|test(?:ing)?|dev|predict\w*|sanity)(?:[^a-z]|$)|" + _EVAL_ELSEWHERE
)
_TRAINING = re.compile(r"train|epoch \d|step|iter|updat|batch")  # an epoch without a number may be what is counted
_ABSENT = re.compile(r"\bval\w*[:=]? (?:n/a|none)\b")
_PREPARE = re.compile(
    r"load|map\b|tokeniz|download|fetch|filter|generat|resolv|extract|pack|prepar|index|shard|scann?|build|convert"
    r"|process|captur|compil|copy|upload|cach|warm"
)
_NUMBER = re.compile(r"\d+\.?\d*")
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_COUNTS = ("step", "num_steps")
_HINTS = ("step", "loss", "iter", "epoch", "it/s", "s/it", "batch", "update", "%|", "% ", "grad")


class StepRow(NamedTuple):
    """The numbers of one progress row; `kind` is train, eval or prepare. Seconds, tokens a second."""

    kind: str
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    data_s: float | None = None
    host_memory: float | None = None  # in whatever unit the row uses
    is_epoch: bool = False  # num_steps are those of one epoch
    is_anonymous: bool = False  # a bar that does not say what it counts


@dataclass(frozen=True)
class Place:
    """Where a number stands, what it is multiplied by, and whether its inverse is meant."""

    start: int
    end: int
    scale: float = 1.0
    is_inverse: bool = False

    def read(self, text: str) -> float | None:
        """The number at this place of `text`."""
        digits = text[self.start : self.end]
        try:
            value = float(digits)
        except ValueError:  # 1,200 and nan.0 are numbers for people only
            value = math.nan if digits[:1] in "nN" else float(digits.replace(",", ""))
        if self.is_inverse:
            return 1.0 / value if value else None
        return value * self.scale


@dataclass(frozen=True)
class Shape:
    """What rows of one shape report, and where."""

    kind: str
    step: Place | None = None
    num_steps: Place | None = None
    loss: Place | None = None
    grad_norm: Place | None = None
    step_s: Place | None = None
    tokens_per_s: Place | None = None
    data_s: Place | None = None
    host_memory: Place | None = None
    is_epoch: bool = False
    is_anonymous: bool = False

    def read(self, text: str) -> StepRow:
        """The numbers that a row of this shape holds."""
        values: list[Any] = self._blank.copy()
        for column, place in self._places:
            values[column] = place.read(text)
        for column in self._counts:
            value = values[column]
            values[column] = int(value) if value is not None and value < MAX_COUNT else None
        return StepRow(*values)

    def pace(self, text: str) -> tuple[int | None, float | None, float | None]:
        """Only step, seconds a step and tokens a second: the quicker half."""
        step, step_s, tokens_per_s = (
            None if place is None else place.read(text) for place in (self.step, self.step_s, self.tokens_per_s)
        )
        return (int(step) if step is not None and step < MAX_COUNT else None), step_s, tokens_per_s

    @functools.cached_property
    def _blank(self) -> list[Any]:
        """A row of this shape whose numbers are not read yet."""
        return [self.kind, *[None] * (len(StepRow._fields) - 3), self.is_epoch, self.is_anonymous]

    @functools.cached_property
    def _places(self) -> tuple[tuple[int, Place], ...]:
        """Which columns of a StepRow stand where."""
        named = ((column, getattr(self, name)) for column, name in enumerate(StepRow._fields))
        return tuple((column, place) for column, place in named if isinstance(place, Place))

    @functools.cached_property
    def _counts(self) -> tuple[int, ...]:
        """The columns of `_places` that count."""
        return tuple(column for column, _ in self._places if StepRow._fields[column] in _COUNTS)


def parse(text: str) -> StepRow | None:
    """The progress that a row reports, None where it reports none.

    >>> parse("step 12/300 | loss 2.5 | 0.4 s/step")  # doctest: +ELLIPSIS
    StepRow(kind='train', step=12, num_steps=300, loss=2.5, grad_norm=None, step_s=0.4, ...)
    """
    shape = shape_of(text)
    return shape.read(text) if shape is not None else None


@functools.lru_cache(maxsize=256)  # the detection asks what the clock of an offline log has just asked
def shape_of(text: str) -> Shape | None:
    """What rows like `text` report; depends on digits only by their places."""
    low = text.lower()
    if len(low) != len(text):
        return None  # a rare letter that takes more places in lower case
    if not any(hint in low for hint in _HINTS) and not _is_elsewhere(low):
        memory = _host_memory(low)
        return Shape("host", host_memory=memory) if memory else None
    bar = _BAR.search(low) if "%" in low and "[" in low else None
    return _bar(bar, low) if bar else _written(low)


def _is_elsewhere(low: str) -> bool:
    may_be = not low.isascii() or any(word in low for word in _LATIN)  # most rows are not, and are told at once
    return may_be and _ELSEWHERE.search(low) is not None


def _written(low: str) -> Shape | None:
    if "runtime" in low:
        return None  # a summary at the end
    count = counts.find(low)
    step, num_steps = (Place(*span) if span else None for span in (count.step, count.num_steps))
    loss = _loss(low, 0, len(low))
    grad_norm = _place(_GRAD.search(low)) if "norm" in low else None
    memory = _host_memory(low)
    if step is loss is None:
        return Shape("host", host_memory=memory) if memory else None
    step_s = _step_s(low)
    tokens = _tokens(low, 0, len(low)) if "tok" in low or "ps" in low else None
    if loss is grad_norm is step_s is tokens is None and (count.is_mention or not (num_steps or _OTHERS.search(low))):
        return None
    data = _DATA.search(low) if "data" in low else None
    data_s = _place(data, "v", 0.001 if data and data["unit"] else 1.0)
    is_epoch = "epoch" in low
    return Shape(_kind(low), step, num_steps, loss, grad_norm, step_s, tokens, data_s, memory, is_epoch)


def _kind(low: str) -> str:
    hinted = not low.isascii() or "val" in low or "test" in low or "dev" in low or "predict" in low or "sanity" in low
    return "eval" if hinted and _EVAL.search(_ABSENT.sub("", low)) else "train"


def _bar(bar: re.Match[str], low: str) -> Shape:
    description = low[: bar.start()].rpartition("|")[2] or low[: bar.start()]
    kind = "eval" if _EVAL.search(description) else "train"
    start, end = bar.span("post")
    loss = _loss(low, start, end) or _loss(low, 0, bar.start()) if "loss" in low else None
    if kind == "train" and loss is None and _PREPARE.search(description):
        kind = "prepare"
    grad_norm = _place(_GRAD.search(low, start, end))
    return Shape(
        kind,
        _place(bar, "n"),
        _place(bar, "total"),
        loss,
        grad_norm,
        _rate(bar),
        _tokens(low, start, end),
        host_memory=_host_memory(low),
        is_epoch="epoch" in description,
        is_anonymous=kind == "train" and loss is None and not _TRAINING.search(description),
    )


def _host_memory(low: str) -> Place | None:
    return _place(_HOST_MEMORY.search(low)) if "rss" in low or "ram" in low or "mem" in low else None


def _rate(bar: re.Match[str]) -> Place | None:
    if not _NUMBER.fullmatch(bar["rate"]):
        return None
    return Place(*bar.span("rate"), is_inverse=not bar["unit"].startswith("s/"))


def _place(match: re.Match[str] | None, group: str = "v", scale: float = 1.0) -> Place | None:
    return Place(*match.span(group), scale) if match else None


def _loss(low: str, start: int, end: int) -> Place | None:
    """The first `loss` that is the training's own: not val_loss, loss_ce or loss scale."""
    for match in _LOSS_AT.finditer(low, start, end):
        at = match.start()
        if _LOSS_BEFORE.search(low, max(start, at - 20), at):
            return _place(match)
    return None


def _step_s(low: str) -> Place | None:
    match = _STEP_S.search(low) if "/" in low else None
    if match:
        number = _NUMBER.match(low, match.start())
        assert number is not None, "the pattern begins with a digit"
        unit = match.group().lstrip("0123456789.").lstrip()
        if unit.startswith(("ms", "s/", "s ", "sec")):
            return Place(*number.span(), scale=0.001 if unit.startswith("ms") else 1.0)
        return Place(*number.span(), is_inverse=True)
    match = _PER_SECOND.search(low)
    if match:
        return Place(*match.span("v"), is_inverse=True)
    match = _PER_ITERATION.search(low) or _TIME.search(low)
    return _place(match, "v", 0.001 if match and match["unit"] == "ms" else 1.0)


def _tokens(low: str, start: int, end: int) -> Place | None:
    match = _TOKENS_AFTER.search(low, start, end) or _TOKENS_BEFORE.search(low, start, end)
    return _place(match, "v", _SCALE[match["unit"]]) if match else None
