"""Pictures of a report: functions that draw a data frame on matplotlib axes.

Each artist of a variant has the variant's key as its `gid`, by which the page finds it. A name
without room is left out: the page shows it on hover.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.written import count, interval, size
from llama_ablate.files import disk
from llama_ablate.findings.answer import VariantCost
from llama_ablate.report.contents import BASELINE, Styles
from llama_ablate.terminal import visible

INK, GRID = "#262626", "#dddddd"
#: Matplotlib marker of each verdict; markers of `better` and `worse` point to their side of 0.
MARKERS = {
    **dict.fromkeys(("better", "lower together"), "<"),
    **dict.fromkeys(("worse", "higher together"), ">"),
    **dict.fromkeys(("equivalent", "equal", "add up"), "s"),
    **dict.fromkeys(("diverged", "collapsed", "failed"), "X"),
    "baseline": "D",
    "too short": "^",
}
#: Most lines, points of a line and thin lines of single runs in a picture, and named rows.
MAX_LINES, MAX_POINTS, MAX_RUNS, MAX_ROWS = 200, 100, 64, 60
_MAX_BARS = 40  # most points with intervals in a picture of costs
_MAX_LETTERS = 18  # most letters of a name inside a picture
POINTS = 8.5  # font size
WIDTH, HEIGHT = 5.2, 2.9  # size in inches, at 72 pixels an inch
#: Matplotlib settings of files, so that equal figures give equal bytes.
_FILES: Mapping[str, Any] = {
    "svg.hashsalt": "llama_ablate",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "path.simplify_threshold": 0.5,
}


# ---- rows with intervals


def find_limit(rows: pd.DataFrame) -> float:
    """Return the limit of an axis of differences: the largest end, unless it hides most others."""
    ends = rows[["difference", "low", "high"]].abs().max(axis=1)
    sorted_ends = np.sort(ends[np.isfinite(ends) & (ends > 0)])
    if not len(sorted_ends):
        return 1.0
    most = sorted_ends[-1]
    if np.median(sorted_ends) < most / 8:
        most = sorted_ends[sorted_ends < most / 2][-1]
    return 1.08 * float(most)


def effects(
    rows: pd.DataFrame,
    ax: Axes,
    styles: Styles | None = None,
    *,
    margin: float | None = None,
    seeds: Mapping[str, Sequence[float]] | None = None,
    unit: str = "nats",
) -> None:
    """Draw each row's difference from the baseline with its interval; left is better.

    The first column that names variants, effects or steps labels the rows. `margin` is half the
    width of a grey band around 0; `seeds` are the differences of single seeds, drawn as strokes.
    """
    name = next(key for key in ("effect", "step", "variant") if key in rows)
    styles = styles or Styles.of([*rows[name]])
    rows, left = rows.head(MAX_ROWS), len(rows) - MAX_ROWS
    most = find_limit(rows)
    if margin:
        ax.axvspan(-margin, margin, color=GRID, alpha=0.5, lw=0)
    ax.axvline(0, color=BASELINE, lw=0.8)
    for y, row in enumerate(rows.to_dict("records")):
        colour = styles.colour(row[name]) if name == "variant" else INK
        artists = _draw_row(ax, y, row, most, colour)
        strokes = [at for at in (seeds or {}).get(row[name], ()) if abs(at) <= most]
        artists += ax.plot(strokes, [y - 0.3] * len(strokes), "|", color=colour, ms=4, mew=0.7)
        tag(artists, styles.key(row[name]))
    ax.set_yticks(range(len(rows)), [shorten(text, 30) for text in rows[name]])
    more = f" ({left:,} more rows)" if left > 0 else ""
    ax.set(
        ylim=(len(rows) - 0.4, -0.6), xlabel=f"difference in loss ({unit}); left is better{more}"
    )
    ax.grid(axis="y", visible=False)


def _draw_row(ax: Axes, y: int, row: Mapping[Any, Any], most: float, colour: str) -> list[Artist]:
    """Draw the interval and mark of a row; a row beyond the axis is written instead."""
    difference, low, high = row["difference"], row["low"], row["high"]
    if math.isnan(difference):
        return [ax.text(0, y, f" {row['verdict']}", va="center", color=BASELINE)]
    if abs(difference) > most:
        side: dict[str, Any] = {
            "x": math.copysign(most, difference),
            "ha": "right" if difference > 0 else "left",
        }
        return [ax.text(y=y, s=interval(difference, low, high), va="center", **side)]
    marker = MARKERS.get(str(row["verdict"]), "o")
    ends = [max(low, -most), min(high, most)]
    if row.get("lost"):  # the mark rests on the other runs
        ax.annotate(
            row["outcome"],
            (difference if math.isnan(ends[1]) else ends[1], y),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=BASELINE,
        )
    return [
        *ax.plot(ends, [y, y], color=colour, lw=1.8),
        *ax.plot(difference, y, marker, color=colour, ms=5),
    ]


# ---- lines along training


def loss_curves(
    curves: pd.DataFrame,
    ax: Axes,
    styles: Styles | None = None,
    *,
    reported: Mapping[str, float] | None = None,
    unit: str = "nats per token",
    text: str = "training tokens",
) -> None:
    """Draw the median training loss of each variant's seeds, and single runs thinly.

    Medians are averaged over a fifteenth of a run, since a training loss is of one batch. The
    vertical axis shows the last four fifths of training. `reported` are losses on held-out text,
    drawn as diamonds at the end.
    """
    curves = _with_defaults(curves, train="train_loss_nats").dropna(subset=["train"])
    styles = styles or Styles.of([*curves["variant"].unique()])
    last = curves["read"].max()
    names = [*curves["variant"].unique()]
    chosen = {*names[:: len(names) // MAX_LINES + 1], *styles.named}
    has_runs = curves["run"].nunique() <= MAX_RUNS
    smooth = {}
    for name, points in group(curves[curves["variant"].isin(chosen)], "variant"):
        median = thin(points.groupby("read")["train"].median())
        smooth[name] = median.rolling(len(median) // 15 or 1, center=True, min_periods=1).mean()
        colour, is_named = styles.colour(name), name in styles.named
        strength: dict[str, Any] = {"lw": 1.8 if is_named else 0.5, "alpha": 1 if is_named else 0.5}
        lines = ax.plot(smooth[name], color=colour, zorder=2 + is_named, **strength)
        for _, run in points.groupby("run") if has_runs else ():
            curve = thin(run.set_index("read")["train"], MAX_POINTS // 2)
            lines += ax.plot(curve, color=colour, lw=0.5, alpha=0.2, zorder=1)
        tag(lines, styles.key(name))
    late = pd.concat([line[line.index >= last / 5] for line in smooth.values()])
    ends = {name: loss for name, loss in (reported or {}).items() if name in styles.named}
    for name, loss in ends.items():
        options: dict[str, Any] = {
            "color": styles.colour(name),
            "mec": "#ffffff",
            "mew": 0.5,
            "ms": 4.5,
        }
        tag(ax.plot(last, loss, "D", clip_on=False, zorder=5, **options), styles.key(name))
    _limit(ax, [*late, *ends.values()])
    ax.set(xlim=(0, last), xlabel=text, ylabel=f"training loss ({unit})")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    name_ends(ax, {name: smooth[name].iloc[-1] for name in styles.named if name in smooth}, styles)


def learning_curves(
    curves: pd.DataFrame,
    ax: Axes,
    styles: Styles | None = None,
    *,
    baseline: str = "baseline",
    unit: str = "nats",
    text: str = "training tokens",
) -> None:
    """Draw the difference in validation loss from the baseline along training.

    Differences are from the baseline's run of the same seed: means, with Student's 95% intervals.
    The loss is on 8,192 tokens.
    """
    curves = _with_defaults(curves, validation="validation_loss_nats")
    styles = styles or Styles.of([*curves["variant"].unique()], baseline)
    losses = curves[curves["outcome"] == "ok"].pivot_table(
        index=["read", "seed"], columns="variant", values="validation"
    )
    names = [name for name in styles.named if name in losses and name != baseline]
    differences = losses[names].sub(losses[baseline], axis=0)
    long = differences.reset_index().melt(["read", "seed"], names, "variant", "value")
    means = _average(long, ["variant", "read"])
    ax.axhline(0, color=BASELINE, lw=0.8)
    ends = draw_lines(means, ax, styles, "variant", "read", "mean", "-")
    late = means[means["read"] >= means["read"].max() / 5]
    _limit(ax, [0, *late["mean"], *late["low"], *late["high"]], share=0.02)
    ax.set(xlabel=text, ylabel=f"difference in loss ({unit})")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    name_ends(ax, ends, styles)


def lengths(
    rows: pd.DataFrame, ax: Axes, styles: Styles | None = None, *, unit: str = "nats"
) -> None:
    """Draw each row's difference from the baseline by the length of training, with intervals."""
    styles = styles or Styles.of([*rows["name"].unique()])
    _draw_differences(rows, ax, styles, "name", "tokens")
    ax.set(xlabel="training tokens of the run", ylabel=f"difference in loss ({unit})")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def thin(line: pd.Series, most: int = MAX_POINTS) -> pd.Series:
    """Return at most `most` + 1 evenly spaced points of a line, with its last."""
    step = len(line) // most + 1
    return line.iloc[sorted({*range(0, len(line), step), len(line) - 1})]


def _with_defaults(curves: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Add the columns of `TableContents.curves` to a frame of `OpenedResults.curves`."""
    columns = {"read": "tokens", **names}
    return curves.assign(**{new: curves[old] for new, old in columns.items() if new not in curves})


def group(rows: pd.DataFrame, by: str, along: str = "") -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each variant, or of another column's values, sorted by a column `along`."""
    for name, line in rows.groupby(by, sort=False):
        yield str(name), line.sort_values(along) if along else line


def _average(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return means of `value` by some keys, with Student's 95% intervals over rows, if several."""
    groups = rows.dropna(subset=["value"]).groupby(keys, sort=False)["value"]
    counts, mean = groups.count(), groups.mean()
    half = groups.sem() * [float(quantile(0.975, n - 1)) if n > 1 else math.nan for n in counts]
    columns = {"mean": mean, "low": mean - half, "high": mean + half, "n": counts}
    return pd.DataFrame(columns).reset_index()


def _limit(ax: Axes, values: Sequence[float], share: float = 0.06) -> None:
    """Set the vertical limits to the range of finite values, with a margin."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and max(finite) > min(finite):
        room = share * (max(finite) - min(finite))
        ax.set_ylim(min(finite) - room, max(finite) + room)


# ---- differences and losses along another axis


def draw_lines(
    rows: pd.DataFrame, ax: Axes, styles: Styles, by: str, x: str, y: str, form: str = "o-"
) -> dict[str, float]:
    """Draw a line for each named variant along a column; return the lines' ends by name.

    `by`, `x` and `y` are columns. Rows with columns `low` and `high` have a band of intervals.
    """
    ends = {}
    for name, line in group(rows[rows[by].isin(styles.named)], by, x):
        colour = styles.colour(name)
        artists: list[Artist] = [*ax.plot(line[x], line[y], form, color=colour, ms=3.5, lw=1.4)]
        if "low" in line:
            artists.append(
                ax.fill_between(line[x], line["low"], line["high"], color=colour, alpha=0.15, lw=0)
            )
        tag(artists, styles.key(name))
        ends[name] = float(line[y].iloc[-1])
    return ends


def _draw_differences(rows: pd.DataFrame, ax: Axes, styles: Styles, by: str, x: str) -> None:
    """Draw differences with bars of intervals, a line for each variant."""
    ax.axhline(0, color=BASELINE, lw=0.8)
    for name, line in group(rows[rows[by].isin(styles.named)], by):
        bars = ax.vlines(line[x], line["low"], line["high"], color=styles.colour(name), lw=0.8)
        tag([bars], styles.key(name))
    plain = rows.drop(columns=["low", "high"])
    name_ends(ax, draw_lines(plain, ax, styles, by, x, "difference"), styles)


def gaps(rows: pd.DataFrame, ax: Axes, styles: Styles | None = None, *, unit: str = "nats") -> None:
    """Draw each variant's difference from the baseline by model size, with intervals."""
    rows = rows[~rows["baseline"] & (rows["role"] == "") & rows["difference"].notna()]
    styles = styles or Styles.of([*rows["variant"].unique()])
    _draw_differences(rows, ax, styles, "variant", "non_embedding")
    ax.set(ylabel=f"loss minus the baseline's ({unit})")
    _rule_sizes(ax)


def sizes(
    rows: pd.DataFrame, ax: Axes, styles: Styles | None = None, *, unit: str = "nats per token"
) -> None:
    """Draw each variant's loss by model size."""
    rows = rows[(rows["role"] == "") & rows["loss"].notna()]
    styles = styles or Styles.of([*rows["variant"].unique()])
    plain = rows[["variant", "non_embedding", "loss"]]
    ends = draw_lines(plain, ax, styles, "variant", "non_embedding", "loss")
    ax.set(ylabel=f"loss ({unit})")
    _rule_sizes(ax)
    name_ends(ax, ends, styles)


def _rule_sizes(ax: Axes) -> None:
    ax.set(xscale="log", xlabel="parameters without embeddings")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    ax.xaxis.set_minor_formatter(NullFormatter())


def tuning(
    rates: pd.DataFrame,
    ax: Axes,
    styles: Styles | None = None,
    *,
    unit: str = "nats per token",
    by: str = "label",
) -> None:
    """Draw the mean loss of each variant by learning rate; the ring marks the chosen rate.

    `rates` has a row for each variant (or model size: the column `by`), seed and rate.
    """
    styles = styles or Styles.of([*rates[by].unique()])
    tried = rates.rename(columns={"loss": "value"})
    means = _average(tried, [by, "lr"])[[by, "lr", "mean"]]
    ends = draw_lines(means, ax, styles, by, "lr", "mean")
    for name, ring in group(_average(tried[tried["best"].astype(bool)], [by, "lr"]), by):
        if name in styles.named:
            options: dict[str, Any] = {"ms": 9, "mfc": "none", "color": styles.colour(name)}
            tag(ax.plot(ring["lr"], ring["mean"], "o", **options), styles.key(name))
    low, high = means["mean"].min(), means["mean"].quantile(0.9)
    _limit(ax, [low, high + 0.1 * (high - low)])
    ax.set(xscale="log", xlabel="learning rate", ylabel=f"loss ({unit})")
    places = sorted(means["lr"].unique())
    ax.set_xticks(places, [f"{place:g}" for place in places])
    ax.minorticks_off()
    name_ends(ax, ends, styles)


def cache_growth(state: pd.DataFrame, ax: Axes, styles: Styles | None = None) -> None:
    """Draw the bytes of one sequence's state by its length, in 16-bit numbers."""
    styles = styles or Styles.of([*state["variant"].unique()])
    ends = draw_lines(state, ax, styles, "variant", "context", "bytes", "-")
    ax.set(xlabel="context (tokens)", ylabel="state of one sequence")
    for axis, scale, write in (
        (ax.xaxis, ax.set_xscale, count),
        (ax.yaxis, ax.set_yscale, size),
    ):
        scale("log", base=2)
        axis.set_major_formatter(FuncFormatter(lambda value, _, write=write: write(value)))
        axis.set_minor_formatter(NullFormatter())
    name_ends(ax, ends, styles)


# ---- costs


def costs(
    rows: pd.DataFrame,
    ax: Axes,
    cost: VariantCost,
    styles: Styles | None = None,
    *,
    unit: str = "nats",
) -> None:
    """Draw differences in loss against a cost; low and left is better.

    The dotted steps are the Pareto front: no other variant is better in both.
    """
    styles = styles or Styles.of([*rows["variant"]])
    x = cost.read(rows)
    rows = rows.assign(x=x["value"], left=x["low"], right=x["high"])
    rows = rows[rows["difference"].notna() & rows["x"].notna()].sort_values(["x", "difference"])
    most = find_limit(rows)
    ax.axhline(0, color=BASELINE, lw=0.8, zorder=1)
    before = rows["difference"].cummin().shift(fill_value=math.inf)
    front = rows[rows["difference"] < before]
    steps: dict[str, Any] = {"where": "post", "color": BASELINE, "lw": 0.7, "ls": ":", "zorder": 1}
    ax.step(
        [*front["x"], rows["x"].max()],
        [*front["difference"], front["difference"].min()],
        **steps,
    )
    has_bars = len(rows) <= _MAX_BARS
    for row in rows.to_dict("records"):
        colour, marker = styles.colour(row["variant"]), MARKERS.get(row["verdict"], "o")
        place = (row["x"], row["difference"])
        artists = ax.plot(*place, marker, color=colour, ms=6 if has_bars else 3.5)
        if has_bars and abs(row["difference"]) <= most:
            artists += ax.plot([row["x"]] * 2, [row["low"], row["high"]], color=colour, lw=1)
            artists += ax.plot(
                [row["left"], row["right"]], [row["difference"]] * 2, color=colour, lw=1
            )
        tag(artists, styles.key(row["variant"]))
    ends = [rows["low"].min(), rows["high"].max(), -0.05 * most, 0.05 * most]
    _limit(ax, [max(-most, min(most, end)) for end in ends], share=0.1)
    ax.set(xlabel=cost.title, ylabel=f"difference in loss ({unit})")
    ax.margins(x=0.1)
    _rule_costs(ax, cost)
    best = rows[rows["variant"].isin([*front["variant"], *styles.named])]
    name_points(ax, rows, best, styles)


def _rule_costs(ax: Axes, cost: VariantCost) -> None:
    """Set the ticks of an axis of costs: bytes at multiples of a power of two."""
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if cost.kind == "speed":
        return
    low, high = ax.get_xlim()
    if cost.kind == "bytes":
        step = 2 ** math.floor(math.log2((high - low) / 2.5))
        ax.set_xticks(np.arange(math.ceil(low / step), high / step) * step)
    write = size if cost.kind == "bytes" else count
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


# ---- values of metrics


def metrics(rows: pd.DataFrame, ax: Axes, styles: Styles | None = None, *, along: str = "") -> None:
    """Draw the values of one quantity: means over seeds with Student's 95% intervals.

    `rows` are rows of `OpenedResults.metrics`. With `along`, a column of coordinates such as
    `context`, a variant is a line; else it is a row.
    """
    styles = styles or Styles.of([*rows["variant"].unique()])
    means = _average(rows, ["variant", *([along] if along else [])])
    if not rows["value"].min() < 0:
        means["low"] = means["low"].clip(lower=0)
    quantity, unit = rows["quantity"].iloc[0], rows["unit"].iloc[0]
    title = quantity.replace("_", " ") + (f" ({unit})" if unit else "")
    values = rows["value"]
    is_wide = values.min() > 0 and values.max() > 50 * values.min()
    scale = "log" if is_wide else "linear"
    if not along:
        for y, row in enumerate(means.to_dict("records")):
            colour = styles.colour(row["variant"])
            artists = ax.plot([row["low"], row["high"]], [y, y], color=colour, lw=1.8)
            artists += ax.plot(row["mean"], y, "o", color=colour, ms=5)
            tag(artists, styles.key(row["variant"]))
        ax.set_yticks(range(len(means)), [shorten(name, 30) for name in means["variant"]])
        ax.set(xlabel=title, xscale=scale, ylim=(len(means) - 0.4, -0.6))
        _rule_values(ax.xaxis, unit)
        return
    ends = draw_lines(means, ax, styles, "variant", along, "mean")
    places = np.sort(means[along].unique())
    is_steep = len(places) > 2 and places[0] > 0 and np.median(places[1:] / places[:-1]) >= 1.5
    ax.set(xlabel=along.replace("_", " "), ylabel=title, yscale=scale)
    if is_steep:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    _rule_values(ax.yaxis, unit)
    name_ends(ax, ends, styles)


def _rule_values(axis: Axis, unit: str) -> None:
    write = size if unit == "bytes" else count
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_formatter(NullFormatter())


# ---- names


def tag(artists: Sequence[Artist], key: str) -> None:
    """Set the variant's key of artists, which `finish` makes unique in the file."""
    for artist in artists:
        artist.set_gid(key)


def shorten(name: object, most: int = _MAX_LETTERS) -> str:
    """Return a name cut to `most` letters, without control characters."""
    text = " ".join(visible(str(name)).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def name_ends(ax: Axes, ends: Mapping[str, float], styles: Styles) -> None:
    """Write names at the right ends of lines, each at least a line's height below the last."""
    bottom, top = ax.get_ylim()
    transform = ax.transScale + ax.transLimits
    at = {name: transform.transform((ax.get_xlim()[1], y))[1] for name, y in ends.items()}
    step = 1.25 * mpl.rcParams["font.size"] / (0.75 * ax.figure.bbox.height)
    places: dict[str, float] = {}
    for name, place in sorted(at.items(), key=lambda end: -end[1]):
        if math.isfinite(place) and bottom < top:
            places[name] = min([min(place, 1), *(other - step for other in places.values())])
    up = max(0, -min(places.values(), default=0))
    for name, place in places.items():
        text = ax.annotate(
            shorten(name),
            (1, place + up),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=styles.colour(name),
        )
        tag([text], styles.key(name))


def name_points(ax: Axes, points: pd.DataFrame, wanted: pd.DataFrame, styles: Styles) -> None:
    """Name points at a side where no other name or point is; the others are left to hover."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    letter = 0.62 * mpl.rcParams["font.size"] * figure.dpi / 72
    taken = ax.transData.transform(points[["x", "difference"]].to_numpy(float))
    has_widths = bool((points["right"] > points["left"]).any())  # a name would cover the bar
    boxes: list[tuple[float, float, float, float]] = []
    for name, place in zip(
        wanted["variant"], wanted[["x", "difference"]].to_numpy(float), strict=True
    ):
        text, (x, y) = shorten(name), ax.transData.transform(place)
        for dx, dy in itertools.product((8, -8), (9, -9) if has_widths else (0, 9, -9)):
            left = x + dx - (dx < 0) * letter * len(text)
            box = (left, y + dy - letter, left + letter * len(text), y + dy + letter)
            if _is_free(box, ax, taken, boxes):
                boxes.append(box)
                options: dict[str, Any] = {"ha": "left" if dx > 0 else "right", "va": "center"}
                label = ax.annotate(
                    text,
                    (place[0], place[1]),
                    xytext=(dx, dy),
                    textcoords="offset points",
                    **options,
                )
                label.set_in_layout(False)
                tag([label], styles.key(name))
                break


def _is_free(
    box: tuple[float, float, float, float],
    ax: Axes,
    points: np.ndarray,
    boxes: Sequence[tuple[float, float, float, float]],
) -> bool:
    """Return whether a box lies inside the axes, and covers no point and no other box."""
    left, bottom, right, top = box
    inside = ax.bbox.x0 <= left and right <= ax.bbox.x1
    inside = inside and ax.bbox.y0 <= bottom and top <= ax.bbox.y1
    is_hit = ((points > box[:2]) & (points < box[2:])).all(axis=1).any()
    return bool(
        inside
        and not is_hit
        and all(
            right <= other[0] or other[2] <= left or top <= other[1] or other[3] <= bottom
            for other in boxes
        )
    )


# ---- figures and files


@contextmanager
def style(points: float = POINTS) -> Iterator[None]:
    """Set seaborn's white-grid style with a font size in points."""
    sizes_of = ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize")
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys((*sizes_of, "ytick.labelsize"), points) | dict.fromkeys(inks, INK)
    settings |= {"axes.spines.right": False, "axes.spines.top": False, "grid.color": GRID}
    settings |= {"axes.edgecolor": GRID, "text.parse_math": False}
    with sns.axes_style("whitegrid"), mpl.rc_context(settings), _quiet():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters without a glyph, which it draws as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def canvas(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure of a size in inches and its axes, in the report's style.

    The figure is made without pyplot, so that it needs no display and need not be closed.
    """
    with style():
        figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()


def blank(width: float, height: float) -> Figure:
    """Return a figure of a size in inches without axes."""
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw(
    picture: Callable[..., None],
    frame: pd.DataFrame,
    *given: Any,
    title: str = "",
    width: float = WIDTH,
    height: float = HEIGHT,
    points: float = POINTS,
    **options: Any,
) -> Figure:
    """Return a figure with one picture of a frame."""
    with style(points):
        figure, ax = canvas(width, height)
        ax.grid(axis="x", visible=picture in (effects, metrics))
        if title:
            ax.set_title(shorten(title, 60), loc="left")
        picture(frame, ax, *given, **options)
    return figure


def finish(figure: Figure) -> Figure:
    """Make the ids of a figure's artists unique, and its texts printable."""
    with _quiet():
        tagged = figure.findobj(lambda artist: bool(artist.get_gid()))
        for number, artist in enumerate(tagged):
            key = str(artist.get_gid()).partition(".")[0]
            artist.set_gid(f"{key}.{number}")
        for text in figure.findobj(Text):
            if isinstance(text, Text) and "$\\mathdefault" not in text.get_text():
                text.set_parse_math(False)
                text.set_text(visible(text.get_text()))
    return figure


def save(figure: Figure, path: Path, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write a figure as files of some kinds, each atomically; return their paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png", ".pdf") else path
    disk.make(path.parent)
    paths = []
    for kind in kinds:
        paths.append(base.with_name(f"{base.name}.{kind}"))
        disk.replace(paths[-1], write(figure, kind))
    return paths


def write(figure: Figure, kind: str, salt: str = "") -> bytes:
    """Return a figure as SVG, PDF or PNG; equal figures give equal bytes.

    `salt` makes the ids inside an SVG differ from other SVGs'.
    """
    kinds: Mapping[str, Mapping[str, Any]] = {
        "svg": {"metadata": {"Date": None}},
        "pdf": {"metadata": {"CreationDate": None}},
        "png": {"dpi": 144},
    }
    buffer = BytesIO()
    settings: Any = {**_FILES, "svg.hashsalt": f"llama_ablate{salt}"}
    with mpl.rc_context(settings), _quiet():
        finish(figure).savefig(buffer, format=kind, **kinds[kind])
    return buffer.getvalue()
