"""Verdicts on comparisons and results of hypotheses, from intervals and run outcomes.

A row is a mapping, or a row of a frame, with the ends `low` and `high` of an interval, its level
`alpha`, and the counts of both sides' runs by outcome (`SIDES`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from llama_ablate.evidence.intervals import seeds_needed
from llama_ablate.evidence.rates import fisher

Direction = Literal["better", "worse", "equivalent"]
#: Counts of finished runs by outcome. A run is lost if it diverged or collapsed. A run is too short
#: if it ended near the unigram loss (from token frequencies alone) while the loss was still
#: falling.
COUNTS = ("runs", "diverged", "collapsed", "too_short", "lost")
#: Columns of a comparison with the counts of the variant and of the other side.
SIDES = tuple(f"{side}_{name}" for side in ("own", "other") for name in COUNTS)


def count_ended(outcomes: Iterable[str]) -> dict[str, int]:
    """Count the outcomes of finished runs.

    The outcomes of finished runs are `ok`, `too short`, `diverged` and `collapsed`; any other
    outcome is ignored.
    """
    counts = Counter(outcomes)
    diverged, collapsed, short = (counts[o] for o in ("diverged", "collapsed", "too short"))
    lost = diverged + collapsed
    numbers = counts["ok"] + short + lost, diverged, collapsed, short, lost
    return dict(zip(COUNTS, numbers, strict=True))


def count_sides(own: Iterable[str], other: Iterable[str]) -> dict[str, int]:
    """Count the outcomes of a comparison's two sides, by the names of `SIDES`."""
    counts = [count for ended in (own, other) for count in count_ended(ended).values()]
    return dict(zip(SIDES, counts, strict=True))


def verdict(low: float, high: float, margin: float | None = None) -> str:
    """Return the verdict for the interval of `variant - baseline`; lower is better.

    The verdict is `equal` if both ends are 0: all losses are equal bit for bit. It is `equivalent`
    if the interval lies within the margin, even if an interval within the margin excludes 0: such a
    difference is certain, and too small to matter. The verdict is `inconclusive` if the interval
    includes 0, or if its ends are NaN.
    """
    if low == high == 0:
        return "equal"
    if margin and -margin < low and high < margin:
        return "equivalent"
    if high < 0:
        return "better"
    return "worse" if low > 0 else "inconclusive"


def judge(row: Mapping[str, Any], margin: float | None = None) -> str:
    """Return the verdict on a comparison from its interval and both sides' run outcomes.

    A run is lost if it diverged or collapsed. The verdict is `diverged` or `collapsed`, the more
    frequent of the variant's two outcomes, if the variant lost all runs and the baseline none, or
    if the variant lost significantly more runs (Fisher's exact test at the interval's own level).
    The verdict is `too short` if a run of either side was too short. If runs were lost, the
    interval covers only the seeds that both sides completed. A verdict in favour of the side that
    lost runs, or of equivalence, then becomes `inconclusive`.
    """
    if _lost_more(row):
        return "collapsed" if row["own_collapsed"] > row["own_diverged"] else "diverged"
    if row["own_too_short"] or row["other_too_short"]:
        return "too short"
    word = verdict(row["low"], row["high"], margin)
    if (row["own_lost"] and word != "worse") or (row["other_lost"] and word != "better"):
        return "inconclusive"
    return word


def _lost_more(row: Mapping[str, Any]) -> bool:
    """Return whether a variant lost significantly more runs than the baseline."""
    variant, other = ((row[f"{side}_lost"], row[f"{side}_runs"]) for side in ("own", "other"))
    if variant[0] * other[1] <= other[0] * variant[1]:
        return False
    return (variant[0] == variant[1] and not other[0]) or fisher(variant, other) <= row["alpha"]


def negate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the negated difference, with both sides exchanged."""
    other = {"own": "other", "other": "own"}
    negated = dict(row) | {"mean": -row["mean"], "low": -row["high"], "high": -row["low"]}
    for name in SIDES:
        side, _, count = name.partition("_")
        negated[name] = row[f"{other[side]}_{count}"]
    return negated


def seeds_to_decide(row: Mapping[str, Any], margin: float | None = None) -> float:
    """Return the fewest seeds that would decide an inconclusive row; NaN if unknown.

    A row is decided if its interval excludes 0 or lies within the margin. The result is for the
    case that needs fewer seeds.
    """
    if verdict(row["low"], row["high"], margin) != "inconclusive":
        return math.nan
    return seeds_needed(row, max(abs(row["mean"]), (margin or 0.0) - abs(row["mean"])))


def find_region(direction: str, margin: float) -> tuple[float, float]:
    """Return the range of differences, variant minus the other, in which a hypothesis is true.

    `margin` is the least difference for `better` and `worse`, and the largest for `equivalent`. A
    negative margin allows a shortfall: "not worse by 0.01" is better by -0.01. Raises ValueError
    for an equivalence without a margin.
    """
    if direction == "equivalent":
        if not margin > 0:
            raise ValueError("an equivalence needs a margin above 0")
        return -margin, margin
    return (-math.inf, -margin) if direction == "better" else (margin, math.inf)


def compare_region(row: Mapping[str, Any], region: tuple[float, float]) -> str:
    """Return the test result of a hypothesis for an interval.

    The result is `supported` if the interval lies inside the region, `refuted` if the interval lies
    outside the region, and otherwise `undecided`.
    """
    low, high = region
    if low < row["low"] and row["high"] < high:
        return "supported"
    return "refuted" if row["low"] > high or row["high"] < low else "undecided"
