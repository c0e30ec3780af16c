"""Drawing: figures as files, how variants are told apart, intervals over seeds, captions."""

import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterMathtext
from matplotlib.transforms import ScaledTranslation

from llama_ablate.evidence.student import quantile
from llama_ablate.files import disk
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import frame as of_rows
from llama_ablate.report.parts import Made
from llama_ablate.terminal import plural, visible

MANY = 12  # variants beyond which a legend no longer helps
BASELINE = "#333333"
FAINT = "#c4c4c4"
_BEST = 5  # of many variants, which are named beside the worst
_SAME = 1e-3  # of the largest, within which numbers are drawn alike
_FAR = 8  # times as large as an effect, another hides it
_LINE = 72  # letters of a remark
_LETTER = 0.08  # inches of a label
_BESIDE = 9.0  # points over which the marks of neighbours at one place are spread
#: Colours that all eyes tell apart (Okabe & Ito 2008), without yellow, which is lost on white.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
MARKERS = ("^", "s", "v", "D", "X", "<", "P", ">", "p", "*", "h", "d")


@dataclass(frozen=True)
class Style:
    """How a variant is drawn: no two of one figure have the same marker."""

    colour: str
    marker: str
    dash: str = "-"

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a line of matplotlib's."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dash,
            "markersize": 4.5,
            "linewidth": 1.4,
        }


_THIN = Style(FAINT, "")


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each of some names, twelve at most: six colours, solid and then dashed."""
    return {
        name: Style(COLOURS[i % len(COLOURS)], marker, "--" if i >= len(COLOURS) else "-")
        for i, (name, marker) in enumerate(zip(names, MARKERS, strict=False))
    }


@dataclass(frozen=True)
class Cast:
    """The variants that a figure shows: those with a style of their own, and all others, thin."""

    #: The baseline's first.
    named: Mapping[str, Style]
    thin: Collection[str]

    @property
    def all(self) -> list[str]:
        """The labels, the thin ones first: they are drawn below the others."""
        return [*self.thin, *self.named]

    def __getitem__(self, label: str) -> Style:
        return self.named.get(label, _THIN)

    @property
    def remark(self) -> str:
        """What a reader must know of the variants that have no name."""
        if not self.thin:
            return ""
        return (
            f"{len(self.thin):,} of {len(self.all):,} variants are thin and light: named are the "
            "baseline, those of the lowest losses, and that of the highest"
        )


def cast(table: TableFrames) -> Cast:
    """Return who is drawn, and how: all variants but the positive control, which sets the scale.

    Of many the baseline, the best and the worst are named.
    """
    frame = of_rows(table.comparison)
    others = frame[~frame["baseline"] & (frame["role"] != "positive")]
    chosen, planned = set(others["label"]), list(others["label"])
    if len(planned) > MANY:
        ranked = others[others["loss"].notna()].sort_values("loss")["label"]
        chosen = {*ranked[:_BEST], *ranked[_BEST:][-1:]}
    baseline = {table.plan.baseline.label: Style(BASELINE, "o", "-")}
    of_chosen = styles(label for label in planned if label in chosen)
    return Cast(baseline | of_chosen, [label for label in planned if label not in chosen])


def over_seeds(
    frame: pd.DataFrame, keys: Sequence[str], value: str, seed: str = "seed"
) -> pd.DataFrame:
    """Return the mean of a column over seeds, with Student's 95% interval, by some keys.

    Columns: the keys, `mean, low, high, n`. The interval is NaN for one seed.
    """
    finite = frame.loc[np.isfinite(frame[value])]
    groups = finite.groupby([*keys], sort=False)
    found = groups[value].agg(["mean", "std"]).assign(n=groups[seed].nunique())
    t = {n: quantile(0.975, n - 1) if n > 1 else math.nan for n in set(found["n"])}
    half = found["n"].map(t) * found["std"] / np.sqrt(found["n"])
    whole: pd.DataFrame = found.assign(low=found["mean"] - half, high=found["mean"] + half)
    return whole.reset_index()


def bars(
    axes: Axes, x: Any, spread: pd.DataFrame, style: Style, label: str, place: float = 0.0
) -> None:
    """Draw a line through means (column `mean`) with their intervals (`low` and `high`).

    `place` is the variant's among its neighbours, from -0.5 to 0.5: bars at one x stand beside one
    another.
    """
    beside = ScaledTranslation(place * _BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    axes.errorbar(
        x,
        spread["mean"].to_numpy(),
        yerr=[spread["mean"] - spread["low"], spread["high"] - spread["mean"]],
        elinewidth=0.9,
        label=label,
        transform=axes.transData + beside,
        **style.line,
    )
    for end in ("mean", "low", "high"):  # what is shifted does not count for the frame by itself
        axes.update_datalim(np.column_stack([x, spread[end]]))
    axes.autoscale_view()


def lines(axes: Axes, spread: pd.DataFrame, x: str, shown: Cast) -> None:
    """Draw a line for each variant (`label`) through its means along a column, with intervals.

    Columns besides: `mean, low, high`; bars at one place stand beside one another. A thin line has
    no bars and no name.
    """
    of = {label: rows.sort_values(x) for label, rows in spread.groupby("label", sort=False)}
    thin = [of[label][[x, "mean"]].to_numpy() for label in shown.thin if label in of]
    axes.add_collection(LineCollection(thin, colors=FAINT, linewidths=0.7, zorder=1))
    named = [label for label in shown.named if label in of]
    room = len(named) > 1 and bool(spread["low"].notna().any())
    for place, label in enumerate(named):
        beside = place / (len(named) - 1) - 0.5 if room else 0.0
        bars(axes, of[label][x].to_numpy(), of[label], shown[label], label, beside)
    axes.margins(x=0.07)


def differ(values: "pd.Series[float]") -> bool:
    """Return whether numbers differ by more than a thousandth of the largest."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(finite.max() - finite.min() > _SAME * finite.abs().max())


def small(low: "pd.Series[float]", high: "pd.Series[float]") -> float | None:
    """Return how far from 0 the small of some effects reach, where larger ones hide them.

    None unless half of them reach no farther than an eighth of the largest; those that reach up to
    a quarter count as small then.
    """
    reach = pd.concat([low.abs(), high.abs()], axis=1).max(axis=1)
    hidden = reach[reach < reach.max() / _FAR]
    if 2 * len(hidden) < len(reach) or not (hidden > 0).any():
        return None
    return float(reach[reach < 2 * reach.max() / _FAR].max())


def binary(value: float, _position: int) -> str:
    """Write bytes along an axis."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(value) >= 1 << power:
            return f"{value / (1 << power):.3g} {unit}"
    return f"{value:g} B"


def counted(seeds: Iterable[float]) -> str:
    """Write over how many seeds intervals are: `12 seeds`, `3 to 12 seeds`."""
    counts = sorted({int(n) for n in seeds if n > 0})
    if not counts:
        return "no seeds"
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{some} {plural(counts[-1], 'seed')}"


def over(seeds: Iterable[float]) -> str:
    """Say what bars are: 95% intervals over so many seeds; that there are none for one seed."""
    known = [n for n in seeds if n > 0]
    if max(known, default=0) < 2:
        return "One seed: no intervals."
    return f"Bars are 95% intervals over n = {counted(known)}."


def note(figure: Figure, *sentences: str) -> None:
    """Add sentences to a figure's caption: what the bars are, and over how many seeds."""
    figure.set_label(" ".join(filter(None, sentences)))


def caption(made: Made[Figure]) -> str:
    """Return a figure's caption: what its maker says that it draws, its notes, and its table."""
    about = made.about.removeprefix("Draw ")
    table = f"Table: {made.table}." if made.table else ""
    parts = (about[:1].upper() + about[1:], str(made.part.get_label()), table)
    return " ".join(filter(None, parts))


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG beside each other, each in one step; return both paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    disk.make(path.parent)
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
    figure, (axes,) = grid(1, width, height)
    return figure, axes


def grid(
    panels: int, width: float, height: float, *, columns: int = 0, rows: Iterable[str] = ()
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of some panels, each of a size in inches; `columns` of them a row.

    `rows` are the labels of rows that panels beside one another share; there is room for them.
    """
    labels = [*rows]
    room = _LETTER * max(map(len, map(visible, labels)), default=0)
    columns = min(panels, columns or panels)
    lines = math.ceil(panels / columns)
    with sns.axes_style("whitegrid", {"axes.spines.right": False, "axes.spines.top": False}):
        figure = blank(width * columns + room, height * lines)
        made = figure.subplots(lines, columns, squeeze=False, sharey=bool(labels)).ravel()
    for empty in made[panels:]:
        empty.remove()
    return figure, list(made[:panels])


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
    axes.set_title(textwrap.fill(text, _LINE), fontsize=8, loc="left")


def legend(*panels: Axes) -> None:
    """Put one legend beside the last of some panels, of all that they name, each once."""
    found = [axes.get_legend_handles_labels() for axes in panels]
    named = {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }
    if named:
        panels[-1].legend(
            [*named.values()],
            [*named],
            frameon=False,
            fontsize=8,
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
        )
