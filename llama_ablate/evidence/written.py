"""Formatted numbers, with as many decimals as their intervals justify."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

_UNKNOWN, _POINT, _MOST = 3, 4, 6  # decimals: without an interval, of a point, at most
_LEVEL = 0.05  # of a table: p is below it just where an interval leaves out 0
_LEAST_P, _LARGE_P = 1e-4, 0.1  # below which p is a bound; from which two decimals are enough


def number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number; a dash for NaN or None."""
    return "-" if value is None or math.isnan(value) else f"{value:{form}}{unit}"


def plain(value: float, digits: int) -> str:
    """Format a number with some digits, from 1,000 on as a whole number; a dash for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def ends(values: Iterable[float], form: Callable[[float], str]) -> str:
    """Format the range of some numbers; one number if both ends look the same."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(map(form, (ordered[0], ordered[-1]))))


def decimals(low: float, high: float) -> int:
    """Return how many decimals of an estimate its interval bears out: two digits of its half-width.

    More where an end that is not 0 would be written as 0: a reader must see on which side of 0 the
    interval lies. Without an interval three, of a point four.
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


def estimate(mean: float, low: float, high: float, sign: str = "+") -> str:
    """Write a difference with the decimals that its interval bears out, without the interval."""
    return number(mean, f"{sign}z.{decimals(low, high)}f")


def interval(mean: float, low: float, high: float, form: str = "", sign: str = "+") -> str:
    """Write a difference, with its interval where it is known.

    With the decimals that the interval bears out, unless a format is given.
    """
    form = form or f"{sign}z.{decimals(low, high)}f"
    if math.isnan(mean) or math.isnan(low):
        return number(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def times(ratio: float, low: float, high: float) -> str:
    """Write a ratio, with its interval where it is known.

    With two decimals, or as many as show on which side of 1 the interval lies.
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
    """Write a difference in its unit, with its interval."""
    if math.isnan(difference):
        return "not measured"
    return interval(difference, low, high) + (f" {unit}" if unit else "")


def describe_ratio(ratio: float, low: float, high: float) -> str:
    """Format a ratio of speeds with its interval; a star marks an interval without 1."""
    text = times(ratio, low, high)
    return text.replace("x", "x*", 1) if low > 1 or high < 1 else text


def bounded(value: float, low: float, high: float, form: str) -> str:
    """Write an estimate with its interval, without ends of 0 or infinity."""
    if low == 0 and math.isinf(high):
        return "not determined"
    if low == 0 and high > 0:
        return f"at most {high:{form}}"
    return f"at least {low:{form}}" if math.isinf(high) else interval(value, low, high, form)


class Estimate(NamedTuple):
    """A number with the ends of its 95% interval.

    Where nothing bounds a quantity that is not negative, `low` is 0 or `high` infinite; both are
    NaN with one seed, which says nothing about the noise.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def __format__(self, form: str) -> str:
        """Write a quantity that is not negative; without a format, a difference."""
        return bounded(*self, form) if form else str(self)

    def __str__(self) -> str:
        """Write a difference with its interval; nothing where it is NaN."""
        return "" if math.isnan(self.value) else interval(*self)


def share(value: float, low: float, high: float) -> str:
    """Write a share with its interval in percent."""
    return f"{value:.0%} [{low:.0%}, {high:.0%}]"


def p_value(p: float) -> str:
    """Write a p value with two digits; with more where it would else cross the level."""
    if math.isnan(p):
        return ""
    if p < _LEAST_P:
        return f"< {_LEAST_P:.4f}"
    text = f"{p:.2g}" if p < _LARGE_P else f"{p:.2f}"
    return text if (float(text) < _LEVEL) == (p < _LEVEL) else f"{p:.5f}"


def seeds(fewest: float) -> str:
    """Format the number of seeds that would decide; "" if unknown."""
    return "" if math.isnan(fewest) else f"at least {fewest:.0f} seeds"
