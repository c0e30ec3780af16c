"""Drawing of figure panels: rows of marks, lines, and points against a cost."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox, ScaledTranslation

from llama_ablate.evidence.written import Estimate, interval
from llama_ablate.findings.rows import grouped
from llama_ablate.report.drawing import POINTS, Drawing, rule_axis
from llama_ablate.report.picture import (
    BASELINE,
    GRID,
    VERDICTS,
    WHITE,
    Costs,
    Dot,
    Dots,
    Lines,
    Panel,
    Picture,
    Point,
    Style,
)

#: Height of a row and of the space above the first row, in pixels, as in the page's table.
ROW, HEAD = 26, 50
MAX_ROWS = 64  # most marks of a picture; of more, the first and the last are drawn
_PANEL_HEIGHT = 250  # height of a panel of lines or costs, in pixels
_MAX_SHARE = 0.42  # largest share of a picture's width for the labels of rows
_FAR = 8  # ratio from which a large effect hides a small one
_ROOM = 1.15  # limit of the axis, relative to the farthest visible mark
_MAX_POINTS = 400  # most points of a panel that are marked one by one
_MARK_SPREAD = 9.0  # points over which marks with the same x are spread
_MAX_NAMES = 24  # most points of a panel with names; more points have numbers
_NUMBER = "{:,.4g}".format


# ---- rows: a mark for each name


def draw_rows(drawing: Drawing, picture: Picture) -> None:
    """Draw a picture's panels of rows, in the row height of the page's table."""
    panels = [panel for panel in picture.panels if isinstance(panel, Dots)]
    marks = choose_marks(panels[0])[0]
    width, letter = drawing.width, drawing.points / POINTS
    names = drawing.shorten((mark.name for mark in marks), _MAX_SHARE * width)
    left = 10 + max(map(drawing.measure, names.values()), default=0)
    columns = min(picture.columns, len(panels), max(1, int((width - left) / (110 * letter))))
    room = (width - left) / columns - 14
    row = (ROW if len(panels) == 1 else 20) * letter
    titles = [drawing.wrap(panel.x.title, room) for panel in panels]
    heads = [drawing.wrap(_above(panel), room) for panel in panels]
    line = 1.35 * drawing.points
    bottom = math.ceil(line * (2 + max(title.count("\n") + 1 for title in titles)))
    head = math.ceil(max(HEAD * letter, line * (1 + max(text.count("\n") + 1 for text in heads))))
    high = head + row * len(marks) + bottom
    height = high * math.ceil(len(panels) / columns)
    drawing.figure.set_size_inches(width / 72, height / 72)
    drawing.figure.set_layout_engine("none")
    for at, panel in enumerate(panels):
        x = left + (at % columns) * (room + 14)
        y = height - (at // columns) * high - head - row * len(marks)
        axes = drawing.figure.add_axes(
            (x / width, y / height, room / width, row * len(marks) / height)
        )
        _draw_dots(drawing, axes, panel)
        is_first = at % columns == 0
        axes.set_yticks(range(len(marks)), [names[m.name] if is_first else "" for m in marks])
        axes.set_xlabel(titles[at])
        axes.set_title(heads[at], loc="left", fontsize=drawing.points)
        _tag_names(drawing, axes, panel)
    if verdicts := _name_verdicts(panels[0]):
        drawing.figure.legend(
            handles=verdicts,
            loc="upper left",
            bbox_to_anchor=(0, 1),
            ncols=max(1, int(width / (105 * letter))),
            frameon=False,
            borderpad=0.2,
            columnspacing=1,
            handletextpad=0.2,
        )


def _above(panel: Dots) -> str:
    """Return the text above a panel: its title, and the number of omitted rows."""
    left = choose_marks(panel)[1]
    above = (
        f"{left:,} of {len(panel.marks):,} rows are left out: drawn are both ends" if left else ""
    )
    return "; ".join(filter(None, (panel.title, above)))


def choose_marks(panel: Dots) -> tuple[list[Any], int]:
    """Return the marks to draw, and the number of marks that are left out.

    If there are more than `MAX_ROWS` marks, only marks with an estimate are drawn, half of
    `MAX_ROWS` from each end of the list.
    """
    if len(panel.marks) <= MAX_ROWS:
        return list(panel.marks), 0
    marks = [mark for mark in panel.marks if not math.isnan(mark.at.value)]
    side = MAX_ROWS // 2
    chosen = marks[:side] + marks[side:][-side:]
    return chosen, len(panel.marks) - len(chosen)


def _draw_dots(drawing: Drawing, axes: Axes, panel: Dots) -> None:
    """Draw a panel's marks with intervals, and thin strokes for single seeds."""
    marks, _left = choose_marks(panel)
    ticks = grouped(panel.ticks, lambda tick: tick.name)
    if panel.margin:
        axes.axvspan(-panel.margin, panel.margin, color=GRID, alpha=0.4, lw=0)
    if panel.x.at is not None:
        axes.axvline(panel.x.at, color=BASELINE, lw=1, zorder=1)
    small_limit = (
        find_small([mark.at for mark in marks if mark.verdict]) if panel.x.at == 0 else None
    )
    frame = math.inf if small_limit is None else _ROOM * small_limit
    for y, mark in enumerate(marks):
        colour = panel.styles.get(mark.name, Style()).colour
        _draw_dot(drawing, axes, y, mark, colour, frame)
        for tick in ticks.get(mark.name, ()):
            if abs(tick.value) <= frame:
                (stroke,) = axes.plot(tick.value, y - 0.3, "|", ms=5, mew=0.9, color=colour)
                about = f"{mark.name}, seed {tick.seed}: {tick.value:+.4f}"
                drawing.tag(stroke, mark.name, about, **{"data-seed": str(tick.seed)})
        if y and mark.hollow != marks[y - 1].hollow:
            axes.axhline(y - 0.5, color=BASELINE, lw=0.6)
    axes.set_ylim(len(marks) - 0.5, -0.5)
    rule_axis(axes.xaxis, panel.x, (), axes.bbox.width / drawing.points)
    if math.isfinite(frame):
        axes.set_xlim(-frame, frame)
    _write_remarks(drawing, axes, marks)


def _draw_dot(drawing: Drawing, axes: Axes, y: int, mark: Dot, colour: str, frame: float) -> None:
    """Draw a mark with its interval, or write a value beyond `frame` as a number."""
    value, low, high = mark.at
    label_text = ", ".join(filter(None, (interval(*mark.at), mark.verdict)))
    title = f"{mark.name}: {label_text if mark.verdict else _write_estimate(mark.at)}"
    if abs(value) > frame:
        _draw_beyond(drawing, axes, y, mark, title)
    elif math.isfinite(value):
        if math.isfinite(low):
            (bar,) = axes.plot([low, high], [y, y], color=colour, lw=2)
            drawing.tag(bar, mark.name, title)
        fill = WHITE if mark.hollow else colour
        (dot,) = axes.plot(value, y, VERDICTS[mark.verdict], color=colour, ms=6.5, mfc=fill)
        drawing.tag(dot, mark.name, title)


def _write_remarks(drawing: Drawing, axes: Axes, marks: Sequence[Dot]) -> None:
    """Write each mark's remark next to its interval, on the side with more room."""
    left, right = axes.get_xlim()
    for y, mark in enumerate(marks):
        if mark.remark:
            ends = [end for end in (0.0, *mark.at) if left <= end <= right] or [left, right]
            is_right = right - max(ends) > min(ends) - left
            at, side = (max(ends), "left") if is_right else (min(ends), "right")
            text = axes.text(at, y, f" {mark.remark} ", ha=side, va="center")
            drawing.tag(text, mark.name, mark.remark)


def _draw_beyond(drawing: Drawing, axes: Axes, y: int, mark: Dot, title: str) -> None:
    """Write the number of an effect beyond the axis limits, with an arrow."""
    right, text = mark.at.value > 0, interval(*mark.at)
    label = axes.annotate(
        f"{text} \N{RIGHTWARDS ARROW}" if right else f"\N{LEFTWARDS ARROW} {text}",
        (0.99 if right else 0.01, y),
        xycoords=("axes fraction", "data"),
        ha="right" if right else "left",
        va="center",
    )
    drawing.tag(label, mark.name, title)


def _tag_names(drawing: Drawing, axes: Axes, panel: Dots) -> None:
    """Add y coordinates to row names, so that the page can sort rows."""
    height = drawing.figure.bbox.height
    marks, _left = choose_marks(panel)
    for y, (mark, text) in enumerate(zip(marks, axes.get_yticklabels(), strict=True)):
        place = height - float(axes.transData.transform((0, y))[1])
        drawing.tag(text, mark.name, mark.name, **{"data-y": f"{place:.1f}"})


def _name_verdicts(panel: Dots) -> list[Artist]:
    """Return legend entries for the verdicts of a panel: marker shape and word."""
    verdicts = {mark.verdict for mark in panel.marks} - {""}
    handle_style: Any = {"color": BASELINE, "ls": "", "ms": 6}
    return [
        Line2D([], [], marker=shape, label=verdict, **handle_style)
        for verdict, shape in VERDICTS.items()
        if verdict in verdicts
    ]


def find_small(effects: Iterable[Estimate]) -> float | None:
    """Return an axis limit for effects that a larger effect would hide, or None.

    The extent of an effect is the largest absolute value of its estimate and interval. Returns None
    unless at least half of the effects extend less than an eighth as far as the largest. Otherwise
    returns the largest extent below half of the maximum.
    """
    each = ([abs(end) for end in of if not math.isnan(end)] for of in effects)
    lengths = [max(ends) for ends in each if any(ends)]  # the baseline's is 0
    largest = max(lengths, default=0.0)
    hidden = [length for length in lengths if length < largest / _FAR]
    if 2 * len(hidden) < len(lengths) or not hidden:
        return None
    return max(length for length in lengths if length < largest / 2)


def _write_estimate(at: Estimate) -> str:
    """Format an estimate to four digits, with its interval if it has one."""
    value, *ends = map(_NUMBER, at)
    return value if math.isnan(at.low) else f"{value} [{', '.join(ends)}]"


# ---- panels of lines, and of costs


def draw_panels(drawing: Drawing, picture: Picture) -> None:
    """Draw a picture's panels of lines or costs in a grid, with one legend."""
    letter = drawing.points / POINTS
    columns = min(picture.columns, len(picture.panels), max(1, int(drawing.width / 220 / letter)))
    rows = math.ceil(len(picture.panels) / columns)
    width = drawing.width / columns
    subplots = drawing.figure.subplots(rows, columns, squeeze=False).ravel()
    for empty in subplots[len(picture.panels) :]:
        empty.remove()
    drawing.figure.set_size_inches(drawing.width / 72, rows * _PANEL_HEIGHT * letter / 72)
    panels = list(zip(subplots, picture.panels, strict=False))
    for axes, panel in panels:
        if isinstance(panel, Lines):
            _draw_lines(drawing, axes, panel, width)
        elif isinstance(panel, Costs):
            _place_costs(drawing, axes, panel, width)
        above = "; ".join(filter(None, (panel.title, _remark(panel))))
        axes.set_title(drawing.wrap(above, 0.8 * width), loc="left", fontsize=drawing.points)
    handles = _name_lines(drawing, [panel for _, panel in panels if isinstance(panel, Lines)])
    if handles:
        longest = max(drawing.measure(str(handle.get_label())) for handle in handles)
        many = max(1, min(len(handles), int(drawing.width / (longest + 42 * letter))))
        lines = math.ceil(len(handles) / many)
        more = math.ceil(1.35 * drawing.points * (lines + 1))
        width, height = drawing.figure.get_size_inches()
        drawing.figure.set_size_inches(width, height + more / 72)
        legend_style: Any = {
            "frameon": False,
            "ncols": many,
            "handlelength": 2.2,
            "columnspacing": 1,
        }
        drawing.figure.legend(handles=handles, loc="outside lower left", **legend_style)
    if engine := drawing.figure.get_layout_engine():
        engine.execute(drawing.figure)
    drawing.figure.set_layout_engine("none")  # freeze the layout before points are named
    for axes, panel in panels:
        if isinstance(panel, Costs):
            _name_points(drawing, axes, panel)
        elif isinstance(panel, Lines) and panel.raw:
            gid = f"axes{len(drawing.about)}"
            axes.set_gid(gid)
            kind = "runs" if panel.ticks else "medians"
            drawing.about[gid] = {"data-scale": _write_scale(axes), "data-raw": kind}


def _remark(panel: Panel) -> str:
    """Return a panel's remark on missing or unnamed lines, or ""."""
    remark = panel.cast.remark if isinstance(panel, Lines) else ""
    return "; ".join(filter(None, (remark, panel.remark)))


def _draw_lines(drawing: Drawing, axes: Axes, panel: Lines, width: float) -> None:
    """Draw a panel of lines: means over seeds with intervals, and single runs."""
    means = grouped(panel.points, lambda point: point.name)
    runs = grouped(panel.ticks, lambda place: (place[1].name, place[1].seed))
    for (name, seed), run_points in runs.items():
        style, lost = panel.cast[name], run_points[-1][1].outcome
        (line,) = axes.plot(
            [x for x, _ in run_points],
            [tick.value for _, tick in run_points],
            ":x" if lost else style.dash,
            markevery=[-1],
            color=style.colour,
            lw=0.7,
            alpha=0.7,
            zorder=1,
        )
        title = f"{name}, seed {seed}" + (f": {lost}" if lost else "")
        drawing.tag(line, name, title, **{"data-seed": str(seed)})
    many = panel.raw or len(panel.points) > _MAX_POINTS
    named = [name for name in means if name in panel.cast.named]
    has_bars = any(math.isfinite(p.at.low) for p in panel.points) and not runs
    for name, points in means.items():
        place = 0.0
        if has_bars and name in named and len(named) > 1:
            place = named.index(name) / (len(named) - 1) - 0.5
        _draw_line(drawing, axes, panel, name, points, place, many=many)
    for point in panel.reported:
        colour = panel.cast[point.name].colour
        (dot,) = axes.plot(point.x, point.at.value, "D", color=colour, ms=5, mec=WHITE, mew=0.6)
        text = f"{point.name}: {_write_estimate(point.at)}, as the table reports"
        drawing.tag(dot, point.name, text, **{"data-end": ""})
    if panel.y.at is not None:
        axes.axhline(panel.y.at, color=BASELINE, lw=0.9, zorder=1)
    axes.set_xlabel(drawing.wrap(panel.x.title, 0.8 * width))
    axes.set_ylabel(drawing.wrap(panel.y.title, 0.9 * _PANEL_HEIGHT * drawing.points / POINTS))
    axes.margins(x=0.04)
    places = sorted({point.x for point in panel.points})
    room = 0.8 * width / drawing.points
    rule_axis(axes.xaxis, panel.x, places, room)
    rule_axis(axes.yaxis, panel.y, (), _PANEL_HEIGHT / POINTS)
    if panel.zoom:
        _zoom(axes, panel)


def _draw_line(
    drawing: Drawing,
    axes: Axes,
    panel: Lines,
    name: str,
    own: Sequence[Point],
    place: float,
    *,
    many: bool,
) -> None:
    """Draw a line through means with their intervals.

    `own` are the points of the line `name`. `place`, from -0.5 to 0.5, shifts the line so that
    intervals at the same x do not overlap. If `many` is set, single points have no marks.
    """
    style, is_named = panel.cast[name], name in panel.cast.named
    shift = ScaledTranslation(place * _MARK_SPREAD / 72, 0, axes.figure.dpi_scale_trans)
    line_style: Any = {"transform": axes.transData + shift, "color": style.colour}
    x, ends = np.array([p.x for p in own]), np.array([p.at for p in own])
    width = 1.5 if is_named else 0.7
    (line,) = axes.plot(x, ends[:, 0], ls=style.dash, lw=width, zorder=2 + is_named, **line_style)
    drawing.tag(line, name, f"{name}, {'median' if panel.raw else 'mean'} of seeds")
    for point in () if many else own:
        title = f"{name} at {_NUMBER(point.x)}: {_write_estimate(point.at)}"
        title += f", n = {point.n}" * bool(point.n)
        if is_named and not panel.ticks and math.isfinite(point.at.low):
            (bar,) = axes.plot([point.x] * 2, point.at[1:], lw=0.9, zorder=2, **line_style)
            drawing.tag(bar, name, title)
        size = 4.5 if is_named else 2
        (dot,) = axes.plot(point.x, point.at.value, "o", ms=size, zorder=3, **line_style)
        drawing.tag(dot, name, title)
        if point.chosen and is_named:
            (ring,) = axes.plot(point.x, point.at.value, "o", ms=11, mfc="none", **line_style)
            drawing.tag(ring, name, f"{title}, chosen")
    for end in ends.T:  # matplotlib ignores artists with a shifted transform for axis limits
        axes.update_datalim(np.column_stack([x, end])[np.isfinite(end)])
    axes.autoscale_view()


def _zoom(axes: Axes, panel: Lines) -> None:
    """Set the y limits to the losses in the last three quarters of training."""
    places = [(point.x, point.at) for point in panel.points]
    places += [(x, Estimate(tick.value)) for x, tick in panel.ticks]
    early = max(x for x, _ in places) / 4
    values = [value for x, at in places if x > early for value in at]
    values += [value for point in panel.reported for value in point.at]
    ends = [value for value in values if math.isfinite(value)]
    low, high = min(ends, default=0), max(ends, default=0)
    if high > low:
        room = 0.05 * (high - low)
        axes.set_ylim(low - room, high + room)


def _name_lines(drawing: Drawing, panels: Sequence[Lines]) -> list[Artist]:
    """Return legend entries for lines: each name once, in its colour and dash."""
    names_drawn = {p.name for panel in panels for p in panel.points}
    names_drawn |= {tick.name for panel in panels for _, tick in panel.ticks}
    named = dict.fromkeys(n for panel in panels for n in panel.cast.named if n in names_drawn)
    short = drawing.shorten(named, drawing.width - 50)
    styles = {name: panel.cast[name] for panel in panels for name in named}
    handles: list[Artist] = [
        Line2D([], [], color=styles[n].colour, ls=styles[n].dash, lw=1.8, label=short[n])
        for n in named
    ]
    if any(panel.reported for panel in panels):
        mark: Any = {"ls": "", "marker": "D", "ms": 5, "color": BASELINE}
        handles.append(Line2D([], [], label="the loss that the table reports", **mark))
    return handles


def _place_costs(drawing: Drawing, axes: Axes, panel: Costs, width: float) -> None:
    """Draw marks of loss difference against cost, with intervals of difference and cost."""
    for mark in panel.marks:
        value, *ends = mark.at
        x, *x_ends = mark.cost[panel.cost]
        colour = panel.styles[mark.name].colour
        title = f"{mark.name}: {interval(*mark.at)}, {panel.x.title} {_NUMBER(x)}"
        bars = [([x, x], ends), (x_ends, [value, value])]
        for across, along in bars:
            if all(map(math.isfinite, (*across, *along))):
                (bar,) = axes.plot(across, along, color=colour, lw=1.2)
                drawing.tag(bar, mark.name, title)
        (dot,) = axes.plot(x, value, VERDICTS[mark.verdict], ms=7, color=colour)
        drawing.tag(dot, mark.name, title)
    axes.axhline(0, color=BASELINE, lw=0.8, zorder=1)
    axes.set_xlabel(drawing.wrap(panel.x.title, 0.8 * width))
    axes.set_ylabel(drawing.wrap(panel.y.title, 0.9 * _PANEL_HEIGHT * drawing.points / POINTS))
    axes.margins(0.12)
    rule_axis(axes.xaxis, panel.x, (), 0.8 * width / drawing.points)
    small_limit = find_small([mark.at for mark in panel.marks])
    if small_limit is not None:
        axes.set_ylim(-_ROOM * small_limit, _ROOM * small_limit)


def _name_points(drawing: Drawing, axes: Axes, panel: Costs) -> None:
    """Write each point's name at the nearest position without overlap.

    A position must not overlap other names or points, and preferably no intervals.

    A name is left out if no position is free.
    """
    visible = [mark for mark in panel.marks if axes.viewLim.containsy(mark.at.value)]
    names = [mark.name for mark in panel.marks]
    short = drawing.shorten(names, 150 * drawing.points / POINTS)
    if len(visible) > _MAX_NAMES:
        short = {name: str(number) for number, name in enumerate(names, 1)}
        drawing.shortened |= {text: name for name, text in short.items()}
    places = {
        m.name: axes.transData.transform((m.cost[panel.cost].value, m.at.value)) for m in visible
    }
    high = 1.2 * drawing.points
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in places.values()]
    bars = [box for mark in visible for box in _box_bars(axes, panel, mark)]
    for name, (x, y) in places.items():
        wide = drawing.measure(short[name])
        boxes = [
            Bbox.from_bounds(x + dx - (1 - side / 2) * wide, y + dy - high / 2, wide, high)
            for far in range(9, 140, 9)
            for side, dx, dy in _around(far)
        ]
        inside = [box for box in boxes if axes.bbox.padded(2).count_contains(box.corners()) == 4]
        free = [box for box in inside if not any(map(box.overlaps, taken))]
        clear = (box for box in free if not any(map(box.overlaps, bars)))
        box = next(clear, next(iter(free), None))
        if box is None:
            continue
        taken.append(box)
        text_style: Any = {"ha": "left", "va": "center", "transform": None}
        text = axes.text(box.x0, (box.y0 + box.y1) / 2, short[name], **text_style)
        drawing.tag(text, name, name)
        near = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
        if math.dist(near, (x, y)) > 2 * 9:
            line = Line2D([x, near[0]], [y, near[1]], color=BASELINE, lw=0.5, transform=None)
            axes.add_artist(line)
            drawing.tag(line, name, name)


def _box_bars(axes: Axes, panel: Costs, mark: Dot) -> Iterator[Bbox]:
    """Yield bounding boxes of a mark's intervals, in pixels."""
    (x, left, right), (y, low, high) = mark.cost[panel.cost], mark.at
    for ends in (((left, y), (right, y)), ((x, low), (x, high))):
        if np.isfinite(ends).all():
            yield Bbox(axes.transData.transform(ends)).padded(1)


def _around(far: int) -> Iterator[tuple[int, float, float]]:
    """Yield candidate positions of a name around a point: (alignment, dx, dy).

    `dx` and `dy` are in pixels. The alignment is 0 if the name's right end is next to the point, 1
    for its middle, and 2 for its left end.
    """
    for turn in (1, 7, 3, 5, 0, 4, 2, 6):
        dx, dy = far * math.cos(turn * math.pi / 4), far * math.sin(turn * math.pi / 4)
        yield 0 if dx < -1 else 2 if dx > 1 else 1, dx, dy


def _write_scale(axes: Axes) -> str:
    """Return the ends of both axes as JSON, for the page's script.

    For each axis: pixels of both ends, values of both ends, and whether the axis is logarithmic.
    """
    height = float(axes.figure.bbox.height)
    (left, bottom), (right, top) = axes.transAxes.transform([(0, 0), (1, 1)])
    x = (left, right, *axes.get_xlim(), axes.get_xscale() == "log")
    y = (height - bottom, height - top, *axes.get_ylim(), axes.get_yscale() == "log")
    ends = {key: [float(f"{n:.6g}") for n in limits] for key, limits in (("x", x), ("y", y))}
    return json.dumps(ends, separators=(",", ":"))
