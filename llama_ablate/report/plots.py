"""Pictures as files: matplotlib figures, in seaborn's style."""

import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ruler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, MultipleLocator
from matplotlib.transforms import ScaledTranslation

from llama_ablate.evidence.written import Estimate
from llama_ablate.files import disk
from llama_ablate.findings.rows import grouped
from llama_ablate.report import tables
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import (
    BASELINE,
    FAINT,
    LAWS,
    VERDICTS,
    Axis,
    Costs,
    Dot,
    Dots,
    Lines,
    Panel,
    Picture,
    Point,
    Style,
)
from llama_ablate.terminal import listed, visible

_FAR = 8  # times as large as an effect, another hides it
_ROOM = 1.15  # between the farthest mark and the frame
_BEYOND = 2  # lines at most, which leave the frame for the others' sake
_ROWS, _COSTS = 40, 2  # of marks, and of costs, that are drawn
_TICKS = 8  # at most, one for each place
_LINE = 72  # letters of a remark
_LETTER = 0.08  # inches of a label
_BESIDE = 9.0  # points over which the marks of neighbours at one place are spread
_NAME, _TITLE = 48, 44  # letters of a line in a legend, and of an axis
#: Of a figure in a paper: points of its letters, how many letters an inch has room for, and inches
#: of a panel's height, of a row of marks, and of a page.
_POINTS, _PER_INCH, _PANEL, _MARK, _PAGE = 7, 17, 1.9, 0.13, 7.2
#: Inches of a panel that has the figure to itself, one of two, and one of many.
_SIZES = ((8.0, 4.8), (5.4, 4.6), (4.2, 3.4))


def draw(picture: Picture) -> Figure:
    """Return a picture as a figure."""
    figure, panels, named = _drawn(picture, picture.columns)
    corner = max(panels, key=lambda panel: panel.get_position().p1.tolist()[::-1])
    _beside(corner, named)
    return figure


def _drawn(picture: Picture, columns: int) -> tuple[Figure, list[Axes], dict[str, Artist]]:
    """Draw a picture, so many panels a row (0: as fits); return what its legend is to name, too."""
    alone = len(picture.panels) == 1
    drawn = [(panel, view) for panel in picture.panels for view in _views(panel, alone=alone)]
    first = picture.panels[0]
    rows = [mark.name for mark in shown(first)[0]] if isinstance(first, Dots) else []
    width, height = _SIZES[min(len(drawn), 3) - 1]
    if rows:
        width, height = (6.0 if len(drawn) == 1 else 4.3), 1.4 + 0.34 * len(rows)
    columns = columns or (len(drawn) if len(drawn) < 4 else math.ceil(len(drawn) / 2))
    figure, panels = grid(len(drawn), width, height, columns=columns, rows=rows)
    for axes, (panel, view) in zip(panels, drawn, strict=True):
        _draw(panel, axes, view)
    _remark(panels[0], first)
    return figure, panels, _verdicts(first.marks) if isinstance(first, Dots) else _named(panels)


#: How a panel is shown: whole, or as far from 0 as the small effects reach; and which cost.
_View = tuple[float | None, str]


def _views(panel: Panel, *, alone: bool) -> list[_View]:
    """Return how a panel is shown: also enlarged where it is alone and one effect hides others."""
    if isinstance(panel, Lines):
        return [(None, "")]
    reach = small([mark.at for mark in panel.marks if mark.verdict]) if alone else None
    costs = [*panel.costs][:_COSTS] if isinstance(panel, Costs) else [""]
    return [
        (limit, cost) for limit in ([None] if reach is None else [None, reach]) for cost in costs
    ]


@singledispatch
def _draw(panel: Panel, axes: Axes, view: _View) -> None:
    """Draw a panel."""
    raise NotImplementedError


@_draw.register
def _(panel: Dots, axes: Axes, view: _View) -> None:
    marks, _left = shown(panel)
    ticks = grouped(panel.ticks, lambda tick: tick.name)
    if panel.margin:
        axes.axvspan(-panel.margin, panel.margin, color="#bbbbbb", alpha=0.3, lw=0)
    if panel.x.at is not None:
        axes.axvline(panel.x.at, color=BASELINE, lw=1, zorder=1)
    for y, mark in enumerate(marks):
        _mark(axes, y, mark)
        colour = VERDICTS[mark.verdict].colour
        own = [tick.value for tick in ticks.get(mark.name, ())]
        axes.plot(own, [y - 0.28] * len(own), "|", ms=5, mew=0.8, color=colour, alpha=0.7)
        if y and mark.hollow != marks[y - 1].hollow:
            axes.axhline(y - 0.5, color=BASELINE, lw=0.6)
    axes.set_yticks(range(len(marks)), [visible(mark.name) for mark in marks])
    axes.set_ylim(len(marks) - 0.4, -0.6)
    axes.set_xlabel(panel.x.title)
    axes.set_title(panel.title, fontsize=9)
    _ruled(axes.xaxis, panel.x, ())
    reach, _ = view
    if reach is not None:
        axes.set_xlim(-_ROOM * reach, _ROOM * reach)
        axes.set_title("the small ones, enlarged", fontsize=9)
        for y, mark in enumerate(marks):
            if abs(mark.at.value) > _ROOM * reach:
                _beyond(axes, y, mark.at.value)


def _mark(axes: Axes, y: int, mark: Dot) -> None:
    """Draw an estimate in its row, with its remark."""
    look = VERDICTS[mark.verdict]
    value, low, high = mark.at
    if math.isfinite(value):
        if math.isfinite(low):
            axes.plot([low, high], [y, y], color=look.colour, lw=2 if mark.verdict else 1.2)
        fill = "none" if mark.hollow else "full"
        axes.plot(value, y, look.marker, ms=6, color=look.colour, fillstyle=fill)
    if mark.remark:
        at = (max(0.0, high if math.isfinite(high) else 0.0), y)
        axes.annotate(
            f" {mark.remark}", at, va="center", color=look.colour, fontsize=8, clip_on=True
        )


def _beyond(axes: Axes, y: int, value: float) -> None:
    """Write an effect that is beyond the frame at its edge."""
    right = value > 0
    arrow = "\N{RIGHTWARDS ARROW}" if right else "\N{LEFTWARDS ARROW}"
    axes.annotate(
        f"{value:+.3g} {arrow}" if right else f"{arrow} {value:+.3g}",
        (0.98 if right else 0.02, y),
        xycoords=("axes fraction", "data"),
        ha="right" if right else "left",
        va="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


@_draw.register
def _(panel: Lines, axes: Axes, _view: _View) -> None:
    of = grouped(panel.points, lambda point: point.name)
    means = {name: [point for point in own if not point.part] for name, own in of.items()}
    thin = [[(p.x, p.at.value) for p in means[name]] for name in panel.cast.thin if name in means]
    axes.add_collection(LineCollection(thin, colors=FAINT, linewidths=0.7, zorder=1))
    named = [name for name in panel.cast.named if means.get(name)]
    has_bars = any(math.isfinite(p.at.low) for own in means.values() for p in own)
    for place, name in enumerate(named):
        beside = place / (len(named) - 1) - 0.5 if len(named) > 1 and has_bars else 0.0
        _line(axes, means[name], panel.cast[name], name, beside)
    for name, own in of.items():
        colour = panel.cast[name].colour
        for part, (dash, _) in LAWS.items():
            if along := [(p.x, p.at.value) for p in own if p.part == part]:
                axes.plot(*zip(*along, strict=True), dash, color=colour, lw=1)
        lost = [(p.x, p.at.value) for p in own if p.part and p.part not in LAWS]
        if lost:
            label = f"{name}: {own[-1].part}"
            axes.plot(*zip(*lost, strict=True), ":x", markevery=[-1], color=colour, label=label)
        for ring in (p for p in own if p.chosen and name in panel.cast.named):
            axes.plot(ring.x, ring.at.value, "o", ms=11, mfc="none", color=colour)
    if panel.y.at is not None:
        axes.axhline(panel.y.at, color=BASELINE, lw=0.9, zorder=1)
    axes.set(xlabel=panel.x.title, ylabel=textwrap.fill(panel.y.title, _TITLE))
    axes.set_title(panel.title, fontsize=9)
    axes.margins(x=0.07)
    _ruled(axes.xaxis, panel.x, sorted({point.x for point in panel.points if not point.part}))
    _ruled(axes.yaxis, panel.y, ())
    if panel.zoom:
        _zoomed(axes, panel)


def _line(axes: Axes, means: Sequence[Point], style: Style, name: str, place: float) -> None:
    """Draw a line through means with their intervals.

    `place` is its own among its neighbours, from -0.5 to 0.5: bars at one x stand beside one
    another.
    """
    beside = ScaledTranslation(place * _BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    x = np.array([point.x for point in means])
    ends = np.array([point.at for point in means])
    axes.errorbar(
        x,
        ends[:, 0],
        yerr=[ends[:, 0] - ends[:, 1], ends[:, 2] - ends[:, 0]],
        elinewidth=0.9,
        label=textwrap.fill(name, _NAME),
        transform=axes.transData + beside,
        color=style.colour,
        marker=style.marker,
        linestyle=style.dash,
        markersize=4.5,
        linewidth=1.4,
    )
    for end in ends.T:  # what is shifted does not count for the frame by itself
        axes.update_datalim(np.column_stack([x, end]))
    axes.autoscale_view()


def _zoomed(axes: Axes, panel: Lines) -> None:
    """Leave out of sight how training began, and effects beside which the others are nothing."""
    if panel.y.at is None:  # losses
        losses = [point.at.value for point in panel.points]
        if len(losses) > 20:
            low, high = min(losses), float(np.quantile(losses, 0.9))
            axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
        return
    last = {point.name: point for point in panel.points}
    reach = small([point.at for point in last.values()])
    outside = [n for n, p in last.items() if reach is not None and abs(p.at.value) > reach]
    outside = outside if len(outside) <= _BEYOND else []
    early = max(point.x for point in panel.points) / 4
    inside = [p for p in panel.points if p.x > early and p.name not in outside]
    ends = [0.0, *(end for point in inside for end in point.at if math.isfinite(end))]
    low, high = min(ends), max(ends)
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    if outside:
        axes.set_title(f"beyond the frame: {listed(outside, 3)}", fontsize=8, loc="left")


@_draw.register
def _(panel: Costs, axes: Axes, view: _View) -> None:
    reach, cost = view
    marks = {mark.name: mark for mark in panel.marks if math.isfinite(mark.cost[cost].value)}
    for name in filter(marks.__contains__, panel.cast.all):
        (value, *ends), (x, *x_ends) = marks[name].at, marks[name].cost[cost]
        style = panel.cast[name]
        if name not in panel.cast.named:
            axes.plot(x, value, ".", color=FAINT, zorder=1)
            continue
        axes.errorbar(
            x,
            value,
            yerr=_sides(value, ends),
            xerr=_sides(x, x_ends),
            fmt=style.marker,
            ms=7,
            elinewidth=1,
            color=style.colour,
            fillstyle="none" if style.dash != "-" else "full",
            label=name,
        )
    axes.axhline(0, color=BASELINE, lw=0.8, zorder=1)
    axes.set(xlabel=panel.costs[cost].title, ylabel=textwrap.fill(panel.y.title, _TITLE))
    _ruled(axes.xaxis, panel.costs[cost], ())
    if panel.costs[cost].whole:
        axes.set_xlim(left=0)
    if reach is not None:
        axes.set_ylim(-_ROOM * reach, _ROOM * reach)
        axes.set_title("the small ones, enlarged", fontsize=9)


def _sides(value: float, ends: Sequence[float]) -> list[list[float]] | None:
    """Return how far an interval reaches to both sides; None where there is none."""
    low, high = ends
    return None if math.isnan(low) else [[value - low], [high - value]]


def shown(panel: Dots) -> tuple[list[Dot], int]:
    """Return the marks that are drawn, of many those at both ends; and how many are left out."""
    known = [mark for mark in panel.marks if not math.isnan(mark.at.value)]
    if len(panel.marks) <= _ROWS:
        return list(panel.marks), 0
    side = _ROWS // 2
    kept = known[:side] + known[side:][-side:]
    return kept, len(panel.marks) - len(kept)


def small(effects: Iterable[Estimate]) -> float | None:
    """Return how far from 0 the small of some effects reach, where larger ones hide them.

    None unless half of them reach no farther than an eighth of the largest; those that reach up to
    a quarter count as small then.
    """
    each = ([abs(end) for end in of if not math.isnan(end)] for of in effects)
    reach = [max(ends) for ends in each if ends]
    largest = max(reach, default=0.0)
    hidden = [one for one in reach if one < largest / _FAR]
    if 2 * len(hidden) < len(reach) or not any(hidden):
        return None
    return max(one for one in reach if one < 2 * largest / _FAR)


def _ruled(ruler: Ruler, axis: Axis, places: Sequence[float]) -> None:
    """Write the numbers along an axis; of a few places each its own."""
    which: Literal["x", "y"] = "x" if ruler is ruler.axes.xaxis else "y"
    if axis.log:
        (ruler.axes.set_xscale if which == "x" else ruler.axes.set_yscale)("log", base=2)
    if axis.form == "bytes":
        ruler.set_major_formatter(FuncFormatter(lambda value, _: tables.size(value)))
    elif axis.form == "count" or axis.log:
        ruler.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if 1 < len(places) <= _TICKS:
        ruler.set_ticks(places, [short(place) for place in places])
        ruler.set_ticks([], minor=True)
    elif not axis.log and axis.form == "bytes":  # two to four steps, which are round in KiB
        step = 2 ** math.floor(math.log2(float(np.ptp(ruler.get_view_interval())) / 2))
        ruler.set_major_locator(MultipleLocator(step))
    elif not axis.log:
        ruler.axes.locator_params(axis=which, nbins=5)


def short(value: float) -> str:
    """Write a number in a few letters: 0.003, 64, 1.2M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.6g}"


def _remark(axes: Axes, panel: Panel) -> None:
    """Write above the axes what is not drawn, or not named."""
    if isinstance(panel, Dots):
        left = shown(panel)[1]
        what = "rows are left out: drawn are the lowest and the highest"
        text = f"{left:,} of {left + _ROWS:,} {what}" if left else ""
    else:
        text = "; ".join(filter(None, (panel.cast.remark, panel.remark)))
    if text:
        axes.set_title(textwrap.fill(text, _LINE), fontsize=8, loc="left")


def legend(*panels: Axes) -> None:
    """Put one legend beside the last of some panels, of all that they name, each once."""
    _beside(panels[-1], _named(panels))


def _named(panels: Sequence[Axes]) -> dict[str, Artist]:
    """Return what panels name, each once."""
    found = [axes.get_legend_handles_labels() for axes in panels]
    return {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }


def _verdicts(marks: Sequence[Dot]) -> dict[str, Artist]:
    return {
        verdict: Line2D([], [], color=look.colour, marker=look.marker)
        for verdict, look in VERDICTS.items()
        if verdict and verdict in {mark.verdict for mark in marks}
    }


def _beside(panel: Axes, named: Mapping[str, Artist]) -> None:
    if named:
        look: Any = {"frameon": False, "fontsize": 8, "bbox_to_anchor": (1.01, 1)}
        panel.legend([*named.values()], [*named], loc="upper left", **look)


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
    panels: int, width: float, height: float, *, columns: int = 0, rows: Sequence[str] = ()
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of some panels, each of a size in inches; `columns` of them a row.

    `rows` are the labels of rows that panels beside one another share; there is room for them.
    """
    room = _LETTER * max(map(len, map(visible, rows)), default=0)
    columns = min(panels, columns or panels)
    lines = math.ceil(panels / columns)
    with sns.axes_style("whitegrid", {"axes.spines.right": False, "axes.spines.top": False}):
        figure = blank(width * columns + room, height * lines)
        made = figure.subplots(lines, columns, squeeze=False, sharey=bool(rows)).ravel()
    for empty in made[panels:]:
        empty.remove()
    return figure, list(made[:panels])


def caption(made: Made[Picture]) -> str:
    """Return a picture's caption: what its maker says that it shows, its note, and its table."""
    table = f"Table: {made.table}." if made.table else ""
    return " ".join(filter(None, (made.about, made.part.note, table)))


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG beside each other, each in one step; return both paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    disk.make(path.parent)
    drawn = {".svg": svg(figure), ".png": _saved(figure, "png", bbox_inches="tight", dpi=150)}
    written = []
    for ending, content in drawn.items():
        target = base.with_name(base.name + ending)
        disk.replace(target, content)
        written.append(target)
    return written


def for_paper(picture: Picture, width: float) -> bytes:
    """Return a picture as PDF of a paper's width, in inches: its letters have 7 points.

    Its legend stands below; fonts are embedded as outlines of TrueType, which publishers ask for.
    """
    columns = max(1, int(width / 3))
    figure, panels, named = _drawn(picture, columns)
    letters, height, legend = int(width / columns * _PER_INCH), _PANEL, 0
    if isinstance(picture.panels[0], Dots):
        names = [textwrap.fill(at.get_text(), letters // 2) for at in panels[0].get_yticklabels()]
        panels[0].set_yticks(panels[0].get_yticks(), names)
        height = 0.7 + _MARK * len(names) * max(1 + name.count("\n") for name in names)
    if named:
        longest = min(max(map(len, named)), letters) + 8
        look: Any = {"ncols": max(1, columns * letters // longest), "frameon": False}
        figure.legend([*named.values()], [*named], loc="outside lower center", **look)
        legend = math.ceil(len(named) / look["ncols"]) * math.ceil(max(map(len, named)) / letters)
    for panel in panels:
        panel.tick_params(labelsize=_POINTS, pad=1)
    for text in (one for one in figure.findobj(Text) if isinstance(one, Text)):
        text.set_text(textwrap.fill(text.get_text(), letters // (2 if text.get_rotation() else 1)))
        text.set_fontsize(_POINTS)
    height = height * math.ceil(len(panels) / columns) + _MARK * legend
    figure.set_size_inches(width, min(height, _PAGE))
    drawn = _saved(figure, "pdf", metadata={"CreationDate": None})
    figure.clear()
    return drawn


def svg(figure: Figure) -> bytes:
    """Return a figure as SVG, the same bytes each time."""
    return _saved(figure, "svg", bbox_inches="tight", metadata={"Date": None})


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    drawn = BytesIO()
    _without_formulas(figure)
    with (
        mpl.rc_context({"svg.hashsalt": "llama_ablate", "pdf.fonttype": 42}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box stands for it
        figure.savefig(drawn, format=kind, **options)
    return drawn.getvalue()


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
