"""Fit, check and extrapolate a scaling law for each variant over model sizes.

    python analysis/scaling_laws.py results/reference/atlas/records-nulls --along parameters

The law `loss = floor + scale / size^exponent` is fitted to means over seeds, by least squares of
relative residuals. It needs four sizes, or three with a known `--floor`. As a check, the law fitted
without the largest size predicts the loss there; only if the prediction's interval contains the
measured loss is the law extrapolated to ten times the largest size. Intervals are Student's t with
the standard error of a bootstrap over seeds, widened by sqrt(n / (n - 1)) (Hesterberg 2015). An
extrapolated loss was not measured.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

import llama_ablate as la
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.sizes import list_ladder

#: Range of exponents. Below it, a law is like a logarithm; above it, a law is like a step.
MIN_EXPONENT, MAX_EXPONENT = 1e-3, 5.0
DRAWS = 200
PROJECTED = 10  # multiple of the largest size to which the loss is extrapolated


class Law(NamedTuple):
    """Scaling law `loss = floor + scale * size^-exponent`, in nats."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, size: float) -> float:
        """Return the loss that the law predicts at a size."""
        return self.floor + self.scale * size**-self.exponent


def fit_law(sizes: Sequence[float], losses: Sequence[float], floor: float | None = None) -> Law:
    """Fit a law by least squares of relative residuals, with nonnegative floor and scale.

    For each exponent, floor and scale are solved exactly (variable projection, Golub & Pereyra
    1973), so that the search over exponents finds the global minimum. A given `floor` is fixed.
    """
    x, y = np.asarray(sizes, float), np.asarray(losses, float)
    middle = np.exp(np.log(x).mean())

    def solve(log_exponent: float) -> tuple[float, Law]:
        exponent = math.exp(log_exponent)
        fall = (x / middle) ** -exponent / y
        if floor is None:
            (bottom, scale), residual = optimize.nnls(np.stack([1 / y, fall], 1), np.ones(len(y)))
        else:
            (scale,), residual = optimize.nnls(fall[:, None], 1 - floor / y)
            bottom = floor
        return residual, Law(float(bottom), float(scale * middle**exponent), exponent)

    grid = np.linspace(math.log(MIN_EXPONENT), math.log(MAX_EXPONENT), 100)
    best = min(range(len(grid)), key=lambda i: solve(grid[i])[0])
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(
        lambda one: solve(one)[0], bounds=ends, method="bounded", options={"xatol": 1e-9}
    )
    return solve(float(found.x))[1]


def bootstrap(
    losses: np.ndarray, estimate: Callable[[np.ndarray], float], draws: int = DRAWS
) -> tuple[float, float, float]:
    """Estimate a nonnegative number from losses (points, seeds), with its 95% interval.

    `estimate` computes the number from means over seeds. Returns the value and both ends of the
    interval, which are NaN for a single seed.
    """
    value, seeds = estimate(losses.mean(1)), losses.shape[1]
    if seeds < 2:
        return value, math.nan, math.nan
    chosen = np.sort(np.random.default_rng(0).integers(0, seeds, (draws, seeds)), 1)
    rows, which = np.unique(chosen, axis=0, return_inverse=True)
    drawn = np.array([estimate(losses[:, row].mean(1)) for row in rows])[which.ravel()]
    half = stats.t.ppf(0.975, seeds - 1) * drawn.std(ddof=1) * math.sqrt(seeds / (seeds - 1))
    return value, max(0.0, value - half), value + half


def losses_by_size(frames: Frames, along: str) -> dict[str, tuple[list, np.ndarray]]:
    """Return each variant's sizes, and its losses as an array (sizes, seeds).

    Only seeds that all sizes have are used. `along` is the measure of size: `parameters`, `tokens`
    or `compute`.
    """
    points = list_ladder(frames)
    points = points[~points["branch"] & points["role"].eq("")]
    tables = points.groupby("label", sort=False)
    grids = {
        label: own.pivot_table("loss", along, "seed").dropna(axis="columns")
        for label, own in tables
    }
    return {label: ([*grid.index], grid.to_numpy()) for label, grid in grids.items()}


def describe(value: float, low: float, high: float) -> str:
    """Format a number with its interval."""
    return f"{value:.3f}" if math.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def analyse(sizes: list, losses: np.ndarray, floor: float | None) -> dict[str, str]:
    """Fit and check one variant's law; return its row of the printed table."""
    needed = 4 if floor is None else 3
    if len(sizes) < needed or not losses.shape[1]:
        return {"law": f"none: it needs {needed} sizes with common seeds"}
    of = {
        name: describe(*bootstrap(losses, lambda m: getattr(fit_law(sizes, m, floor), name)))  # noqa: B023
        for name in ("exponent", "floor")
    }
    if len(sizes) == needed:
        return {"law": "unchecked", **of}
    value, low, high = bootstrap(
        losses[:-1], lambda means: fit_law(sizes[:-1], means, floor)(sizes[-1])
    )
    measured = losses[-1].mean()
    holds = low <= measured <= high
    of |= {"predicted": describe(value, low, high), "measured": f"{measured:.3f}"}
    if holds:
        at = PROJECTED * sizes[-1]
        of[f"projected to {at:.3g}"] = describe(
            *bootstrap(losses, lambda means: fit_law(sizes, means, floor)(at))
        )
    return {"law": "holds at the largest size" if holds else "fails at the largest size", **of}


def main() -> None:
    """Print a table with a row for each variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--along", choices=["parameters", "tokens", "compute"], default="compute")
    parser.add_argument("--floor", type=float, help="the entropy of the text, where it is known")
    options = parser.parse_args()
    try:
        grids = losses_by_size(la.open(options.results).frames, options.along)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if not grids:
        parser.exit(2, f"{parser.prog}: '{options.results}' has models of one size alone\n")
    rows = [{"variant": k, **analyse(*grid, options.floor)} for k, grid in grids.items()]
    print(pd.DataFrame(rows).fillna("").to_string(index=False))


if __name__ == "__main__":
    main()
