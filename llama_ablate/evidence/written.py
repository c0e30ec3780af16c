"""Numbers as people read them: with as many decimals as their intervals bear out."""

import math

_UNKNOWN, _POINT, _MOST = 3, 4, 6  # decimals: without an interval, of a point, at most


def number(value: float, form: str, unit: str = "") -> str:
    """Write a number, or a dash where it was not measured."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def plain(value: float, digits: int) -> str:
    """Write a number with so many digits, from 1,000 on as a whole number; a dash for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.{digits}g}"


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
    """Write a difference with its interval, or alone where there is none.

    With the decimals that the interval bears out, unless a format is given.
    """
    form = form or f"{sign}z.{decimals(low, high)}f"
    if math.isnan(mean) or math.isnan(low):
        return number(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def times(ratio: float, low: float, high: float) -> str:
    """Write a ratio with its interval, or alone where there is none.

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
