"""Scaling laws: power laws of loss against size, and the trend of a gap with scale."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.pairing import Effect, paired_effect
from llama_ablate.evidence.student import quantile

Array = NDArray[np.float64]
_APART = 0.02  # share of one axis' variance that the other must leave unexplained
_STEEPEST = 5.0  # an exponent beyond is a step, not a law
_LARGEST = 100.0  # cap on exponents, far beyond any loss
_HUBER = 1e-3  # residual of log loss beyond which Huber's loss is linear
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


def fit_law(x: Sequence[float], losses: Sequence[float], floor: float | None = None) -> Law:
    """Return the law that fits losses at sizes best: least squares of the logarithm, Huber's loss.

    As Hoffmann et al. 2022 (arXiv:2203.15556, section D.2) fit: from a grid of starts, so that no
    local minimum passes for the best. A known `floor` (a source's entropy) is kept. Raises
    ValueError for fewer sizes than constants.
    """
    constants = 3 if floor is None else 2
    if len(set(x)) < constants:
        raise ValueError(f"{constants} constants need {constants} sizes or more")
    values = np.asarray(losses, float)
    centre = float(np.exp(np.log(np.asarray(x, float)).mean()))
    spread, lowest = max(float(np.ptp(values)), 1e-9), float(values.min())
    starts = [
        Law(
            max(0.0, lowest - above * spread) if floor is None else floor,
            above * spread * centre**exponent,
            exponent,
        )
        for exponent in (0.05, 0.2, 0.5, 1.0)
        for above in (0.5, 2.0, 8.0)
    ]
    laws, huber = fit_laws(x, np.tile(values, (len(starts), 1)), starts, floor)
    return laws[int(np.argmin(huber))]


def fit_laws(
    x: Sequence[float],
    losses: Array,
    starts: Sequence[Law],
    floor: float | None = None,
    rounds: int = 300,
) -> tuple[list[Law], Array]:
    """Return for each row of losses (rows, sizes) the law that fits it, from a start of its own.

    All rows at once: Levenberg and Marquardt's steps on squares that are weighted as Huber's loss
    weights them, within the bounds of the constants. With the laws comes Huber's loss of each.
    """
    logs = np.log(np.asarray(x, float))
    middle = float(logs.mean())  # constants at the middle size are less entangled
    logs, observed = logs - middle, np.log(losses)
    low, high = np.array([-np.inf, 0.0, 0.0]), np.array([np.inf, _STEEPEST, np.inf])
    fixed = np.array([False, False, floor is not None])
    #: Columns: log scale at the middle size, exponent, floor.
    constants = np.array(
        [
            [math.log(max(law.scale, 1e-300)) - law.exponent * middle, law.exponent, law.floor]
            for law in starts
        ]
    )

    def residuals(constants: Array) -> tuple[Array, Array, Array]:
        """Return the residuals, their slopes by constant, and Huber's loss of each row."""
        above = np.exp(np.minimum(constants[:, :1] - constants[:, 1:2] * logs, _LARGEST))
        predicted = np.maximum(constants[:, 2:] + above, 1e-12)
        residual = np.log(predicted) - observed
        slopes = np.stack([above, -logs * above, np.ones_like(above)], -1) / predicted[..., None]
        size = np.abs(residual)
        huber = np.where(size < _HUBER, size**2, _HUBER * (2 * size - _HUBER)).sum(1)
        return residual, slopes, huber

    residual, slopes, huber = residuals(constants)
    damping = np.full(len(constants), 1e-3)
    for _ in range(rounds):
        weights = _HUBER / np.maximum(np.abs(residual), _HUBER)
        gradient = np.einsum("rs,rsk->rk", weights * residual, slopes)
        squares = np.einsum("rs,rsk,rsl->rkl", weights, slopes, slopes)
        at_bound = ((constants <= low) & (gradient > 0)) | ((constants >= high) & (gradient < 0))
        held = fixed | at_bound
        squares[held[:, :, None] | held[:, None, :]] = 0.0
        diagonal = np.einsum("rkk->rk", squares)
        diagonal += damping[:, None] * diagonal + 1e-12 + held
        step = np.linalg.solve(squares, np.where(held, 0.0, -gradient)[..., None])[..., 0]
        stepped = np.clip(constants + step, low, high)
        new_residual, new_slopes, new_huber = residuals(stepped)
        better = new_huber < huber
        constants = np.where(better[:, None], stepped, constants)
        residual = np.where(better[:, None], new_residual, residual)
        slopes = np.where(better[:, None, None], new_slopes, slopes)
        huber = np.where(better, new_huber, huber)
        damping = np.clip(np.where(better, damping / 4, damping * 4), 1e-12, 1e12)
        if (damping == 1e12).all():
            break
    laws = [Law(float(c), math.exp(a + b * middle), float(b)) for a, b, c in constants]
    return laws, huber


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
            lambda constants: np.log(np.maximum(predicted(constants), 1e-12)) - np.log(values),
            np.clip(start, low, high),
            loss="huber",
            f_scale=_HUBER,
            bounds=(low, high),
            x_scale="jac",
            xtol=1e-10,
            ftol=1e-10,
            gtol=1e-10,
            max_nfev=200,
        )
        for start in starts
    ]
    return np.asarray(min(fits, key=lambda result: result.cost).x)


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
    seeds = values.shape[1]
    chosen = np.random.default_rng(seed).integers(0, seeds, (draws, seeds))
    drawn: list[Law] = []
    if seeds > 1:
        drawn, _ = fit_laws(x, values[:, chosen].mean(2).T, [law] * draws, floor)
    wide = quantile(0.975, seeds - 1) * math.sqrt(seeds / (seeds - 1)) if seeds > 1 else 0.0

    def interval(number: Callable[[Law], float]) -> Interval:
        if not drawn:
            return Interval(number(law), math.nan, math.nan)
        half = wide * float(np.std([number(one) for one in drawn], ddof=1))
        return Interval(number(law), number(law) - half, number(law) + half)

    return Fit(
        law,
        interval(lambda one: one.floor),
        interval(lambda one: one.scale),
        interval(lambda one: one.exponent),
        interval(lambda one: one(at)),
    )


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
        [
            math.log(above * spread / 2),
            alpha,
            math.log(above * spread / 2),
            beta,
            max(0.0, lowest - above * spread),
        ]
        for alpha in (0.1, 0.5)
        for beta in (0.1, 0.5)
        for above in (0.5, 2.0)
    ]

    def predicted(constants: Array) -> Array:
        log_a, alpha, log_b, beta, floor = constants
        terms = (log_a - alpha * log_n, log_b - beta * log_d)
        return np.asarray(floor + sum(np.exp(np.minimum(term, _LARGEST)) for term in terms))

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
