"""Figures of rotary position embeddings: frequencies, angles, and pairs on the unit circle."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from llama_ablate.report.drawing import blank

_ROW = 3  # the position whose pairs are drawn on the circle
_POSITIONS = 128


def rotation(rates: Mapping[str, Sequence[float]], context: int) -> Figure:
    """Draw frequencies (radians per position, by name) of one rotation or several.

    Left the frequency of each pair, with the one that turns once in `context`; in the middle the
    cosine of each pair over the first positions; right the pairs at one position on the unit
    circle. The last two show the first of the rotations.
    """
    with sns.axes_style("whitegrid"):
        figure = blank(15, 4.6)
        left, middle, right = figure.subplots(1, 3)
    for name, values in rates.items():
        left.plot(range(len(values)), values, ".-", ms=4, label=name)
    once = 2 * math.pi / context
    left.axhline(once, color="#999999", lw=1, ls="--", label=f"one turn in {context:,} positions")
    left.set_yscale("log")
    left.set(xlabel="pair", ylabel="radians per position", title="frequencies")
    left.legend(frameon=False, fontsize=8)
    name, values = next(iter(rates.items()))
    angles = np.outer(np.arange(_POSITIONS), np.asarray(values))
    sns.heatmap(
        np.cos(angles),
        ax=middle,
        cmap="viridis",
        vmin=-1,
        vmax=1,
        xticklabels=8,
        yticklabels=16,
        cbar_kws={"label": "cos(position x frequency)"},
    )
    middle.set(xlabel="pair", ylabel="position", title=name)
    colours = sns.color_palette("viridis", len(values))
    for angle, colour in zip(angles[_ROW], colours, strict=True):
        right.plot([0, math.cos(angle)], [0, math.sin(angle)], "-o", ms=3, lw=0.8, color=colour)
    right.set_aspect("equal")
    right.set(
        xlim=(-1.1, 1.1),
        ylim=(-1.1, 1.1),
        xlabel="cos",
        ylabel="sin",
        title=f"pairs at position {_ROW} (dark: the fast ones)",
    )
    return figure
