"""Effective speed-up: how many times the tokens or FLOPs a baseline needs for the same loss.

Also called compute multiplier or efficiency gain (Hernandez & Brown 2020, arXiv:2005.04305; Ho et
al. 2024, arXiv:2403.05812). Losses are at the ends of runs whose schedule ended there, or of
branches of a warm-up, stable, decay run; points of a learning curve on the way are not comparable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.intervals import Interval
from llama_ablate.evidence.scaling import law_between

Array = NDArray[np.float64]
_STEPS = 1000  # of a curve, between its shortest and its longest run
#: Fewest lengths that a curve is fitted through; one more checks its form.
LENGTHS = 3


@dataclass(frozen=True)
class LossCurve:
    """Mean losses over seeds of runs by their length, which ascends, in tokens or FLOPs."""

    x: Sequence[float]
    losses: Sequence[float]

    def saved(self, nats: float) -> tuple[float, float]:
        """Return how much less length reaches a loss that is so much higher than at the end.

        In natural logarithms of length, with the error of the curve's form there. Infinite, and no
        error, where the runs do not reach that far; with fewer than three lengths none does.
        """
        if nats == 0:
            return 0.0, 0.0
        at = self.where(self.losses[-1] + nats) if len(self.x) >= LENGTHS else -math.inf
        if math.isinf(at):
            return math.inf, 0.0
        logs = np.log(self.x)
        return float(logs[-1]) - at, self._slope * float(np.abs(logs - at).min())

    @property
    def form(self) -> float:
        """By which share a length is missed that is left out, the worst of them; NaN unchecked."""
        errors = [error for error, _ in self._left_out]
        return math.expm1(max(errors)) if errors else math.nan

    @property
    def _slope(self) -> float:
        """The error of the form over the logarithm of length to the nearest run; 0 unchecked."""
        return max((error / gap for error, gap in self._left_out), default=0.0)

    @cached_property
    def _left_out(self) -> list[tuple[float, float]]:
        """How far each inner length is from where the others have its loss, and from the next."""
        if len(self.x) <= LENGTHS:
            return []
        logs, inner = np.log(self.x), range(1, len(self.x) - 1)
        others = [
            LossCurve([*self.x[:i], *self.x[i + 1 :]], [*self.losses[:i], *self.losses[i + 1 :]])
            for i in inner
        ]
        return [
            (
                abs(max(other.where(self.losses[i]), float(logs[0])) - float(logs[i])),
                float(min(logs[i] - logs[i - 1], logs[i + 1] - logs[i])),
            )
            for i, other in zip(inner, others, strict=True)
        ]

    @cached_property
    def _drawn(self) -> tuple[Array, Array]:
        """Logarithms of length, and the losses there.

        Between its measured points the curve follows their law, shifted as much as the points on
        both sides lie beside it.
        """
        logs, law = np.log(np.asarray(self.x, float)), law_between(self.x, self.losses)
        beside = [loss - law(x) for x, loss in zip(self.x, self.losses, strict=True)]
        at = np.linspace(logs[0], logs[-1], _STEPS)
        smooth = law.floor + law.scale * np.exp(-law.exponent * at)
        return at, smooth + np.interp(at, logs, beside)

    def where(self, loss: float) -> float:
        """Return the logarithm of the length from which on the loss is lower; -inf for none."""
        at, losses = self._drawn
        last = int(np.flatnonzero(losses >= loss).max(initial=-1))
        if last < 0:
            return -math.inf
        if last == len(at) - 1:
            return float(at[-1])
        share = (losses[last] - loss) / (losses[last] - losses[last + 1])
        return float(at[last] + share * (at[last + 1] - at[last]))


@dataclass(frozen=True)
class SpeedUp:
    """How many times a variant's length the baseline takes to the same loss, and its interval.

    All are natural logarithms but the form. Infinite where it is beyond the runs, above `most` or
    below `least`.
    """

    value: float
    low: float
    high: float
    least: float
    most: float
    #: By which share the curve misses a length that is left out; NaN where it has too few.
    form: float

    def times(self, ratio: float, half: float = 0.0) -> "SpeedUp":
        """Return the multiple of another cost, whose ratio has an interval of that half width.

        Both errors are independent. What is beyond the runs stays so, by a bound that allows for
        the ratio's error.
        """
        near = min(max(self.value, self.least), self.most)
        low = near - math.hypot(near - self.low, half) if self.low < near else self.low - half
        high = near + math.hypot(self.high - near, half) if self.high > near else self.high + half
        if math.isnan(half):
            low = high = math.nan
        return replace(
            self,
            value=self.value + ratio,
            low=low + ratio,
            high=high + ratio,
            least=self.least + ratio + half,
            most=self.most + ratio - half,
        )


def speed_up(baseline: LossCurve, variant: LossCurve, difference: Interval) -> SpeedUp:
    """Return the multiple of the baseline's length that reaches the same loss.

    `difference` is that of the losses at both ends, variant minus baseline. The better one's curve
    is read: how soon it was where the other ended. So the multiple leaves out 1 where the
    difference leaves out 0, unless the runs differ in length. No curve is extended: a difference
    that reaches higher than a curve begins is beyond the runs. The error of a curve's form grows
    from 0 at each of its runs by the worst that a run left out shows; it widens the interval
    (tests/evidence/test_speed_up.py).
    """
    longer = math.log(baseline.x[-1] / variant.x[-1])

    def read(nats: float) -> tuple[float, float]:
        if math.isnan(nats):
            return math.nan, 0.0
        if nats <= 0:
            saved, error = variant.saved(-nats)
            return longer + saved, error
        saved, error = baseline.saved(nats)
        return longer - saved, error

    (high, over), (low, under) = read(difference.low), read(difference.high)
    return SpeedUp(
        value=read(difference.mean)[0],
        low=low - under,
        high=high + over,
        least=math.log(baseline.x[0] / variant.x[-1]),
        most=math.log(baseline.x[-1] / variant.x[0]),
        form=(variant if difference.mean <= 0 else baseline).form,
    )
