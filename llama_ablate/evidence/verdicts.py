"""Verdicts on comparisons and results of hypotheses, from intervals and run outcomes."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from llama_ablate.evidence.intervals import Interval, seeds_needed
from llama_ablate.evidence.rates import fisher

#: Verdict on a variant's losses; if the losses allow none, the outcome of its runs.
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
    """Numbers of finished runs by outcome, for one side of a comparison.

    A run is lost if it diverged or collapsed. A run is too short if it ended near the unigram loss
    (from token frequencies alone) while the loss was still falling.
    """

    runs: int
    diverged: int
    collapsed: int
    too_short: int

    @classmethod
    def of(cls, words: Iterable[str]) -> "Ended":
        """Count the outcomes of finished runs.

        The outcomes of finished runs are `ok`, `too short`, `diverged` and `collapsed`; any other
        outcome is ignored.
        """
        counts = Counter(words)
        lost, short = (counts["diverged"], counts["collapsed"]), counts["too short"]
        return cls(counts["ok"] + short + sum(lost), *lost, short)

    @property
    def lost(self) -> int:
        """Number of runs that diverged or collapsed."""
        return self.diverged + self.collapsed


def verdict(interval: Interval, margin: float | None = None) -> Verdict:
    """Return the verdict for an interval of `variant - baseline`; lower is better.

    The verdict is `equivalent` if the interval is exactly 0 or lies within the margin, even if an
    interval within the margin excludes 0: such a difference is certain, and too small to matter.
    The verdict is `inconclusive` if the interval includes 0, or if its ends are NaN.
    """
    if interval.low == interval.high == 0 or (margin and interval.inside(-margin, margin)):
        return "equivalent"
    if interval.high < 0:
        return "better"
    return "worse" if interval.low > 0 else "inconclusive"


def judged(interval: Interval, margin: float | None, own: Ended, base: Ended) -> Verdict:
    """Return the verdict on a comparison from its interval and both sides' run outcomes.

    A run is lost if it diverged or collapsed. The verdict is `diverged` or `collapsed`, the more
    frequent of the variant's two outcomes, if the variant lost all runs and the baseline none, or
    if the variant lost significantly more runs (Fisher's exact test at the interval's own level).
    The verdict is `too short` if a run of either side was too short. If runs were lost, the
    interval covers only the seeds that both sides completed. A verdict in favour of the side that
    lost runs, or of equivalence, then becomes `inconclusive`.
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
    """Return whether a variant lost significantly more runs than the baseline."""
    if own.lost * base.runs <= base.lost * own.runs:
        return False
    all_and_none = own.lost == own.runs and not base.lost
    return all_and_none or fisher((own.lost, own.runs), (base.lost, base.runs)) <= level


@dataclass(frozen=True)
class Difference:
    """Difference of two variants: its interval, and the run outcomes of both sides."""

    interval: Interval
    own: Ended
    other: Ended
    #: Reason why the two sides cannot be compared; empty if they can.
    why_not: str = ""

    def __neg__(self) -> "Difference":
        """Return the negated difference, with both sides exchanged."""
        return Difference(-self.interval, self.other, self.own, self.why_not)

    def judged(self, margin: float | None = None) -> Verdict:
        """Return the verdict on the difference; lower values are better."""
        return judged(self.interval, margin, self.own, self.other)


def seeds_to_decide(interval: Interval, margin: float | None = None) -> int | None:
    """Return the fewest seeds that would decide an inconclusive row; None if unknown.

    A row is decided if its interval excludes 0 or lies within the margin. The result is for the
    case that needs fewer seeds.
    """
    distance = max(abs(interval.mean), (margin or 0.0) - abs(interval.mean))
    return seeds_needed(interval, distance) if verdict(interval, margin) == "inconclusive" else None


@dataclass(frozen=True)
class Expectation:
    """Hypothesis on the loss difference of two variants, stated before the runs.

    Raises ValueError for an equivalence without a margin.
    """

    direction: Direction
    #: Least difference for `better` and `worse`, largest difference for `equivalent`. A negative
    #: margin allows a shortfall: "not worse by 0.01" is better by -0.01.
    margin: float

    def __post_init__(self) -> None:
        if self.direction == "equivalent" and not self.margin > 0:
            raise ValueError("an equivalence needs a margin above 0")

    @property
    def region(self) -> tuple[float, float]:
        """Range of differences, variant minus the other, in which the hypothesis is true."""
        below, above = (-math.inf, -self.margin), (self.margin, math.inf)
        regions = {"better": below, "worse": above, "equivalent": (-self.margin, self.margin)}
        return regions[self.direction]

    def result(self, interval: Interval) -> Result:
        """Return the test result of the hypothesis for an interval.

        The result is `supported` if the interval lies inside the region, `refuted` if the interval
        lies outside the region, and otherwise `undecided`.
        """
        low, high = self.region
        if interval.inside(low, high):
            return "supported"
        return "refuted" if interval.low > high or interval.high < low else "undecided"

    def seeds_to_decide(self, interval: Interval) -> int | None:
        """Return the fewest seeds that would decide the hypothesis; None if decided or unknown."""
        if self.result(interval) != "undecided":
            return None
        return seeds_needed(interval, min(abs(interval.mean - end) for end in self.region))
