"""Estimate each variant's best learning rate at each size, with its interval.

    python analysis/best_rate.py results/reference/rate-transfer

A parabola in the logarithm of the rate passes through the mean validation losses of the rate with
the lowest one and of its two neighbours; its minimum is the best rate. The interval is the middle
95% of a bootstrap over seeds. `<` and `>` mark a minimum at the end of the grid: the best rate may
lie beyond.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

DRAWS = 2000
MIN_RATES = 3  # of a parabola
COLUMNS = ["table", "variant", "seed", "point", "outcome", "role", "validation_loss_nats"]


def find_minimum(rates: NDArray[np.float64], losses: NDArray[np.float64]) -> float:
    """Return the rate at the minimum of the parabola around the lowest loss, or an end's rate."""
    lowest = int(np.argmin(losses))
    if lowest in (0, len(rates) - 1):
        return float(rates[lowest])
    near = slice(lowest - 1, lowest + 2)
    curvature, slope, _ = np.polyfit(np.log(rates[near]), losses[near], 2)
    return float(np.exp(-slope / (2 * curvature)))


def estimate(grid: pd.DataFrame) -> str:
    """Write the best rate of losses by rate (rows) and seed (columns), with its interval."""
    rates, losses = grid.index.to_numpy(float), grid.to_numpy()
    best = find_minimum(rates, losses.mean(1))
    if losses.shape[1] == 1:
        return f"{best:.2g}"
    drawn = np.random.default_rng(0).integers(losses.shape[1], size=(DRAWS, losses.shape[1]))
    low, high = np.quantile(
        [find_minimum(rates, losses[:, at].mean(1)) for at in drawn], [0.025, 0.975]
    )
    beyond = "<" if low <= rates[0] else ">" if high >= rates[-1] else ""
    return f"{beyond}{best:.2g} [{low:.2g}, {high:.2g}]"


def main() -> None:
    """Print a row for each variant, a column for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "pack", type=Path, help="folder with a runs.csv of an experiment that tunes lr"
    )
    options = parser.parse_args()
    try:
        runs = pd.read_csv(options.pack / "runs.csv", dtype={"table": str}, usecols=COLUMNS)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {options.pack}: {error}\n")
    runs = runs.query("outcome == 'ok' and role.isna()")
    runs["lr"] = runs["point"].astype(str).str.extract(r"^lr (\S+)$", expand=False).astype(float)
    if runs["lr"].nunique() < MIN_RATES:
        parser.exit(2, f"{parser.prog}: {options.pack}: fewer than {MIN_RATES} rates were tried\n")
    found: dict[str, dict[str, str]] = {}
    sizes = runs["table"].fillna("best rate")
    for (size, variant), own in runs.groupby([sizes, "variant"], sort=False):
        grid = own.pivot_table("validation_loss_nats", "lr", "seed").dropna(axis="columns")
        found.setdefault(size, {})[variant] = estimate(grid)
    print(pd.DataFrame(found).to_string())


if __name__ == "__main__":
    main()
