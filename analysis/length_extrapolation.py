"""Draw the held-out loss at contexts beyond the training context.

python analysis/length_extrapolation.py results/reference/claims/e12-positions
python analysis/length_extrapolation.py results/positions --variant baseline --variant alibi

Lines are means over seeds; bands reach from the lowest to the highest seed.
"""

import argparse
from pathlib import Path

import seaborn as sns

import llama_ablate as la
from llama_ablate.report.pictures import blank, save

WINDOWS = {"extended": "all tokens before", "sliding": "a window of the training context"}


def main() -> None:
    """Read the metric `length` of an experiment's runs, and write one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--variant", action="append", help="a label; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("length_extrapolation"))
    options = parser.parse_args()
    try:
        results = la.open(options.results).only(options.table)
        runs, metrics = results.runs, results.metrics
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    runs = runs[(runs["use"] == "reported") & (runs["outcome"] == "ok") & (runs["role"] == "")]
    losses = metrics[
        (metrics["metric"] == "length")
        & (metrics["quantity"] == "loss")
        & metrics["run"].isin(runs["run"])
    ]
    if options.variant:
        losses = losses[losses["variant"].isin(options.variant)]
    if losses.empty:
        parser.exit(
            2,
            f"{parser.prog}: 'length' of these variants was not measured in '{options.results}'\n",
        )
    figure = blank(11, 4)
    for axes, (window, title) in zip(
        figure.subplots(1, 2, sharey=True), WINDOWS.items(), strict=True
    ):
        sns.lineplot(
            losses[losses["window"] == window],
            x="context",
            y="value",
            hue="variant",
            style="variant",
            hue_order=losses["variant"].unique(),
            style_order=losses["variant"].unique(),
            palette="colorblind",
            markers=True,
            dashes=False,
            errorbar=("pi", 100),
            legend="auto" if window == "sliding" else False,
            ax=axes,
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(
            title=f"sees {title}",
            xlabel="context (tokens)",
            ylabel="loss (nats per token)",
        )
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for path in save(figure, options.out):
        print(path)


if __name__ == "__main__":
    main()
