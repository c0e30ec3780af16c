"""Verdicts of a table's rows: from how the runs ended, and from simultaneous intervals."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from llama_ablate.evidence.intervals import Interval, seeds_needed
from llama_ablate.evidence.rates import p_of_rates

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


@dataclass(frozen=True)
class Ended:
    """How many runs of one side of a comparison have finished, and how many of them ended so."""

    runs: int
    diverged: int
    collapsed: int
    too_short: int

    @classmethod
    def of(cls, words: Iterable[str]) -> "Ended":
        """Count words: `ok`, `too short`, `diverged`, `collapsed`; others have not finished."""
        found = Counter(words)
        lost, short = (found["diverged"], found["collapsed"]), found["too short"]
        return cls(found["ok"] + short + sum(lost), *lost, short)

    @property
    def lost(self) -> int:
        """How many diverged or collapsed."""
        return self.diverged + self.collapsed


def verdict(interval: Interval, margin: float | None = None) -> Verdict:
    """Return where an interval of `variant - baseline` lies, lower being better.

    `equivalent` where it is 0 exactly, and within the margin, though it leave out 0: a difference
    that is there for certain, and too small to matter. `inconclusive` where it lies on both sides
    of 0, or has no ends.
    """
    if interval.low == interval.high == 0 or (margin and interval.inside(-margin, margin)):
        return "equivalent"
    if interval.high < 0:
        return "better"
    return "worse" if interval.low > 0 else "inconclusive"


def judged(interval: Interval, margin: float | None, own: Ended, base: Ended) -> Verdict:
    """Return the verdict of a row whose runs, and whose baseline's, ended so.

    `diverged` or `collapsed` where all of its runs did and none of the baseline's, or more of them
    at the interval's own level (exact). `too short` where a run of either is. Where some were lost,
    the interval is that of the seeds which both kept: they show neither that an arm is better than
    its lost seeds let it be, nor that it is equivalent.
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
    """Return whether so many more of a variant's runs were lost that they decide."""
    if own.lost * base.runs <= base.lost * own.runs:
        return False
    all_and_none = own.lost == own.runs and not base.lost
    return all_and_none or p_of_rates((own.lost, own.runs), (base.lost, base.runs)) <= level


def seeds_to_decide(interval: Interval, margin: float | None = None) -> tuple[float, float] | None:
    """Return from how many to how many seeds would decide an inconclusive row; None if unknown.

    The interval has to leave out 0, or the margin's nearer end: whichever takes fewer seeds.
    """
    distance = max(abs(interval.mean), (margin or 0.0) - abs(interval.mean))
    return seeds_needed(interval, distance) if verdict(interval, margin) == "inconclusive" else None
