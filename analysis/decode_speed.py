"""Draw decode speed against context, with and without the cache, for chosen variants.

python analysis/decode_speed.py results/one-at-a-time --variant baseline --variant mqa
"""

import argparse
from pathlib import Path

import seaborn as sns

import llama_ablate as la
from llama_ablate.report.plots import blank, save


def main() -> None:
    """Read the per-variant speeds, write one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--variant", action="append", help="a label; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("decode_speed"))
    options = parser.parse_args()
    try:
        metrics = la.open(options.results).only(options.table).metrics
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    speeds = metrics[metrics["quantity"] == "decode_speed"]
    if options.variant:
        speeds = speeds[speeds["variant"].isin(options.variant)]
    if speeds.empty:
        parser.exit(
            2,
            f"{parser.prog}: no decode speeds of these variants were measured in "
            f"'{options.results}'\n",
        )
    figure = blank(9, 4)
    for axes, (batch, part) in zip(
        figure.subplots(1, speeds["batch"].nunique(), squeeze=False)[0],
        speeds.groupby("batch"),
        strict=True,
    ):
        sns.lineplot(
            part, x="context", y="value", hue="variant", style="cache", marker="o", ax=axes
        )
        axes.set(title=f"batch {batch:.0f}", xlabel="context (tokens)", ylabel="tokens per second")
        axes.set_yscale("log")
    for path in save(figure, options.out):
        print(path)


if __name__ == "__main__":
    main()
