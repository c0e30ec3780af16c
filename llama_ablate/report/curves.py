"""Figures of what was varied by number: learning rates, and sizes."""

import json
import math

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from llama_ablate.report import frames, scaled, tuned
from llama_ablate.report.figures import canvas, colours_of_lines, legend, remark
from llama_ablate.results import Store


def sensitivity(store: Store) -> Figure:
    """Draw the loss against the learning rate: mean over seeds, band from lowest to highest seed.

    A run that diverged or collapsed stands at the loss of chance. The ring marks the rate that was
    chosen, on the validation loss.
    """
    frame = frames.runs(store)
    split = frames.reported_split(frame)
    colours, left_out = colours_of_lines(store)
    found = tuned.rates(frame, split, math.log(store.plan["data"]["vocab"]))
    found = found[found["label"].isin(list(colours))]
    figure, axes = canvas(8, 4.8)
    order = [label for label in colours if label in set(found["label"])]
    sns.lineplot(
        found,
        x="lr",
        y="loss_nats",
        hue="label",
        hue_order=order,
        palette=colours,
        errorbar=("pi", 100),
        marker="o",
        ax=axes,
    )
    chosen = frames.reported(frame).groupby("label", sort=False)["tuned"].first()
    at = {label: json.loads(point)["lr"] for label, point in chosen.items()}
    means = found.groupby(["label", "lr"], sort=False)["loss_nats"].mean().reset_index()
    for row in frames.rows(means[means["lr"] == means["label"].map(at)]):
        axes.plot(row.lr, row.loss_nats, "o", ms=11, mfc="none", color=colours[row.label])
    axes.set_xscale("log")
    axes.set(xlabel="learning rate", ylabel=f"{split} loss (nats per token)")
    remark(axes, left_out)
    legend(axes)
    return figure


def ladder(store: Store) -> Figure:
    """Draw the loss of each variant against its parameters, with the law through its rungs.

    The line is the fitted law; beyond the largest size it is dotted, a projection.
    """
    found = scaled.points(store)
    figure, axes = canvas(8, 4.8)
    if found.empty:
        return figure
    colours, left_out = colours_of_lines(store)
    found = found[~found["branch"] & (found["role"] == "") & found["label"].isin(list(colours))]
    floor = scaled.floor_of(store)
    for label, of in found.groupby("label", sort=False):
        colour = colours[str(label)]
        axes.plot(of["parameters"], of["loss_nats"], ".", color=colour, alpha=0.6)
        means = of.groupby("parameters")["loss_nats"].mean()
        axes.plot(means.index, means, "o", color=colour, label=str(label))
        law = scaled.law_through(means, floor)
        if law is None:
            continue
        largest = float(means.index.max())
        for low, high, style in (
            (float(means.index.min()), largest, "-"),
            (largest, 10 * largest, ":"),
        ):
            x = np.geomspace(low, high, 50)
            axes.plot(x, [law(v) for v in x], style, color=colour, lw=1)
    axes.set_xscale("log")
    axes.set(xlabel="non-embedding parameters", ylabel="loss (nats per token)")
    remark(axes, left_out)
    legend(axes)
    return figure
