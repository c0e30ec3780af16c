"""Compute effective speed-ups: baseline's cost relative to a variant's at equal loss.

    python analysis/speed_up.py results/reference/atlas/activations

The speed-up is also called compute multiplier (Hernandez & Brown 2020, arXiv:2005.04305; Ho et al.
2024, arXiv:2403.05812); above 1 the variant is cheaper. The runs need at least two branches: a
branch is a run whose learning rate schedule ended early, whereas intermediate points of a learning
curve are not comparable. The loss curve of the better arm (variant or baseline) is a power law
through its training lengths plus interpolated residuals. The speed-up is read off where this curve
reaches the final loss of the worse arm. Its interval follows in the same way from the interval of
the table's difference in loss. Curves are not extrapolated: `beyond` means that the runs do not
include the needed loss.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scaling_laws import fit_law

import llama_ablate as la
from llama_ablate.findings.sizes import list_points

MIN_LENGTHS = 3


def saved(lengths: Sequence[float], losses: Sequence[float], nats: float) -> float:
    """Return the full length over the length at which the loss is `nats` higher.

    `lengths` are training tokens, and `losses` the final losses at these lengths. Returns infinity
    if even the shortest run has a lower loss.
    """
    logs, law = np.log(lengths), fit_law(lengths, losses)
    beside = np.asarray(losses) - [law(x) for x in lengths]
    at = np.linspace(logs[0], logs[-1], 1000)
    curve = law.floor + law.scale * np.exp(-law.exponent * at) + np.interp(at, logs, beside)
    goal = losses[-1] + nats
    if curve[0] < goal:
        return math.inf
    return math.exp(logs[-1] - np.interp(-goal, -np.minimum.accumulate(curve), at))


def multiples(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the speed-ups in tokens and FLOPs of a comparison table's variants.

    `table` has losses by variant, seed and tokens; `rows` is the table's comparison.
    """
    means = table.pivot_table("loss", "tokens", "label")
    base = rows[rows["baseline"]].iloc[0]
    found = []
    for row in rows[~rows["baseline"] & (rows["role"] == "")].itertuples():
        curves = means[[base["variant"], row.variant]].dropna()
        if len(curves) < MIN_LENGTHS or math.isnan(row.difference):
            continue
        lengths, (ours, theirs) = [*curves.index], (curves[base["variant"]], curves[row.variant])

        def multiple(nats: float) -> float:
            if nats <= 0:  # the variant is better: use its curve
                return saved(lengths, [*theirs], -nats)  # noqa: B023
            return 1 / saved(lengths, [*ours], nats)  # noqa: B023

        ends = [multiple(nats) for nats in (row.difference, row.high, row.low)]
        flops = base["flops_per_token"] / row.flops_per_token
        found.append(
            {
                "variant": row.variant,
                "tokens [95%]": describe(ends),
                "FLOPs [95%]": describe([end * flops for end in ends]),
            }
        )
    return pd.DataFrame(found)


def describe(ends: Sequence[float]) -> str:
    """Format a speed-up with its interval."""
    value, low, high = ("beyond" if one == 0 or math.isinf(one) else f"{one:.2f}" for one in ends)
    return f"{value} [{low}, {high}]"


def main() -> None:
    """Print the speed-ups of each variant in each comparison table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    options = parser.parse_args()
    try:
        results = la.open(options.results)
        comparison = results.comparison()
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    shown = []
    for one in results.frames.tables:
        rows = comparison[comparison["table"] == one.plan.name]
        points = list_points(one)
        if not points.empty:
            shown.append(multiples(points, rows).assign(table=one.plan.name))
    found = pd.concat([pd.DataFrame(), *shown])
    if found.empty:
        what = f"has no variant with runs or branches of {MIN_LENGTHS} lengths"
        parser.exit(2, f"{parser.prog}: '{options.results}' {what}\n")
    print(found.to_string(index=False))


if __name__ == "__main__":
    main()
