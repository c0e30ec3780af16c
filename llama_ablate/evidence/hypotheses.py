"""Test results of hypotheses stated before the runs, read off an interval of the difference."""

import math
from dataclasses import dataclass
from typing import Literal

from llama_ablate.evidence.intervals import Interval, seeds_needed

Direction = Literal["better", "worse", "equivalent"]
Result = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Expectation:
    """A comparison stated before the runs: the variant's loss against another's.

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
        """The differences, variant minus the other, of which it holds."""
        below, above = (-math.inf, -self.margin), (self.margin, math.inf)
        regions = {"better": below, "worse": above, "equivalent": (-self.margin, self.margin)}
        return regions[self.direction]

    def result(self, interval: Interval) -> Result:
        """Return `supported` for an interval inside the region, `refuted` for one outside it."""
        low, high = self.region
        if interval.inside(low, high):
            return "supported"
        return "refuted" if interval.low > high or interval.high < low else "undecided"

    def seeds_to_decide(self, interval: Interval) -> tuple[float, float] | None:
        """Return from how many to how many seeds would decide it; None if decided or unknown."""
        if self.result(interval) != "undecided":
            return None
        return seeds_needed(interval, min(abs(interval.mean - end) for end in self.region))
