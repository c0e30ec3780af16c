"""Fit the loss as a function of parameters and tokens, and derive compute-optimal sizes.

    python analysis/surface.py DIR                      # results with `sizes` and `train.branches`
    python analysis/surface.py svg_extracted_data.csv   # points of a paper

The surface `loss = E + A / parameters^alpha + B / tokens^beta` (Hoffmann et al. 2022,
arXiv:2203.15556, equation 2) is fitted by Huber's loss of log residuals from several starts (their
section D.2). With a compute of 6 x parameters x tokens, the optimal number of parameters grows as
compute^(beta / (alpha + beta)). The fit needs at least three model sizes and three training
lengths, each spanning a factor of 4.

For results in DIR, points are means over seeds, including branches of runs (runs whose schedule
ended early), and intervals are over seeds (as in scaling_laws.py). For a CSV file with the columns
`Model Size`, `Training FLOP` and `loss`, each point is a run, and intervals are percentiles of a
bootstrap over points. The points of Hoffmann et al., read off their figure 4 by Besiroglu et al.
2024 (arXiv:2404.10102), are not included (https://github.com/epoch-research/analyzing-chinchilla).
With `--outliers 5` they give E 1.817, A 478, alpha 0.347, B 2143, beta 0.367; Besiroglu et al.
print 1.82, 482, 0.348, 2085, 0.366.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scaling_laws import bootstrap
from scipy import optimize

import llama_ablate as la
from llama_ablate.findings.sizes import list_ladder

#: Fewest distinct model sizes and training lengths, and the factor that each must span.
MIN_VALUES, MIN_SPAN = 3, 4.0
HUBER = 1e-3  # residual of log loss beyond which Huber's loss is linear
COLUMNS = ["Model Size", "Training FLOP", "loss"]


class Surface(NamedTuple):
    """Surface `loss = E + A / parameters^alpha + B / tokens^beta`, in nats."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def __call__(self, parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the loss that the surface predicts for numbers of parameters and tokens."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    @property
    def compute_exponent(self) -> float:
        """Exponent of compute with which the optimal number of parameters grows."""
        return self.beta / (self.alpha + self.beta)


def fit_surface(parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray) -> Surface:
    """Fit a surface with Huber's loss, and return the best of eight starts.

    Raises ValueError if sizes or lengths are too few, span too little, or vary together.
    """
    for axis in (parameters, tokens):
        if len({*axis}) < MIN_VALUES or max(axis) < MIN_SPAN * min(axis):
            raise ValueError("it takes three sizes and three lengths, over a factor of 4 each")
    if np.corrcoef(np.log(parameters), np.log(tokens))[0, 1] ** 2 > 0.98:
        raise ValueError("parameters and tokens vary together: their parts cannot be told apart")
    # For a well-conditioned fit, A and B are replaced by the logarithms of their terms of the loss
    # at the geometric mean of the points.
    log_n, log_d = np.log(parameters), np.log(tokens)
    middle_n, middle_d = log_n.mean(), log_d.mean()

    def residuals(constants: np.ndarray) -> np.ndarray:
        e, a, alpha, b, beta = constants
        predicted = (
            e + np.exp(a - alpha * (log_n - middle_n)) + np.exp(b - beta * (log_d - middle_d))
        )
        return np.log(predicted) - np.log(losses)

    spread = max(np.ptp(losses), 1e-9)
    starts = [
        (max(0, losses.min() - part * spread), log_part, alpha, log_part, beta)
        for alpha in (0.1, 0.5)
        for beta in (0.1, 0.5)
        for part, log_part in ((0.5, np.log(spread / 4)), (2.0, np.log(spread)))
    ]
    bounds = ([0, -np.inf, 0, -np.inf, 0], [np.inf, np.inf, 5, np.inf, 5])
    tight = {"ftol": 1e-12, "xtol": 1e-12, "gtol": 1e-12}
    fits = [
        optimize.least_squares(
            residuals, start, bounds=bounds, loss="huber", f_scale=HUBER, **tight
        )
        for start in starts
    ]
    e, a, alpha, b, beta = map(float, min(fits, key=lambda fit: fit.cost).x)
    of_size, of_text = np.exp(a + alpha * middle_n), np.exp(b + beta * middle_d)
    return Surface(e, float(of_size), alpha, float(of_text), beta)


def read_points(file: Path, outliers: int) -> pd.DataFrame:
    """Read the points of a CSV file, without the `outliers` points of highest loss.

    Raises ValueError if a column is missing, or if a number is not above 0.
    """
    points = pd.read_csv(file)
    if missing := [name for name in COLUMNS if name not in points]:
        raise ValueError(f"'{file}' has no column '{missing[0]}'; needed: {', '.join(COLUMNS)}")
    points = points[COLUMNS].apply(pd.to_numeric, errors="coerce").dropna()
    if not (points > 0).all(axis=None):
        raise ValueError(f"'{file}' has numbers that are not above 0")
    kept = points.sort_values("loss", kind="stable").iloc[: max(len(points) - outliers, 0)]
    tokens = kept["Training FLOP"] / (6 * kept["Model Size"])
    return pd.DataFrame({"parameters": kept["Model Size"], "tokens": tokens, "loss": kept["loss"]})


def over_points(points: pd.DataFrame, draws: int) -> dict[str, tuple[float, float, float]]:
    """Fit a surface; return each constant with percentiles of a bootstrap over points."""
    values = points.to_numpy().T
    best, generator = fit_surface(*values), np.random.default_rng(0)
    drawn = [
        fit_surface(*values[:, generator.integers(0, len(points), len(points))])
        for _ in range(draws)
    ]
    return {
        name: (getattr(best, name), *np.quantile([getattr(s, name) for s in drawn], [0.025, 0.975]))
        for name in (*Surface._fields, "compute_exponent")
    }


def over_seeds(points: pd.DataFrame, draws: int) -> dict[str, tuple[float, float, float]]:
    """Fit one variant's surface to means over seeds; return constants with intervals."""
    grid = points.pivot_table("loss", ["parameters", "tokens"], "seed").dropna(axis="columns")
    parameters, tokens = (grid.index.get_level_values(i).to_numpy(float) for i in (0, 1))

    def estimate(name: str) -> Callable[[np.ndarray], float]:
        return lambda means: getattr(fit_surface(parameters, tokens, means), name)

    return {
        name: bootstrap(grid.to_numpy(), estimate(name), draws)
        for name in (*Surface._fields, "compute_exponent")
    }


def main() -> None:
    """Print the constants of the surface of each variant, or of a file's points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="results of one experiment, or a CSV file")
    parser.add_argument("--outliers", type=int, default=0, help="points of a file to leave out")
    parser.add_argument("--draws", type=int, default=100, help="of the bootstrap")
    options = parser.parse_args()
    if options.outliers < 0 or options.draws < 2:
        parser.error("--outliers must be 0 or more, --draws 2 or more")
    try:
        if options.source.suffix == ".csv":
            points = read_points(options.source, options.outliers)
            found = {f"{len(points)} points": over_points(points, options.draws)}
        else:
            every = list_ladder(la.open(options.source).frames)
            if every.empty:
                parser.exit(2, f"{parser.prog}: '{options.source}' has models of one size alone\n")
            named = every[every["role"] == ""].groupby("label", sort=False)
            found = {label: over_seeds(own, options.draws) for label, own in named}
    except (la.ConfigError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    for label, of in found.items():
        print(label)
        for name, (value, low, high) in of.items():
            print(f"{name:>18} {value:<9.5g} [{low:.5g}, {high:.5g}]")


if __name__ == "__main__":
    main()
