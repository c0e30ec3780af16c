"""Draw the effects of several experiments with a common baseline in one figure.

cd results/reference/systems
python ../../../analysis/across_experiments.py attention feedforward norms --out effects
"""

import argparse
from pathlib import Path

import seaborn as sns

import llama_ablate as la
from llama_ablate.report.contents import BASELINE
from llama_ablate.report.pictures import canvas, save


def main() -> None:
    """Join the results, write one figure, and print limits of their comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="folders of experiments, or packs")
    parser.add_argument("--table", help="of the first experiment (default: its first)")
    parser.add_argument("--out", type=Path, default=Path("across_experiments"))
    options = parser.parse_args()
    try:
        results = la.concat(options.results).only(options.table)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    rows = results.comparison()
    rows = rows[~rows["baseline"] & rows["difference"].notna()]
    rows = rows.sort_values(["experiment", "difference"], ignore_index=True)
    named = rows.groupby("experiment", sort=False)
    figure, axes = canvas(8, 1.2 + 0.32 * len(rows))
    colours = sns.color_palette("colorblind", len(named))
    for (name, own), colour, marker in zip(named, colours, 3 * "osD^vP*X", strict=False):
        y, mean = own.index, own["difference"]
        ends = [mean - own["low"], own["high"] - mean]
        axes.errorbar(mean, y, xerr=ends, fmt=marker, capsize=2, color=colour, label=name)
    axes.axvline(0, color=BASELINE, lw=1)
    axes.set_yticks(rows.index, [f"{row.variant} (n={row.n})" for row in rows.itertuples()])
    axes.invert_yaxis()
    axes.set(xlabel="loss minus the baseline's (nats), simultaneous 95% over all rows")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for path in save(figure, options.out):
        print(path)
    for sentence in results.warnings[:3]:
        print(sentence)


if __name__ == "__main__":
    main()
