"""Whether the best learning rate moves with a model's size: the chosen points over a ladder."""

import json

import pandas as pd

from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames


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
