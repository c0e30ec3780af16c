"""The loss as a surface in parameters and tokens, and how compute is best split between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.written import Estimate

Array = NDArray[np.float64]
#: The numbers of a surface that have intervals.
ESTIMATED = ("E", "A", "alpha", "B", "beta", "parameters_exponent")
_APART = 0.02  # share of one axis' variance that the other must leave unexplained
_FEWEST, _RANGE = 3, 4.0  # values of each axis, and the factor that they must span
_STEEPEST = 5.0  # an exponent beyond is a step, not a law
_LARGEST = 100.0  # cap on exponents of e, far beyond any loss
_HUBER = 1e-3  # residual of log loss beyond which Huber's loss is linear
_ROUNDS = 300  # of Levenberg and Marquardt's steps
_STIFF = 1e6  # damping at which no step helps any more


@dataclass(frozen=True)
class Surface:
    """`loss = E + A / parameters^alpha + B / tokens^beta`, in nats (Hoffmann et al. 2022)."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def __call__(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model of so many parameters after so many tokens."""
        by_size = self.A * math.pow(parameters, -self.alpha)
        return self.E + by_size + self.B * math.pow(tokens, -self.beta)

    @property
    def parameters_exponent(self) -> float:
        """The a of `best parameters = G (compute / 6)^a`; that of the best tokens is 1 - a."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens of the lowest loss at `flops = 6 parameters tokens`.

        In closed form (Hoffmann et al. 2022, equation 4).
        """
        ratio = self.alpha * self.A / (self.beta * self.B)
        parameters = (
            ratio ** (1 / (self.alpha + self.beta)) * (flops / 6) ** self.parameters_exponent
        )
        return parameters, flops / 6 / parameters


def fit_surface(
    parameters: Sequence[float], tokens: Sequence[float], losses: Sequence[float]
) -> Surface:
    """Return the surface that fits losses best: Huber's loss of log residuals, from eight starts.

    Raises ValueError for fewer than five points, fewer than three sizes or lengths, or ones within
    a factor of 4 (of two sizes, or three a factor of 2 apart, the split of compute was determined
    in 0 to 25% of simulated tables), or where parameters or tokens do not vary apart.
    """
    return fit_surfaces(parameters, tokens, np.asarray(losses, float)[None])[0]


def over_points(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    *,
    draws: int = 100,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return `ESTIMATED` with the percentiles that hold 95% of a bootstrap over points.

    For many points, each a run of its own (as Besiroglu et al. 2024, arXiv:2404.10102, do for those
    of Hoffmann et al.). Raises ValueError as `fit_surface` does.
    """
    best = fit_surface(parameters, tokens, losses)
    n = len(losses)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws).astype(float)
    drawn = fit_surfaces(parameters, tokens, np.tile(losses, (draws, 1)), counts)

    def estimate(name: str) -> Estimate:
        low, high = np.quantile([getattr(one, name) for one in drawn], [0.025, 0.975])
        return Estimate(getattr(best, name), float(low), float(high))

    return {name: estimate(name) for name in ESTIMATED}


def over_seeds(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[Sequence[float]],
    *,
    draws: int = 100,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return `ESTIMATED` through the means over seeds, with 95% intervals over seeds.

    `losses[i]` holds a point's losses by seed, the same seeds for every point: seeds are drawn
    whole, since the points of a seed share runs. The interval is Student's t with the bootstrap's
    standard error, widened by sqrt(n / (n - 1)) as few seeds draw too narrowly (Hesterberg 2015,
    "What teachers should know about the bootstrap", The American Statistician 69). NaN for one
    seed. Raises ValueError as `fit_surface` does.
    """
    values = np.asarray(losses, float)
    seeds = values.shape[1]
    best = fit_surface(parameters, tokens, list(values.mean(1)))
    if seeds < 2:
        return {name: Estimate(getattr(best, name)) for name in ESTIMATED}
    chosen = np.random.default_rng(seed).integers(0, seeds, (draws, seeds))
    rows, which = np.unique(np.sort(chosen, 1), axis=0, return_inverse=True)
    drawn = fit_surfaces(parameters, tokens, values[:, rows].mean(2).T)
    wide = quantile(0.975, seeds - 1) * math.sqrt(seeds / (seeds - 1))

    def estimate(name: str) -> Estimate:
        value = getattr(best, name)
        each = np.array([getattr(one, name) for one in drawn])
        half = wide * float(each[which.ravel()].std(ddof=1))
        return Estimate(value, max(0.0, value - half), value + half)

    return {name: estimate(name) for name in ESTIMATED}


def fit_surfaces(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Array,
    weights: Array | None = None,
) -> list[Surface]:
    """Return the surface through each row of losses (rows, points), from eight starts each.

    `weights` (rows, points) say how often a point counts, as a bootstrap draws it. As Hoffmann et
    al. 2022 (arXiv:2203.15556, section D.2) fit: from spread starts, so that no local minimum
    passes for the best. Raises ValueError as `fit_surface` does.
    """
    n, d, values = (np.asarray(v, float) for v in (parameters, tokens, losses))
    if values.shape[1] < 5:
        raise ValueError("five constants need five points or more")
    if any(len({*axis}) < _FEWEST or max(axis) < _RANGE * min(axis) for axis in (n, d)):
        raise ValueError("it takes three sizes and three lengths or more, over a factor of 4 each")
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
    counts = np.ones_like(values) if weights is None else np.asarray(weights, float)
    fits = [
        _descend(np.tile(start, (len(values), 1)), log_n, log_d, np.log(values), counts)
        for start in starts
    ]
    best = np.argmin([huber for _, huber in fits], 0)
    rows = [fits[start][0][row] for row, start in enumerate(best)]
    return [
        Surface(
            E=float(e),
            A=math.exp(a + alpha * middle_n),
            alpha=float(alpha),
            B=math.exp(b + beta * middle_d),
            beta=float(beta),
        )
        for a, alpha, b, beta, e in rows
    ]


def _descend(
    constants: Array, log_n: Array, log_d: Array, observed: Array, counts: Array
) -> tuple[Array, Array]:
    """Return the constants (rows, 5) that each row comes to from its start, and its Huber loss.

    All rows at once: Levenberg and Marquardt's steps on squares that are weighted as Huber's loss
    weights them, within the bounds of the constants. Columns: the logarithms of A and B at the
    middle, each before its exponent, and E.
    """
    low = np.array([-np.inf, 0.0, -np.inf, 0.0, 0.0])
    high = np.array([np.inf, _STEEPEST, np.inf, _STEEPEST, np.inf])

    def residuals(constants: Array, rows: NDArray[np.int64] | slice) -> tuple[Array, Array, Array]:
        """Return the residuals, their slopes by constant, and Huber's loss of some rows."""
        a, alpha, b, beta, e = (constants[:, i : i + 1] for i in range(5))
        by_n = np.exp(np.minimum(a - alpha * log_n, _LARGEST))
        by_d = np.exp(np.minimum(b - beta * log_d, _LARGEST))
        predicted = np.maximum(e + by_n + by_d, 1e-12)
        residual = np.log(predicted) - observed[rows]
        slopes = [by_n, -log_n * by_n, by_d, -log_d * by_d, np.ones_like(by_n)]
        size = np.abs(residual)
        huber = np.where(size < _HUBER, size**2, _HUBER * (2 * size - _HUBER))
        return residual, np.stack(slopes, -1) / predicted[..., None], (counts[rows] * huber).sum(1)

    huber = residuals(constants, slice(None))[2]
    damping = np.full(len(constants), 1e-3)
    todo = np.arange(len(constants))
    for _ in range(_ROUNDS):
        residual, slopes, _huber = residuals(constants[todo], todo)
        weighted = (counts[todo] * _HUBER / np.maximum(np.abs(residual), _HUBER))[..., None]
        weighted = weighted * slopes
        gradient = np.einsum("rs,rsk->rk", residual, weighted)
        squares = np.swapaxes(weighted, 1, 2) @ slopes
        at_low = (constants[todo] <= low) & (gradient > 0)
        held = at_low | ((constants[todo] >= high) & (gradient < 0))
        squares[held[:, :, None] | held[:, None, :]] = 0.0
        diagonal = np.einsum("rkk->rk", squares)
        diagonal += damping[todo, None] * diagonal + 1e-12 + held
        step = np.linalg.solve(squares, np.where(held, 0.0, -gradient)[..., None])[..., 0]
        stepped = np.clip(constants[todo] + step, low, high)
        stepped_huber = residuals(stepped, todo)[2]
        better = stepped_huber < huber[todo]
        gained = huber[todo] - stepped_huber
        done = np.where(better, gained <= 1e-9 * huber[todo], damping[todo] >= _STIFF)
        constants[todo[better]] = stepped[better]
        huber[todo[better]] = stepped_huber[better]
        damping[todo] = np.clip(damping[todo] * np.where(better, 0.25, 4.0), 1e-12, None)
        todo = todo[~done]
        if not len(todo):
            break
    return constants, huber
