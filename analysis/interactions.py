"""Draw what one factor does with and without another, for the largest interactions of a design.

python analysis/interactions.py results/reference/claims/e16-leave-one-out-stack --most 6
"""

import argparse
from pathlib import Path

import llama_ablate as la
from llama_ablate.report.picture import BASELINE
from llama_ablate.report.plots import canvas, save

WITH, WITHOUT = "#0072b2", "#e69f00"  # Okabe & Ito 2008


def main() -> None:
    """Read the effects of a factorial design, write one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--most", type=int, default=8, help="interactions to draw (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("interactions"))
    options = parser.parse_args()
    try:
        factors = la.open(options.results).only(options.table).section("interactions")
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if factors.empty:
        parser.exit(
            2, f"{parser.prog}: '{options.results}' is no factorial design that has ended\n"
        )
    pairs = factors.dropna(subset="difference").head(options.most)
    figure, axes = canvas(8, 1.2 + 0.45 * len(pairs))
    for y, row in enumerate(pairs.itertuples()):
        axes.plot([row.with_absent, row.with_present], [y, y], color=BASELINE, lw=1, zorder=1)
        axes.plot(row.with_absent, y, "o", color=WITHOUT, label="_"[: y > 0] + "without")
        axes.plot(row.with_present, y, "D", color=WITH, label="_"[: y > 0] + "with")
    axes.axvline(0, color=BASELINE, lw=1)
    named = [
        f"{row.changed}, with {row.present} or {row.absent} (interaction: {row.verdict})"
        for row in pairs.itertuples()
    ]
    axes.set_yticks(range(len(pairs)), named)
    axes.invert_yaxis()
    axes.set(xlabel="effect on the loss (nats; left of the line is better)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for path in save(figure, options.out):
        print(path)


if __name__ == "__main__":
    main()
