"""Whether the best learning rate moves with a model's size: the chosen points over a ladder."""

import json
from typing import TYPE_CHECKING

import pandas as pd

from llama_ablate.report import tuning
from llama_ablate.report.frames import Frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MANY = 6  # variants, beyond which panels are too small to read


def losses(frames: Frames) -> pd.DataFrame:
    """Return the loss of each variant, size, seed and learning rate, and which rate is the best.

    Columns: `label, rung, seed, lr, loss, best`. The best is the one that the tables report,
    by the validation loss. Empty where no ladder of sizes is tuned over its learning rate.
    """
    of_rungs: list[pd.DataFrame] = []
    if "lr" not in frames.plan.experiment.tune:
        return pd.DataFrame()
    for table in frames.rungs:
        arms = [variant.label for variant in table.plan.variants if not variant.role]
        runs = table.runs[table.runs["label"].isin(arms)]
        own = tuning.rates(runs, table.loss, table.chance)
        chosen = table.runs[table.runs["best"]].groupby("label", sort=False)["tuned"].first()
        best = chosen.map(lambda point: json.loads(point)["lr"])
        of_rungs.append(own.assign(rung=table.plan.name, best=own["lr"] == own["label"].map(best)))
    return pd.concat(of_rungs, ignore_index=True) if of_rungs else pd.DataFrame()


def optima(frames: Frames) -> pd.DataFrame:
    """Return the best learning rate of each variant at each size, and how far it moves.

    Columns: `label, rung, lr, loss, edge, moved`: whether the rate lies at an end of the grid,
    where the best may lie beyond it, and by how many points of the grid it differs from that of the
    first size. Empty as `losses` is.
    """
    by_rate = losses(frames)
    if by_rate.empty:
        return by_rate
    grid = sorted(set(by_rate["lr"]))
    keys = ["label", "rung"]
    best = by_rate[by_rate["best"]].groupby([*keys, "lr"], sort=False)["loss"].mean()
    frame = best.reset_index()
    index = frame["lr"].map(grid.index)
    frame["edge"] = index.isin([0, len(grid) - 1])
    frame["moved"] = index - index.groupby(frame["label"]).transform("first")
    return frame


def figure(frames: Frames) -> "Figure | None":
    """Draw loss against learning rate, a panel for each variant and a line for each size."""
    # Only here: a headline, which needs the frames alone, opens without seaborn.
    import seaborn as sns

    from llama_ablate.report.drawing import blank, legend, note, over, over_seeds

    by_rate = losses(frames)
    if by_rate.empty:
        return None
    labels = list(dict.fromkeys(by_rate["label"]))[:_MANY]
    with sns.axes_style("whitegrid"):
        drawn = blank(4.2 * len(labels), 4.0)
        panels = drawn.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    rungs = list(dict.fromkeys(by_rate["rung"]))
    palette = sns.color_palette("viridis", len(rungs))
    for axes, label in zip(panels, labels, strict=True):
        for rung, colour in zip(rungs, palette, strict=True):
            own = by_rate[(by_rate["label"] == label) & (by_rate["rung"] == rung)]
            mean = over_seeds(own, ["lr"], "loss").sort_values("lr")
            axes.plot(mean["lr"], mean["mean"], "o-", ms=4, color=colour, label=rung)
            axes.fill_between(mean["lr"], mean["low"], mean["high"], color=colour, alpha=0.2, lw=0)
            best = own[own["best"]].groupby("lr")["loss"].mean()
            axes.plot(best.index, best, "o", ms=11, mfc="none", color=colour)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="learning rate", title=label)
    panels[0].set_ylabel(f"{frames.table.split_name} loss ({frames.table.unit.full})")
    legend(panels[-1])
    note(drawn, over(by_rate.groupby(["label", "rung", "lr"])["seed"].nunique()))
    return drawn
