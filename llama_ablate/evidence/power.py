"""Expected half width of an interval, power, and the seeds that they need, in closed form."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from llama_ablate.evidence.intervals import ALPHA, PRIOR_DF, join_errors

#: Default power to aim for.
WANTED = 0.8
#: Assumed standard deviation over seeds of a paired difference without a pilot, in nats: the value
#: over 33 experiments of this repository with 0.1M to 10M parameters, accurate to a factor of two.
USUAL_SD = 0.017
_MOST_SEEDS = 500  # largest number of seeds to suggest


@dataclass(frozen=True)
class Noise:
    """Noise of a paired difference, in nats per token or bits per byte."""

    #: Standard deviation of the differences over seeds.
    seeds: float
    #: Standard error from the held-out text, with its degrees of freedom.
    text: float = 0.0
    text_df: float = math.inf


@dataclass(frozen=True)
class Rows:
    """Rows of a table before it is measured; all are assumed to be equally noisy.

    In a factorial design the rows are effects: `cells` is the number of cells, and `spread` the
    noise of an effect divided by the noise of a difference. `share` is the share of the error level
    that the last look spends.
    """

    count: int
    noise: Noise
    cells: int = 2
    spread: float = 1.0
    share: float = 1.0

    @property
    def _level(self) -> float:
        return ALPHA * self.share / self.count

    def half_width(self, seeds: int) -> float:
        """Return the expected half width of a row's interval; NaN for a single seed."""
        if seeds < 2:
            return math.nan
        own_df = (self.cells - 1.0) * (seeds - 1.0)
        df = own_df + (PRIOR_DF if self.cells == 2 and self.count > 1 else 0.0)
        error, noise = self.noise.seeds * self.spread / math.sqrt(seeds), self.noise
        return float(join_errors(error, df, noise.text, noise.text_df, own_df + 1, self._level))

    def power(self, effect: float, seeds: int) -> float:
        """Return the probability that an interval excludes 0 on the side of a true effect."""
        from scipy import special

        half = self.half_width(seeds)
        error = math.hypot(self.noise.seeds * self.spread / math.sqrt(seeds), self.noise.text)
        df = (self.cells - 1.0) * (seeds - 1.0)
        return float(1 - special.nctdtr(df, abs(effect) / error, half / error))


def fewest_seeds(is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number of seeds that is enough, or None if no number tried is."""
    return next((seeds for seeds in range(2, _MOST_SEEDS) if is_enough(seeds)), None)
