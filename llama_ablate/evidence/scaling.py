"""Loss against size: power laws with an irreducible part, and whether a gap moves with scale."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.pairing import Effect, paired_effect
from llama_ablate.evidence.student import quantile

Array = NDArray[np.float64]
_APART = 0.02  # of the variance of one axis that the other must leave open
_STEEPEST = 5.0  # an exponent beyond is a step, not a law
_LARGEST = 100.0  # of a logarithm: what is beyond is far from any loss
Trend = Literal["grows", "holds", "closes", "undecided"]


@dataclass(frozen=True)
class Law:
    """`loss = floor + scale * x^-exponent`, in nats."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, x: float) -> float:
        """Return the loss at a size."""
        return self.floor + self.scale * math.pow(x, -self.exponent)


@dataclass(frozen=True)
class Interval:
    """A number with the ends of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A law with bootstrap intervals of its constants, and of what it projects."""

    law: Law
    floor: Interval
    scale: Interval
    exponent: Interval
    projected: Interval


@dataclass(frozen=True)
class Gap:
    """How the difference from the baseline moves with the logarithm of size."""

    trend: Trend
    #: Nats per tenfold size, over seeds.
    slope: Effect
    #: The difference at the projected size, if the line goes on.
    projected: Effect


def fit_law(
    x: Sequence[float],
    losses: Sequence[float],
    floor: float | None = None,
    near: Law | None = None,
) -> Law:
    """Return the law that fits losses at sizes best: least squares of the logarithm, Huber's loss.

    As Hoffmann et al. 2022 (arXiv:2203.15556, section D.2) fit: from a grid of starts, so that no
    local minimum passes for the best; or from one start `near` it. A known `floor` (a source's
    entropy) is kept. Raises ValueError for fewer sizes than constants.
    """
    sizes, values = np.asarray(x, float), np.asarray(losses, float)
    constants = 3 if floor is None else 2
    if len(set(x)) < constants:
        raise ValueError(f"{constants} constants need {constants} sizes or more")
    centre = float(np.exp(np.log(sizes).mean()))  # constants at the middle size are less entangled
    logs = np.log(sizes / centre)
    spread, lowest = max(float(np.ptp(values)), 1e-9), float(values.min())

    def predicted(of: Array) -> Array:
        base = of[2] if floor is None else floor
        return np.asarray(base + np.exp(np.minimum(of[0] - of[1] * logs, _LARGEST)))

    starts = [
        [math.log(above * spread), exponent, max(0.0, lowest - above * spread)]
        for exponent in (0.05, 0.2, 0.5, 1.0)
        for above in (0.5, 2.0, 8.0)
    ]
    if near is not None:
        level = math.log(max(near.scale, 1e-300)) - near.exponent * math.log(centre)
        starts = [[level, near.exponent, near.floor]]
    best = _least(predicted, values, [s[:constants] for s in starts], [1, 2], [1])
    base = float(best[2]) if floor is None else floor
    return Law(base, math.exp(best[0] + best[1] * math.log(centre)), float(best[1]))


def _least(
    predicted: Callable[[Array], Array],
    values: Array,
    starts: Sequence[Sequence[float]],
    positive: Sequence[int],
    exponents: Sequence[int],
) -> Array:
    """Return the constants of the best fit from any start; those at `positive` are not below 0."""
    from scipy import optimize

    low = [0.0 if i in positive else -np.inf for i in range(len(starts[0]))]
    high = [_STEEPEST if i in exponents else np.inf for i in range(len(starts[0]))]
    fits = [
        optimize.least_squares(
            lambda of: np.log(np.maximum(predicted(of), 1e-12)) - np.log(values),
            np.clip(start, low, high), loss="huber", f_scale=1e-3, bounds=(low, high),
            x_scale="jac", xtol=1e-10, ftol=1e-10, gtol=1e-10, max_nfev=200,
        )
        for start in starts
    ]  # fmt: skip
    return np.asarray(min(fits, key=lambda found: found.cost).x)


def fit(
    x: Sequence[float],
    losses: Sequence[Sequence[float]],
    *,
    at: float,
    floor: float | None = None,
    draws: int = 200,
    seed: int = 0,
) -> Fit:
    """Return a law through the means over seeds, with bootstrap intervals.

    `losses[i]` holds a size's losses by seed, the same seeds for every size. Seeds are what is
    drawn again, whole: a seed's text order is the same at every size. The interval is Student's t
    with the bootstrap's standard error, widened by n / (n - 1) as few seeds draw too narrowly
    (Hesterberg 2015, "What teachers should know about the bootstrap", The American Statistician
    69); percentiles could not leave the range of the few means that there are.
    """
    values = np.asarray(losses, float)
    law = fit_law(x, list(values.mean(1)), floor)
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(draws if values.shape[1] > 1 else 0):
        chosen = generator.integers(0, values.shape[1], values.shape[1])
        drawn.append(fit_law(x, list(values[:, chosen].mean(1)), floor, law))

    seeds = values.shape[1]
    wide = quantile(0.975, seeds - 1) * math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0

    def interval(of: Callable[[Law], float]) -> Interval:
        if not drawn:
            return Interval(of(law), math.nan, math.nan)
        half = wide * float(np.std([of(one) for one in drawn], ddof=1))
        return Interval(of(law), of(law) - half, of(law) + half)

    return Fit(law, interval(lambda one: one.floor), interval(lambda one: one.scale),
               interval(lambda one: one.exponent), interval(lambda one: one(at)))  # fmt: skip


def fit_surface(
    parameters: Sequence[float], tokens: Sequence[float], losses: Sequence[float]
) -> dict[str, float]:
    """Return the constants of `E + A / N^alpha + B / D^beta` (Hoffmann et al. 2022, equation 2).

    Raises ValueError for fewer than five points, or where parameters or tokens do not vary apart.
    """
    n, d, values = (np.asarray(v, float) for v in (parameters, tokens, losses))
    if len(values) < 5:
        raise ValueError("five constants need five points or more")
    middle_n, middle_d = float(np.log(n).mean()), float(np.log(d).mean())
    log_n, log_d = np.log(n) - middle_n, np.log(d) - middle_d
    spreads = min(float(log_n.std()), float(log_d.std()))
    if spreads == 0 or 1 - float(np.corrcoef(log_n, log_d)[0, 1]) ** 2 < _APART:
        raise ValueError("parameters and tokens vary together: their parts cannot be told apart")
    spread, lowest = max(float(np.ptp(values)), 1e-9), float(values.min())
    starts = [
        [math.log(above * spread / 2), alpha, math.log(above * spread / 2), beta,
         max(0.0, lowest - above * spread)]
        for alpha in (0.1, 0.5) for beta in (0.1, 0.5) for above in (0.5, 2.0)
    ]  # fmt: skip

    def predicted(of: Array) -> Array:
        terms = (of[0] - of[1] * log_n, of[2] - of[3] * log_d)
        return np.asarray(of[4] + sum(np.exp(np.minimum(term, _LARGEST)) for term in terms))

    a, alpha, b, beta, base = (
        float(v) for v in _least(predicted, values, starts, [1, 3, 4], [1, 3])
    )
    return {
        "E": base,
        "A": math.exp(a + alpha * middle_n),
        "alpha": alpha,
        "B": math.exp(b + beta * middle_d),
        "beta": beta,
    }


def gap(
    x: Sequence[float],
    differences: Sequence[Sequence[float]],
    *,
    at: float,
    margin: float | None = None,
) -> Gap:
    """Return whether the gap to the baseline grows, holds or closes with size.

    `differences[i]` holds a size's paired differences by seed. Each seed gives a line in log10 of
    size, and the lines are the independent repetitions: Student's t over their slopes, and over
    their values at the projected size. `grows` and `closes` where the slope's interval leaves out
    zero (away from no gap, or towards it, as seen at the middle size); `holds` where it lies within
    the margin per tenfold size; else `undecided`. Raises ValueError for fewer than two sizes.
    """
    logs = np.log10(np.asarray(x, float))
    values = np.asarray(differences, float)
    if len(set(x)) < 2:
        raise ValueError("a trend needs two sizes or more")
    centred = logs - logs.mean()
    slopes = centred @ values / (centred @ centred)
    ends = values.mean(0) + slopes * (math.log10(at) - logs.mean())
    slope = paired_effect(list(slopes), [0.0] * len(slopes))
    projected = paired_effect(list(ends), [0.0] * len(ends))
    trend: Trend = "undecided"
    if slope.low > 0 or slope.high < 0:
        trend = "grows" if slope.mean * float(values.mean()) > 0 else "closes"
    elif margin and slope.low > -margin and slope.high < margin:
        trend = "holds"
    return Gap(trend, slope, projected)
