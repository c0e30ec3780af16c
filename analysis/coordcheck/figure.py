"""The coordinate check: how the sizes of activations follow the width of a model."""

from collections.abc import Mapping, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from analysis.coordcheck.trends import Trend, slope
from llama_ablate.report.plots import blank, legend
from llama_ablate.terminal import plural

_KINDS = ("attention", "feed-forward", "stream", "logits")


def trends(activations: pd.DataFrame) -> dict[str, list[Trend]]:
    """Return how each tensor follows the width, by parametrization, on average over seeds.

    `activations` has the columns `parametrization, place, step, width, seed, size, change`.
    """
    means = _over_seeds(activations)
    by_name: dict[str, list[Trend]] = {}
    for (name, place), own in means.groupby(["parametrization", "place"], sort=False):
        steps = [at_step for _, at_step in own.groupby("step")]
        size, change = (
            tuple(slope(list(at["width"]), list(at[column])) for at in steps)
            for column in ("size", "change")
        )
        by_name.setdefault(str(name), []).append(Trend(str(place), size, change[1:]))
    return by_name


def cells(by_name: Mapping[str, Sequence[Trend]]) -> pd.DataFrame:
    """Return each tensor's slopes that are furthest from 0 over the steps, and its verdict."""
    shown = pd.DataFrame({"tensor": [trend.place for trend in next(iter(by_name.values()))]})
    for name, of_places in by_name.items():
        shown[f"{name}: size"] = [_furthest(trend.size) for trend in of_places]
        shown[f"{name}: change"] = [_furthest(trend.change) for trend in of_places]
        shown[f"{name}: verdict"] = [trend.verdict for trend in of_places]
    return shown


def figure(activations: pd.DataFrame) -> Figure:
    """Draw how much activations change against the width, a line for each step of training.

    Of tensors that every layer has, that of the last one is drawn.
    """
    means = _over_seeds(activations)
    names, places = (list(dict.fromkeys(means[key])) for key in ("parametrization", "place"))
    drawn = [last for kind in _KINDS if (last := [p for p in places if p.startswith(kind)][-1:])]
    steps = sorted(set(means["step"]))[1:]
    with sns.axes_style("whitegrid"):
        page = blank(3.2 * len(drawn) + 1, 2.9 * len(names))
        panels = page.subplots(len(names), len(drawn), squeeze=False, sharex=True, sharey="col")
    for row, name in zip(panels, names, strict=True):
        for axes, (place,) in zip(row, drawn, strict=True):
            own = means[(means["parametrization"] == name) & (means["place"] == place)]
            for step, colour in zip(steps, sns.color_palette("viridis", len(steps)), strict=True):
                at = own[own["step"] == step]
                label = f"after {step} {plural(step, 'step')}"
                axes.plot(at["width"], at["change"], "o-", ms=3, color=colour, label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"{name}: {place}", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("width (dim)")
    for row in panels:
        row[0].set_ylabel("mean |x - x before training|", fontsize=8)
    legend(panels[0][-1])
    return page


def _over_seeds(activations: pd.DataFrame) -> pd.DataFrame:
    keys = ["parametrization", "place", "step", "width"]
    return activations.groupby(keys, sort=False)[["size", "change"]].mean().reset_index()


def _furthest(slopes: Sequence[float]) -> str:
    return f"{max(slopes, key=abs):+.2f}"
