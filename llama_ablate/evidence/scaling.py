"""Scaling laws: power laws of loss against size, and the trend of a gap with scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.intervals import Interval, simultaneous
from llama_ablate.evidence.pairing import Effect, paired_effect
from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.written import Estimate

Array = NDArray[np.float64]
_STEEPEST = 5.0  # an exponent beyond is a step, not a law
_FLATTEST = 1e-3  # a law below falls as the logarithm does
_ZOOMS = 6  # of the grid of exponents, each four times finer
_OFFSETS = np.geomspace(1e-5, 1.0, 40)  # from an estimate to its bound, as shares of the way
Trend = Literal["grows", "closes", "reverses", "moves", "holds", "undecided"]
_WEIGHT_DF = 12.0  # of the mean variance of all sizes, that the variance of a size is joined with
Constant = Literal["floor", "exponent", "projected"]


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
class Fit:
    """A law with intervals of its constants, and of the loss it projects."""

    law: Law
    floor: Estimate
    exponent: Estimate
    projected: Estimate


@dataclass(frozen=True)
class Gap:
    """How the difference from the baseline moves with the logarithm of size."""

    trend: Trend
    #: Nats per tenfold size.
    slope: Interval


def sizes_for_law(floor: float | None) -> int:
    """Return how many sizes a law needs: one more than it has constants, so that it can miss one.

    Three constants, or two where the floor is known.
    """
    return 4 if floor is None else 3


def fit_law(x: Sequence[float], losses: Sequence[float], floor: float | None = None) -> Law:
    """Return the law with the least squares of relative residuals, at no floor below 0.

    A known `floor` (a source's entropy) is kept. For every exponent of a grid the other constants
    are solved exactly (variable projection, Golub & Pereyra 1973), and the grid is refined about
    the best: there are no starts, and no local minimum passes for the best. Raises ValueError for
    fewer sizes than `sizes_for_law`.
    """
    needed = sizes_for_law(floor)
    if len(set(x)) < needed:
        raise ValueError(f"{needed - 1} constants need {needed} sizes or more")
    return _Ladder(x, losses, floor).law()


def law_between(x: Sequence[float], losses: Sequence[float]) -> Law:
    """Return the nearest law, to be read between its first and last size alone: three suffice.

    Raises ValueError for fewer.
    """
    if len(set(x)) < 3:
        raise ValueError("the curve of a loss needs three sizes or more")
    return _Ladder(x, losses, None).law()


def fit(
    x: Sequence[float], losses: Sequence[Sequence[float]], *, at: float, floor: float | None = None
) -> Fit:
    """Return the law through the means over seeds, and profile intervals of 95%.

    `losses[i]` holds a size's losses by seed, the same seeds for every size; the loss is projected
    to the size `at`. A value of a constant lies in its interval where the best law that has it
    fits worse than the best law by no more than t^2 times the noise, which is the variance over
    seeds of what moves that constant alone (t has one degree of freedom less than there are seeds).
    So seeds may share a part of their noise at all sizes, and sizes may differ in noise. An
    interval that reaches a bound of its constant is one-sided. Raises ValueError as `fit_law` does.
    """
    values = np.asarray(losses, float)
    law = fit_law(x, list(values.mean(1)), floor)
    ladder = _Ladder(x, values.mean(1), floor)
    if values.shape[1] < 2:
        of = {"floor": law.floor, "exponent": law.exponent, "projected": law(at)}
        intervals = {name: Estimate(value) for name, value in of.items()}
    else:
        intervals = {
            "exponent": ladder.profile("exponent", values),
            "projected": ladder.profile("projected", values, at),
            "floor": Estimate(law.floor, law.floor, law.floor)
            if floor is not None
            else ladder.profile("floor", values),
        }
    return Fit(law, **intervals)


def local_exponent(x: Sequence[float], losses: Sequence[Sequence[float]]) -> Effect:
    """Return the exponent of the power law without a floor that is nearest over these sizes.

    `losses[i]` holds a size's losses by seed. It describes these sizes and no others: each seed
    gives the slope of its log loss in log size, and Student's t is over the slopes. Raises
    ValueError for fewer than two sizes.
    """
    if len(set(x)) < 2:
        raise ValueError("a slope needs two sizes or more")
    logs = np.log(np.asarray(x, float))
    centred = logs - logs.mean()
    slopes = -(centred @ np.log(np.asarray(losses, float))) / (centred @ centred)
    return paired_effect(list(slopes), [0.0] * len(slopes))


class _Ladder:
    """Laws through a loss for each size: the best one, and the best with one constant held.

    Inside, sizes are divided by their geometric mean, so that `above` is what a law adds to its
    floor at the middle size. Shapes are in sizes (S), held values (R) and exponents (K). Solved at
    once, the 240 laws of a fit's profiles take 0.007 s; scipy's `least_squares` takes 0.19 s for
    them from one start each, and may stop at a local minimum.
    """

    def __init__(
        self, x: Sequence[float], losses: Sequence[float] | Array, floor: float | None
    ) -> None:
        logs = np.log(np.asarray(x, float))
        self.middle = float(logs.mean())
        self.logs = logs - self.middle
        self.losses = np.asarray(losses, float)
        self.known = floor

    def law(self) -> Law:
        """Return the best law."""
        floor, above, exponent, _ = self._best("floor", None)
        return Law(
            float(floor[0]),
            float(above[0]) * math.exp(float(exponent[0]) * self.middle),
            float(exponent[0]),
        )

    def profile(self, constant: Constant, losses: Array, at: float | None = None) -> Estimate:
        """Return a constant of the best law with its profile interval; losses are (S, seeds)."""
        at_log = 0.0 if at is None else math.log(at) - self.middle
        floor, above, exponent, least = (float(v[0]) for v in self._best("floor", None))
        lowest = self.known or 0.0
        estimate, bottom, top = {
            "floor": (floor, 0.0, float(self.losses.min())),
            "exponent": (exponent, _FLATTEST, _STEEPEST),
            "projected": (
                floor + above * math.exp(-exponent * at_log),
                lowest,
                float(self.losses.max()),
            ),
        }[constant]
        ends = []
        for bound in (bottom, top):
            held_values = estimate + (bound - estimate) * np.append(0.0, _OFFSETS)
            fits = self._best(constant, held_values, at_log)
            worse = np.sqrt(np.maximum(fits[3] - least, 0.0))
            allowed = self._noise(constant, fits, losses, at_log)
            ends.append(_crossing(held_values, worse - allowed))
        low, high = ends
        return Estimate(estimate, 0.0 if low is None else low, math.inf if high is None else high)

    def _best(
        self, constant: Constant, held_values: Array | None, at_log: float = 0.0
    ) -> tuple[Array, Array, Array, Array]:
        """Return floor, above, exponent and cost, each (R,), of the best law for each held value.

        With `held_values` None nothing is held, and R is 1.
        """
        if constant == "exponent" and held_values is not None:
            floor, above, cost = self._solved(held_values[:, None])
            return floor[:, 0], above[:, 0], held_values, cost[:, 0]
        rows = 1 if held_values is None else len(held_values)
        exponents = np.tile(np.geomspace(_FLATTEST, _STEEPEST, 60), (rows, 1))
        pick = np.arange(rows)
        for zoom in range(_ZOOMS + 1):
            floor, above, cost = self._solved(exponents, constant, held_values, at_log)
            best = np.argmin(cost, 1)
            if zoom < _ZOOMS:
                low = exponents[pick, np.maximum(best - 1, 0)]
                high = exponents[pick, np.minimum(best + 1, exponents.shape[1] - 1)]
                exponents = np.linspace(low, high, 9, axis=1)
        return floor[pick, best], above[pick, best], exponents[pick, best], cost[pick, best]

    def _solved(
        self,
        exponents: Array,
        constant: Constant = "exponent",
        held_values: Array | None = None,
        at_log: float = 0.0,
    ) -> tuple[Array, Array, Array]:
        """Return floor, above and cost, each (R, K), of the best law for each exponent.

        The cost is the sum of squared relative residuals: linear in floor and above.
        """
        inverse = 1 / self.losses
        powers = np.exp(-exponents[..., None] * self.logs)
        falls = powers * inverse
        held = None if held_values is None else held_values[:, None]

        def cost(floor: Array, above: Array) -> Array:
            residual = floor[..., None] * inverse + above[..., None] * falls - 1
            return np.asarray((residual**2).sum(-1))

        def with_floor(floor: Array) -> tuple[Array, Array, Array]:
            rest = 1 - floor[..., None] * inverse
            above = np.maximum((falls * rest).sum(-1) / (falls**2).sum(-1), 0)
            return floor, above, cost(floor, above)

        shape = exponents.shape
        if constant == "projected" and held is not None:
            there = np.exp(-exponents * at_log)
            if self.known is not None:
                floor = np.full(shape, self.known)
                above = np.maximum(held - floor, 0) / there
                return floor, above, cost(floor, above)
            away = (powers - there[..., None]) * inverse
            rest = 1 - held[..., None] * inverse
            above = (away * rest).sum(-1) / np.maximum((away**2).sum(-1), 1e-300)
            above = np.clip(above, 0, held / there)
            floor = np.maximum(held - above * there, 0)
            return floor, above, cost(floor, above)
        if self.known is not None:
            return with_floor(np.full(shape, self.known))
        if constant == "floor" and held is not None:
            return with_floor(np.broadcast_to(held, shape))
        # Neither is held: the floor that is solved with it where it is above 0, else 0.
        aa, bb = (inverse**2).sum(), (falls**2).sum(-1)
        ab, a, b = (falls * inverse).sum(-1), inverse.sum(), falls.sum(-1)
        determinant = np.maximum(aa * bb - ab**2, 1e-12 * aa * bb)
        return with_floor(np.clip((a * bb - b * ab) / determinant, 0, a / aa))

    def _noise(
        self,
        constant: Constant,
        fits: tuple[Array, Array, Array, Array],
        losses: Array,
        at_log: float,
    ) -> Array:
        """Return for each fit by how much (root of the cost) seeds alone may make it worse.

        That is t times the standard error over seeds of the relative losses along the direction in
        which the constant moves the law and the free constants cannot.
        """
        floor, above, exponent, _ = (values[:, None] for values in fits)
        powers = np.exp(-exponent * self.logs)
        by_floor, by_above = np.ones_like(powers), powers
        by_exponent = -above * self.logs * powers
        at_bound = (floor <= 0) | (self.known is not None)
        if constant == "projected":
            there = np.exp(-exponent * at_log)
            target = np.where(at_bound, by_above / there, by_floor)
            others = [
                np.where(at_bound, 0.0, by_above - there),
                by_exponent + above * at_log * np.where(at_bound, by_above, there),
            ]
        elif constant == "floor":
            target, others = by_floor, [by_above, by_exponent]
        else:
            target, others = by_exponent, [by_above, np.where(at_bound, 0.0, by_floor)]
        noise = self._seeds_noise(target, others, losses)
        if constant == "exponent" and self.known is None:
            # Where the best law with this exponent has no floor, the best law of all may have one.
            noise = np.maximum(noise, self._seeds_noise(by_exponent, [by_above, by_floor], losses))
        return noise

    def _seeds_noise(self, target: Array, others: list[Array], losses: Array) -> Array:
        """Return t standard errors of the relative losses along a direction of each row (R, S).

        It is what is left of `target` when the directions of free constants are taken out.
        """
        moved = target / self.losses
        free = np.stack([other / self.losses for other in others], -1)
        left = moved - np.einsum("rsn,rnt,rt->rs", free, np.linalg.pinv(free, rcond=1e-9), moved)
        left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-300)
        relative = losses / self.losses[:, None]
        seeds = losses.shape[1]
        error = (left @ relative).std(1, ddof=1) / math.sqrt(seeds)
        return np.asarray(quantile(0.975, seeds - 1) * error)


def _crossing(held: Array, excess: Array) -> float | None:
    """Return where the excess over the noise passes 0 for good; None where it does not."""
    inside = int(np.flatnonzero(excess <= 0).max(initial=0))
    if inside == len(held) - 1:
        return None
    a, b = min(float(excess[inside]), 0.0), float(excess[inside + 1])
    return float(held[inside] + (held[inside + 1] - held[inside]) * (-a / (b - a)))


def gaps(
    differences: Mapping[str, Mapping[float, Sequence[float]]], margin: float | None = None
) -> dict[str, Gap]:
    """Return how each variant's gap to the baseline moves with size.

    `differences` are a variant's paired differences by size, one for each seed, the same seeds at
    all sizes. Each seed gives a line in log10 of size, and the lines are the independent
    repetitions: of slopes, and of the lines' values at the smallest and the largest size,
    intervals hold at once over all variants (`simultaneous`). A size weighs as little as the other
    variants' variance over seeds has it (`_weights`). No line is projected: the gap of two power
    laws is none.

    Where the slope leaves out 0 the gap `reverses` if both ends leave it out, on opposite sides.
    Where both means are on one side it `grows` if the largest size leaves out 0, away from which
    the slope goes, and `closes` if the smallest does, towards which it goes; else it `moves`. It
    `holds` where the slope lies within the margin per tenfold size, and else is `undecided`. Raises
    ValueError for fewer than two sizes.
    """
    if any(len(own) < 2 for own in differences.values()):
        raise ValueError("a trend needs two sizes or more")
    lines: list[dict[str, list[float]]] = [{}, {}, {}]
    for name, own in differences.items():
        weights = _weights({key: other for key, other in differences.items() if key != name})
        logs, values = np.log10(np.asarray([*own], float)), np.asarray([*own.values()], float)
        weight = np.array([weights.get(x, 1.0) for x in own])
        middle = weight @ logs / weight.sum()
        leverage = weight * (logs - middle)
        slope = leverage @ values / (leverage @ logs)
        centre = weight @ values / weight.sum()
        ends = (centre + slope * (to - middle) for to in (logs.min(), logs.max()))
        for held, found in zip(lines, (slope, *ends), strict=True):
            held[name] = list(map(float, found))
    slopes, firsts, lasts = map(simultaneous, lines)
    return {
        name: Gap(_trend(slopes[name], firsts[name], lasts[name], margin), slopes[name])
        for name in differences
    }


def _trend(slope: Interval, first: Interval, last: Interval, margin: float | None) -> Trend:
    """Return the word for a line's slope and its values at the smallest and the largest size."""
    if margin and slope.inside(-margin, margin):
        return "holds"
    if slope.low <= 0 <= slope.high:
        return "undecided"
    if slope.high < 0:  # seen from the other side it is the same
        first, last = -first, -last
    if first.high < 0 < last.low:
        return "reverses"
    if first.mean > 0 and last.low > 0:
        return "grows"
    return "closes" if first.high < 0 and last.mean < 0 else "moves"


def _weights(differences: Mapping[str, Mapping[float, Sequence[float]]]) -> dict[float, float]:
    """Return what each size weighs by some variants: their mean variance over that at the size.

    The variance at a size is joined with twelve degrees of freedom of the mean of all sizes. A
    variant's own would favour the sizes at which its seeds happen to agree.
    """
    squares: dict[float, float] = {}
    counts: dict[float, float] = {}
    for x, values in (one for own in differences.values() for one in own.items()):
        df = len(values) - 1
        squares[x] = squares.get(x, 0.0) + df * float(np.var(values, ddof=1) if df else 0.0)
        counts[x] = counts.get(x, 0.0) + df
    mean = sum(squares.values()) / max(1.0, sum(counts.values()))
    if not mean > 0:
        return {}
    joined = {x: (squares[x] + _WEIGHT_DF * mean) / (counts[x] + _WEIGHT_DF) for x in squares}
    return {x: mean / variance for x, variance in joined.items()}
