"""The figure of a transfer: loss against learning rate, over the sizes of a ladder."""

import seaborn as sns
from matplotlib.figure import Figure

from llama_ablate.findings.frames import Frames
from llama_ablate.findings.ladder import by_rate as losses
from llama_ablate.report.drawing import blank, legend, note, over, over_seeds

_MANY = 6  # variants, beyond which panels are too small to read


def figure(frames: Frames) -> Figure | None:
    """Draw loss against learning rate, a panel for each variant and a line for each size."""
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
