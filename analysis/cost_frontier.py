"""Draw loss against a cost, with the variants that no other beats in both: the frontier.

python analysis/cost_frontier.py results/reference/claims/e15-kv-heads-quality
python analysis/cost_frontier.py results/hybrids --cost state_bytes --table text
"""

import argparse
from pathlib import Path

import pandas as pd

import llama_ablate as la
from llama_ablate.report.picture import BASELINE
from llama_ablate.report.plots import canvas, save

COSTS = {
    "kv_bytes_per_token": "bytes that a token adds to the state",
    "state_bytes": "bytes of the state of one sequence",
    "parameters": "parameters",
    "active_parameters": "parameters that a token passes",
    "flops_per_token": "forward FLOPs per token",
    "train_speed_ratio": "training time, of the baseline's",
    "decode_speed_ratio": "decode time, of the baseline's",
    "peak_memory_bytes": "peak memory of training (bytes)",
}
FRONTIER, OTHER = "#0072b2", "#e69f00"  # Okabe & Ito 2008


def frontier(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows no other beats: none is as cheap with a lower loss, or cheaper with it."""
    cheapest = rows.sort_values(["cost", "difference"])
    best_before = cheapest["difference"].cummin().shift(fill_value=float("inf"))
    return (cheapest["difference"] < best_before).reindex(rows.index)


def main() -> None:
    """Read the comparison, write one figure; say which variants stand on the frontier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    parser.add_argument("--cost", choices=COSTS, default="kv_bytes_per_token")
    parser.add_argument("--table", help="of an experiment with several (default: the first)")
    parser.add_argument("--out", type=Path, default=Path("cost_frontier"))
    options = parser.parse_args()
    try:
        rows = la.open(options.results).only(options.table).comparison()
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    cost = rows[options.cost]
    rows = rows.assign(cost=1 / cost if options.cost.endswith("ratio") else cost)
    rows = rows[rows["cost"].notna() & rows["difference"].notna() & (rows["role"] == "")]
    if len(rows) < 2:
        parser.exit(
            2,
            f"{parser.prog}: {options.cost} of two variants is not known in '{options.results}'\n",
        )
    best = frontier(rows)
    figure, axes = canvas(8, 4.8)
    for own, fmt, colour, label in (
        (rows[best], "o", FRONTIER, "frontier of the means"),
        (rows[~best], "s", OTHER, "beaten by one of them"),
    ):
        y = own["difference"]
        ends = [(y - own["low"]).fillna(0), (own["high"] - y).fillna(0)]
        axes.errorbar(own["cost"], y, ends, fmt=fmt, capsize=3, color=colour, label=label)
    for row in rows.itertuples():
        axes.annotate(row.variant, (row.cost, row.difference), (6, 4), textcoords="offset points")
    line = rows[best].sort_values("cost")
    axes.step(line["cost"], line["difference"], where="post", color=FRONTIER, lw=1)
    axes.axhline(0, color=BASELINE, lw=1)
    axes.set(
        xlabel=COSTS[options.cost],
        ylabel="loss minus the baseline's (nats), simultaneous 95%",
    )
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for path in save(figure, options.out):
        print(path)
    print("frontier, by means alone:", ", ".join(line["variant"]))


if __name__ == "__main__":
    main()
