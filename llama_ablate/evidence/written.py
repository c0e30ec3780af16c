"""Formatting of numbers, with as many decimals as their intervals justify."""

import math
from collections.abc import Callable, Iterable

_UNKNOWN, _POINT, _MOST = 3, 4, 6  # decimals: no interval, width 0, maximum


def number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number; return a dash for NaN or None."""
    return "-" if value is None or math.isnan(value) else f"{value:{form}}{unit}"


def plain(value: float, digits: int) -> str:
    """Format a number with `digits` significant digits; numbers from 1,000 on as integers.

    Return a dash for NaN.
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def size(count: float, digits: int = 3) -> str:
    """Format a number of bytes with a binary unit, such as `4 KiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.{digits}g} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def count(value: float) -> str:
    """Format a number in few characters: 0.003, 64, 1.2M."""
    if 1e4 <= value < 1e6 and not value % 1024:
        return f"{value:,.0f}"
    for unit_size, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit_size:
            return f"{value / (1e3 if unit == 'k' else unit_size):.3g}{unit}"
    return f"{value:,.6g}"


def ends(values: Iterable[float], form: Callable[[float], str]) -> str:
    """Format the range of numbers; return one number if both ends have the same format."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(map(form, (ordered[0], ordered[-1]))))


def decimals(low: float, high: float) -> int:
    """Return the number of decimals that an interval justifies for its estimate.

    With this number, the half width has two digits. The number is larger if an end other than 0
    would be rounded to 0: a reader must see on which side of 0 the interval lies. Return three
    without an interval, and four for an interval of width 0.
    """
    half = (high - low) / 2
    if not math.isfinite(half):
        return _UNKNOWN
    if half < 10.0**-_MOST:
        return _POINT
    places = max(0, 1 - math.floor(math.log10(half)))
    while places < _MOST and any(end and not round(end, places) for end in (low, high)):
        places += 1
    return min(places, _MOST)


def interval(mean: float, low: float, high: float, form: str = "", sign: str = "+") -> str:
    """Format a difference, with its interval if it is known.

    The number of decimals follows from the interval, unless `form` is given.
    """
    form = form or f"{sign}z.{decimals(low, high)}f"
    if math.isnan(mean) or math.isnan(low):
        return number(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def times(ratio: float, low: float, high: float) -> str:
    """Format a ratio, with its interval if known.

    A ratio has two decimals, or as many as are needed to show on which side of 1 the interval lies.
    """
    if math.isnan(ratio):
        return "-"
    if math.isnan(low):
        return f"{ratio:.2f}x"
    places = 2
    while places < _MOST and any(end != 1 == round(end, places) for end in (low, high)):
        places += 1
    return f"{ratio:.{places}f}x [{low:.{places}f}, {high:.{places}f}]"


def measured(difference: float, low: float, high: float, unit: str) -> str:
    """Format a difference in its unit, with its interval."""
    if math.isnan(difference):
        return "not measured"
    return interval(difference, low, high) + (f" {unit}" if unit else "")


def describe_ratio(ratio: float, low: float, high: float) -> str:
    """Format a speed ratio with its interval; a star marks intervals without 1."""
    text = times(ratio, low, high)
    return text.replace("x", "x*", 1) if low > 1 or high < 1 else text


def bounded(value: float, low: float, high: float, form: str) -> str:
    """Format an estimate with its interval; omit an end that is 0 or infinite."""
    if low == 0 and math.isinf(high):
        return "not determined"
    if low == 0 and high > 0:
        return f"at most {high:{form}}"
    return f"at least {low:{form}}" if math.isinf(high) else interval(value, low, high, form)


def share(value: float, low: float, high: float) -> str:
    """Format a share with its interval in percent."""
    return f"{value:.0%} [{low:.0%}, {high:.0%}]"


def seeds(fewest: float) -> str:
    """Format the number of seeds that would decide a comparison; return "" if unknown."""
    return "" if math.isnan(fewest) else f"at least {fewest:.0f} seeds"
