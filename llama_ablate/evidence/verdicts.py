"""Verdicts of rows and results of hypotheses, from intervals and run outcomes."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from llama_ablate.evidence.intervals import Interval, seeds_needed
from llama_ablate.evidence.rates import fisher

#: What the losses of a variant show; or, where they cannot, how its runs ended.
Verdict = Literal[
    "better",
    "worse",
    "equivalent",
    "equal",
    "inconclusive",
    "no verdict",
    "too short",
    "diverged",
    "collapsed",
    "failed",
    "pending",
    "baseline",
]
Direction = Literal["better", "worse", "equivalent"]
Result = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Ended:
    """Counts of one side's finished runs, by outcome."""

    runs: int
    diverged: int
    collapsed: int
    too_short: int

    @classmethod
    def of(cls, words: Iterable[str]) -> "Ended":
        """Count words: `ok`, `too short`, `diverged`, `collapsed`; others have not finished."""
        counts = Counter(words)
        lost, short = (counts["diverged"], counts["collapsed"]), counts["too short"]
        return cls(counts["ok"] + short + sum(lost), *lost, short)

    @property
    def lost(self) -> int:
        """Number of runs that diverged or collapsed."""
        return self.diverged + self.collapsed


def verdict(interval: Interval, margin: float | None = None) -> Verdict:
    """Return the verdict of an interval of `variant - baseline`, lower being better.

    `equivalent` where it is exactly 0, and within the margin, though it leave out 0: a difference
    that is certain, and too small to matter. `inconclusive` where it lies on both sides of 0, or
    has no ends.
    """
    if interval.low == interval.high == 0 or (margin and interval.inside(-margin, margin)):
        return "equivalent"
    if interval.high < 0:
        return "better"
    return "worse" if interval.low > 0 else "inconclusive"


def judged(interval: Interval, margin: float | None, own: Ended, base: Ended) -> Verdict:
    """Return the verdict of a row from its interval and both sides' run outcomes.

    `diverged` or `collapsed` where all of its runs did and none of the baseline's, or more of them
    at the interval's own level (Fisher's exact test). `too short` where a run of either is. Where
    some were lost, the interval is that of the seeds which both kept: they show neither that an arm
    is better than its lost seeds let it be, nor that it is equivalent.
    """
    if _lost_more(own, base, interval.alpha):
        return "collapsed" if own.collapsed > own.diverged else "diverged"
    if own.too_short or base.too_short:
        return "too short"
    word = verdict(interval, margin)
    if (own.lost and word != "worse") or (base.lost and word != "better"):
        return "inconclusive"
    return word


def _lost_more(own: Ended, base: Ended, level: float) -> bool:
    """Return whether a variant lost significantly more runs."""
    if own.lost * base.runs <= base.lost * own.runs:
        return False
    all_and_none = own.lost == own.runs and not base.lost
    return all_and_none or fisher((own.lost, own.runs), (base.lost, base.runs)) <= level


@dataclass(frozen=True)
class Difference:
    """Difference with its interval, and the run outcomes of both sides."""

    interval: Interval
    own: Ended
    other: Ended
    #: Why it cannot be told; else empty.
    why_not: str = ""

    def __neg__(self) -> "Difference":
        """Return the negated difference."""
        return Difference(-self.interval, self.other, self.own, self.why_not)

    def judged(self, margin: float | None = None) -> Verdict:
        """Return the verdict, lower being better."""
        return judged(self.interval, margin, self.own, self.other)


def seeds_to_decide(interval: Interval, margin: float | None = None) -> int | None:
    """Return the fewest seeds that would decide an inconclusive row; None if unknown.

    The interval has to leave out 0, or the margin's nearer end: whichever takes fewer seeds.
    """
    distance = max(abs(interval.mean), (margin or 0.0) - abs(interval.mean))
    return seeds_needed(interval, distance) if verdict(interval, margin) == "inconclusive" else None


@dataclass(frozen=True)
class Expectation:
    """Statement about a difference, made before the runs: the variant's loss against another's.

    Raises ValueError for an equivalence without a margin.
    """

    direction: Direction
    #: By how much more it must be better or worse; within how much it must be equivalent. A
    #: negative margin allows for falling short: "not worse by 0.01" is better by -0.01.
    margin: float

    def __post_init__(self) -> None:
        if self.direction == "equivalent" and not self.margin > 0:
            raise ValueError("an equivalence needs a margin above 0")

    @property
    def region(self) -> tuple[float, float]:
        """Bounds of the differences, variant minus the other, for which it holds."""
        below, above = (-math.inf, -self.margin), (self.margin, math.inf)
        regions = {"better": below, "worse": above, "equivalent": (-self.margin, self.margin)}
        return regions[self.direction]

    def result(self, interval: Interval) -> Result:
        """Return `supported` for an interval inside the region, `refuted` for one outside it."""
        low, high = self.region
        if interval.inside(low, high):
            return "supported"
        return "refuted" if interval.low > high or interval.high < low else "undecided"

    def seeds_to_decide(self, interval: Interval) -> int | None:
        """Return the fewest seeds that would decide it; None if decided or unknown."""
        if self.result(interval) != "undecided":
            return None
        return seeds_needed(interval, min(abs(interval.mean - end) for end in self.region))
