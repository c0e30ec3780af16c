"""Draw each variant's difference from the baseline against size, one point a rung of a ladder.

python analysis/ladder.py results/reference/width-transfer --out gaps
"""

import argparse
from pathlib import Path

import seaborn as sns

import llama_ablate as la
from llama_ablate.report.picture import BASELINE
from llama_ablate.report.plots import canvas, legend, save


def main() -> None:
    """Read the comparison of every size, write one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--match", help="of several matchings, which (default: the first)")
    parser.add_argument("--out", type=Path, default=Path("ladder"))
    options = parser.parse_args()
    try:
        results = la.open(options.results)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    tables = results.tables
    tables = tables[tables["match"] == (options.match or tables["match"][0])]
    if tables.empty:
        parser.exit(2, f"{parser.prog}: no table is matched by '{options.match}'\n")
    rows = results.comparison().merge(tables[["table", "text", "budget"]], on="table")
    rows = rows[(rows["text"] == rows["text"][:1].item()) & (rows["budget"] == rows["budget"][0])]
    sizes = rows[rows["baseline"]].set_index("table")["non_embedding"]
    if sizes.nunique() < 2:
        parser.exit(2, f"{parser.prog}: '{options.results}' has models of one size alone\n")
    rows = rows[~rows["baseline"] & (rows["role"] == "")]
    figure, axes = canvas(8, 4.8)
    variants = rows.groupby("variant", sort=False)
    colours = sns.color_palette("colorblind", len(variants))
    for (variant, own), colour, marker in zip(variants, colours, 3 * "osD^vP*X", strict=False):
        x, y = own["table"].map(sizes), own["difference"]
        ends = [y - own["low"], own["high"] - y]
        axes.errorbar(x, y, ends, fmt=f"{marker}-", capsize=3, color=colour, label=variant)
    axes.axhline(0, color=BASELINE, lw=1)
    axes.set_xscale("log")
    axes.set(
        xlabel="non-embedding parameters of the baseline",
        ylabel="loss minus the baseline's (nats), simultaneous 95%",
    )
    legend(axes)
    for path in save(figure, options.out):
        print(path)


if __name__ == "__main__":
    main()
