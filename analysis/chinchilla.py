"""Refit the public points of Chinchilla (Hoffmann et al. 2022) with this package's surface.

python analysis/chinchilla.py svg_extracted_data.csv

The points, read off the paper's figure 4 by Besiroglu et al. 2024 (arXiv:2404.10102), are not
shipped: https://github.com/epoch-research/analyzing-chinchilla. The five of the highest loss are
left out, as there. A file of other points, or none dropped, gives other constants.
"""

import argparse
from pathlib import Path

import pandas as pd

from llama_ablate.evidence.surface import ESTIMATED, over_points

#: What these points give, and what Besiroglu et al. print, rounded: 1.82, 482, 0.348, 2085, 0.366.
#: Huber's loss is linear here beyond a residual of 1e-3 in log loss, as Hoffmann et al. write it. A
#: likelihood that estimates the residuals' scale too has that bound in units of the scale: points
#: in between are weighed otherwise, so its constants differ in their last digits.
EXPECTED = {"E": 1.8172, "A": 477.8, "alpha": 0.3473, "B": 2143.4, "beta": 0.3672}
COLUMNS = ["Model Size", "Training FLOP", "loss"]
OUTLIERS = 5


def read(file: Path, outliers: int) -> pd.DataFrame:
    """Return parameters, tokens and losses without those of the highest loss.

    Raises ValueError for a file that does not hold such points.
    """
    points = pd.read_csv(file)
    missing = [name for name in COLUMNS if name not in points]
    if missing:
        raise ValueError(f"'{file}' has no column '{missing[0]}'; needed: {', '.join(COLUMNS)}")
    try:
        points = points[COLUMNS].dropna().astype(float)
    except ValueError as error:
        raise ValueError(f"'{file}': {error}") from None
    if not (points > 0).all(axis=None):
        raise ValueError(f"'{file}' has numbers that are not above 0")
    kept = points.sort_values("loss", kind="stable").iloc[: max(len(points) - outliers, 0)]
    tokens = kept["Training FLOP"] / (6 * kept["Model Size"])
    return pd.DataFrame({"parameters": kept["Model Size"], "tokens": tokens, "loss": kept["loss"]})


def main() -> None:
    """Read the points, print the refit beside what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", type=Path, help=f"a CSV file with {', '.join(COLUMNS)}")
    parser.add_argument("--outliers", type=int, default=OUTLIERS, help="points to leave out")
    parser.add_argument("--draws", type=int, default=100, help="of the bootstrap over points")
    options = parser.parse_args()
    if options.outliers < 0 or options.draws < 2:
        parser.error("--outliers must be 0 or more, --draws 2 or more")
    try:
        points = read(options.points, options.outliers)
        columns = [[float(v) for v in points[name]] for name in points]
        fitted = over_points(*columns, draws=options.draws)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"{len(points)} points; 95% of {options.draws} draws of a bootstrap over them")
    for name in ESTIMATED:
        estimate = fitted[name]
        expected = f"   published points: {EXPECTED[name]:g}" if name in EXPECTED else ""
        ends = f"[{estimate.low:.5g}, {estimate.high:.5g}]"
        print(f"{name:>19} {estimate.value:<9.5g} {ends}{expected}")


if __name__ == "__main__":
    main()
