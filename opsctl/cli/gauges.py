"""Numbers as people read them: durations, sizes, bars and sparklines. Pure text, no colours."""

from __future__ import annotations

import time
from collections.abc import Sequence

_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_LEVELS = "_.-:=+*#"
UNKNOWN = "\u2013"  # shown where a number is not known


def sparkline(
    values: Sequence[float | None],
    *,
    width: int,
    low: float | None = None,
    high: float | None = None,
    is_ascii: bool = False,
) -> str:
    """The last `width` values as one row of blocks, newest right; an unknown value is a blank.

    The scale is low..high where they are given, else that of the values shown.

    >>> sparkline([0, 1, None, 4], width=4, is_ascii=True)
    '_- #'
    """
    shown = list(values)[-width:] if width > 0 else []
    known = [value for value in shown if value is not None]
    bottom = min(known, default=0.0) if low is None else low
    top = max(known, default=0.0) if high is None else high
    levels = _ASCII_LEVELS if is_ascii else _BLOCKS
    return "".join(_level(value, bottom, top, levels) for value in shown).rjust(width)


def _level(value: float | None, bottom: float, top: float, levels: str) -> str:
    if value is None:
        return " "
    if top <= bottom:  # a flat series lies low
        return levels[0]
    share = (value - bottom) / (top - bottom)
    return levels[min(len(levels) - 1, max(0, int(share * len(levels))))]


def bar(share: float, *, width: int, is_ascii: bool = False) -> tuple[str, str]:
    """The done and the open part of a progress bar.

    >>> bar(0.5, width=4, is_ascii=True)
    ('##', '--')
    """
    done = round(min(1.0, max(0.0, share)) * width)
    full, empty = ("#", "-") if is_ascii else ("\u2501", "\u2500")
    return full * done, empty * (width - done)


def duration(seconds: float) -> str:
    """A time span with its two largest units; a negative one counts as none.

    >>> duration(4.2), duration(724), duration(7323), duration(200000)
    ('4 s', '12m 04s', '2h 02m', '2d 07h')
    """
    whole = int(max(0.0, seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 60:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes}m {whole % 60:02}s"
    if days == 0:
        return f"{hours}h {minutes % 60:02}m"
    return f"{days}d {hours % 24:02}h"


def compact(value: float) -> str:
    """A number in about three digits.

    >>> compact(0.5), compact(12.34), compact(12431), compact(3.2e6)
    ('0.50', '12.3', '12.4k', '3.20M')
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return _three_digits(value / limit) + unit
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def significant(value: float) -> str:
    """A loss: five digits that count, in powers of ten only where it must.

    >>> significant(2.13471), significant(0.00012), significant(float("nan"))
    ('2.1347', '1.2000e-04', 'nan')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4e}"


def gib(mib: float) -> str:
    """A size in MiB as GiB, or as MiB where it is small.

    >>> gib(62714), gib(512)
    ('61.2 GiB', '512 MiB')
    """
    return f"{mib:.0f} MiB" if mib < 1024 else f"{_three_digits(mib / 1024)} GiB"


def clock(moment: float) -> str:
    """A moment (epoch seconds) as the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def clean(text: str) -> str:
    """`text` on one row, without anything that a terminal would act on.

    >>> clean("a\\tb\\x1b[2Jc\\x9bd\\u202ee")
    'a b[2Jcde'
    """
    flat = text.expandtabs(2).replace("\n", " ")
    return (
        flat
        if flat.isprintable()
        else "".join(" " if char.isspace() else char for char in flat if char.isprintable() or char.isspace())
    )
