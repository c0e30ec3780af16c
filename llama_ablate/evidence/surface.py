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
_HUBER = 1e-3  # residual of log loss beyond which Huber's loss is linear
_LEAST, _MOST = 1e-300, 100.0  # the least of a constant, and the most of a part's logarithm


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

    As Hoffmann et al. 2022 (arXiv:2203.15556, section D.2) fit: from spread starts, so that no
    local minimum passes for the best. Raises ValueError for fewer than five points, fewer than
    three sizes or lengths, or ones within a factor of 4 (of two sizes, or three a factor of 2
    apart, the split of compute was determined in 0 to 25% of simulated tables), or where parameters
    or tokens do not vary apart.
    """
    n, d, values = (np.asarray(v, float) for v in (parameters, tokens, losses))
    if len(values) < 5:
        raise ValueError("five constants need five points or more")
    if any(len({*axis}) < _FEWEST or max(axis) < _RANGE * min(axis) for axis in (n, d)):
        raise ValueError("it takes three sizes and three lengths or more, over a factor of 4 each")
    log_n, log_d = np.log(n), np.log(d)
    spreads = min(float(log_n.std()), float(log_d.std()))
    if spreads == 0 or 1 - float(np.corrcoef(log_n, log_d)[0, 1]) ** 2 < _APART:
        raise ValueError("parameters and tokens vary together: their parts cannot be told apart")
    spread, lowest = max(float(np.ptp(values)), 1e-9), float(values.min())
    starts = [
        Surface(
            E=max(0.0, lowest - above * spread),
            A=above * spread / 2 * math.exp(alpha * log_n.mean()),
            alpha=alpha,
            B=above * spread / 2 * math.exp(beta * log_d.mean()),
            beta=beta,
        )
        for alpha in (0.1, 0.5)
        for beta in (0.1, 0.5)
        for above in (0.5, 2.0)
    ]
    return _nearest(n, d, values, starts)


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
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws)
    sizes, lengths, values = (np.asarray(v, float) for v in (parameters, tokens, losses))
    chosen = [np.repeat(np.arange(n), count) for count in counts]
    drawn = [_nearest(sizes[own], lengths[own], values[own], [best]) for own in chosen]

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
    n, d = np.asarray(parameters, float), np.asarray(tokens, float)
    drawn = [_nearest(n, d, values[:, row].mean(1), [best]) for row in rows]
    wide = quantile(0.975, seeds - 1) * math.sqrt(seeds / (seeds - 1))

    def estimate(name: str) -> Estimate:
        value = getattr(best, name)
        each = np.array([getattr(one, name) for one in drawn])
        half = wide * float(each[which.ravel()].std(ddof=1))
        return Estimate(value, max(0.0, value - half), value + half)

    return {name: estimate(name) for name in ESTIMATED}


def _nearest(n: Array, d: Array, losses: Array, starts: Sequence[Surface]) -> Surface:
    """Return the surface of the least Huber loss over points that is reached from the starts.

    Inside, A and B are the logarithms of their parts of the loss at the middle of the points. A
    bootstrap starts at the surface of all points: of 438 simulated draws 434 came to what eight
    starts reach, and the others, all of much noise, within 0.5% of its Huber loss.
    """
    from scipy.optimize import least_squares

    log_n, log_d, observed = np.log(n), np.log(d), np.log(losses)
    middle_n, middle_d = float(log_n.mean()), float(log_d.mean())
    log_n, log_d = log_n - middle_n, log_d - middle_d

    def parts(constants: Array) -> tuple[Array, Array, Array]:
        e, a, alpha, b, beta = constants
        by_n, by_d = np.exp(a - alpha * log_n), np.exp(b - beta * log_d)
        return by_n, by_d, e + by_n + by_d

    def slopes(constants: Array) -> Array:
        by_n, by_d, loss = parts(constants)
        by_constant = [np.ones_like(loss), by_n, -log_n * by_n, by_d, -log_d * by_d]
        return np.stack(by_constant, -1) / loss[:, None]

    fits = [
        least_squares(
            lambda constants: np.log(parts(constants)[2]) - observed,
            [
                start.E,
                math.log(max(start.A, _LEAST)) - start.alpha * middle_n,
                start.alpha,
                math.log(max(start.B, _LEAST)) - start.beta * middle_d,
                start.beta,
            ],
            slopes,
            bounds=([0, -np.inf, 0, -np.inf, 0], [np.inf, _MOST, _STEEPEST, _MOST, _STEEPEST]),
            loss="huber",
            f_scale=_HUBER,
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
        )
        for start in starts
    ]
    e, a, alpha, b, beta = map(float, min(fits, key=lambda fit: float(fit.cost)).x)
    return Surface(e, math.exp(a + alpha * middle_n), alpha, math.exp(b + beta * middle_d), beta)
