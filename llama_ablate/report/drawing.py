"""Drawing: figures as files, colours of variants, legends, and how axes are labelled."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterMathtext

from llama_ablate.files import disk
from llama_ablate.report.frames import TableFrames
from llama_ablate.terminal import visible

MANY = 12  # variants beyond which a legend no longer helps
BASELINE = "#333333"
_FAINT = "#bbbbbb"

Colour = tuple[float, float, float] | str


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG beside each other, each in one step; return both paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    path.parent.mkdir(parents=True, exist_ok=True)
    _without_formulas(figure)
    with mpl.rc_context({"svg.hashsalt": "llama_ablate"}):
        drawn = {".svg": BytesIO(), ".png": BytesIO()}
        figure.savefig(drawn[".svg"], format="svg", bbox_inches="tight", metadata={"Date": None})
        figure.savefig(drawn[".png"], format="png", bbox_inches="tight", dpi=150)
    written = []
    for ending, content in drawn.items():
        target = base.with_name(base.name + ending)
        disk.replace(target, content.getvalue())
        written.append(target)
    return written


def _without_formulas(figure: Figure) -> None:
    """Turn off formulas between two $, and spell out control characters, which have no glyphs.

    Matplotlib may still write powers of ten along a logarithmic axis.
    """
    powers = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext)
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in powers:
            text.set_parse_math(False)
            text.set_text(visible(text.get_text()))


def blank(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, without pyplot: nothing to close, no display needed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    # Its one renderer is kept: without, matplotlib makes another for every label that is measured.
    FigureCanvasAgg(figure)
    return figure


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, in inches."""
    with sns.axes_style("whitegrid", {"axes.spines.right": False, "axes.spines.top": False}):
        figure = blank(width, height)
        return figure, figure.add_subplot()


def colours(table: TableFrames) -> dict[str, Colour]:
    """Return a colour for each variant's label, the baseline's first; of many all are faint."""
    others = [variant.label for variant in table.plan.variants if not variant.baseline]
    faint: dict[str, Colour] = dict.fromkeys(others, _FAINT)
    return {
        table.plan.baseline.label: BASELINE,
        **(_palette(others) if len(others) <= MANY else faint),
    }


def _palette(labels: Sequence[str]) -> dict[str, Colour]:
    return dict(zip(labels, sns.color_palette("husl", len(labels)), strict=True))


def colours_of_lines(table: TableFrames) -> tuple[dict[str, Colour], str]:
    """Return a colour for each variant that figures of lines draw, and what they leave out.

    The positive control is left out without a remark: it would set the scale.
    """
    frame, every = table.comparison, colours(table)
    others = frame[~frame["baseline"] & (frame["role"] != "positive")]
    shown, left_out = ends(others, "loss_nats", MANY)
    drawn = [label for label in every if label in set(shown["label"])]
    if len(every) - 1 > MANY:
        every |= _palette(drawn)
    base = next(iter(every))
    return {label: every[label] for label in (base, *drawn)}, left_out


def ends(frame: pd.DataFrame, by: str, most: int) -> tuple[pd.DataFrame, str]:
    """Return variants by a number, of many the lowest and the highest; say how many are left out.

    Those without the number come last, and of many variants they are left out.
    """
    ordered = frame.sort_values(by, na_position="last")
    if len(ordered) <= most:
        return ordered, ""
    known, side = ordered[ordered[by].notna()], most // 2
    shown = pd.concat([known[:side], known[side:][-side:]])
    return shown, (
        f"{len(ordered) - len(shown):,} of {len(ordered):,} variants are left out: drawn "
        "are the lowest and the highest losses"
    )


def remark(axes: Axes, text: str) -> None:
    """Write a remark above the axes."""
    axes.set_title(text, fontsize=8, loc="left")


def legend(axes: Axes) -> None:
    """Put the legend beside the axes, where there is anything to explain."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
