"""Everything that was measured: the values of each variant, what is missing, a figure a metric."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from llama_ablate.evidence.student import not_negative
from llama_ablate.findings import comparison
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import frame as of_rows
from llama_ablate.findings.tuning import first_split
from llama_ablate.report.drawing import (
    BASELINE,
    COLOURS,
    Cast,
    binary,
    cast,
    differ,
    ends,
    grid,
    legend,
    lines,
    note,
    over,
    over_seeds,
    remark,
)
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import listed, visible

#: Their losses are what the tables and the other figures are about.
_ELSEWHERE = {"perplexity"}
#: Quantities that say how sure another is, or that it is computed from.
_OF_OTHERS = ("_se", "_by_document")
_UNITS = {"context": "tokens", "tokens": "training", "last_position": "tokens"}
_COLUMNS, _PANELS, _ROWS = 3, 12, 40  # of a figure, and of the variants beside a panel
_TICKS = 8  # at most, one for each place
_STEEP = 1.5  # from one place to the next, from where on an axis is logarithmic
_AT = "at"  # the column of the coordinate
_LARGE, _SHORT = 1e4, EngFormatter(places=1, sep="")  # ticks: 1.2M
_WIDE = 50  # times the lowest, beyond which an axis is logarithmic


@dataclass(frozen=True)
class Panel:
    """A quantity by variant, along a coordinate or alone."""

    #: The quantity in words, with its unit, and at which other coordinates.
    quantity: str
    at: str
    #: The coordinate that it is drawn along; "" for one value a variant.
    along: str
    #: Columns: `label, at, mean, low, high, n`; `at` is the coordinate.
    points: pd.DataFrame
    #: Whether the values are ratios to the baseline, with intervals over processes.
    timed: bool


def of_reported(table: TableFrames) -> pd.DataFrame:
    """Return the measured values of variants, and of their reported runs that ended ok."""
    ok = table.reported.loc[table.reported["outcome"] == "ok", "id"]
    return table.metrics[table.metrics["run"].isin(["", *ok])]


def reasons(table: TableFrames) -> list[str]:
    """Say which metrics were not measured of which variants, and why."""
    ok = table.reported.loc[table.reported["outcome"] == "ok", "id"]
    failed = table.attempts[table.attempts["error"] != ""]
    failed = failed[failed["run"].isin(["", *ok])]
    said = []
    for (metric, error), own in failed.groupby(["metric", "error"], sort=False):
        labels = [f"'{label}'" for label in dict.fromkeys(own["label"])]
        said.append(f"{metric} of {listed(labels)}: {error}.")
    return said


def figures(frames: Frames) -> dict[str, Figure]:
    """Draw what a metric measured of each variant.

    The mean over seeds: lines along a coordinate, marks where there is one value. Speeds are
    relative to the baseline's, turn by turn, with intervals over processes. A quantity in which no
    variant differs is left out.
    """
    table, shown = frames.table, cast(frames.table)
    values = of_reported(table)
    values = values[values["label"].isin(shown.all) & ~values["metric"].isin(_ELSEWHERE)]
    drawn = {}
    for metric, own in values.groupby("metric", sort=False):
        panels = [panel for panel in _panels(table, own) if _tells(panel)]
        along = [panel for panel in panels if panel.along]
        alone = [panel for panel in panels if not panel.along]
        if along:
            drawn[str(metric)] = _figure(str(metric), along, shown, table)
        if alone:
            name = f"{metric}_by_variant" if along else str(metric)
            drawn[name] = _figure(str(metric), alone, shown, table)
    return drawn


def _tells(panel: Panel) -> bool:
    """Return whether variants differ anywhere, or a single one along its coordinate."""
    points = panel.points
    single = len(set(points["label"])) == 1
    places = [(0, points)] if single else points.groupby(_AT)
    return any(differ(own["mean"]) for _, own in places)


def _panels(table: TableFrames, metric: pd.DataFrame) -> Iterator[Panel]:
    """Yield what to draw of one metric: a panel for each quantity, and each place that is apart."""
    # A mean over layers may stand beside the layers, in a row without that coordinate.
    coordinates = metric["coordinates"].map(lambda at: tuple(sorted(at)))
    for (name, _), own in metric.groupby(["quantity", coordinates], sort=False):
        quantity = str(name)
        if quantity.endswith(_OF_OTHERS):
            continue
        at = pd.DataFrame(list(own["coordinates"]), index=own.index)
        if "split" in at and (split := first_split(at["split"])):
            at = at[at["split"] == split]
        at = at[[c for c in at if len(set(at[c])) > 1]]
        along = _along(at)
        apart = [str(c) for c in at if c != along and not (along and _follows(at, str(c), along))]
        where = [
            ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in apart)
            for row in at.to_dict("records")
        ]
        place = own.loc[at.index].assign(**{_AT: at[along] if along else 0})
        for at_place, there in place.groupby(pd.Series(where, at.index), sort=False):
            timed = _is_timed(there)
            points = _ratios(table, there) if timed else _means(there)
            if len(points):
                title = _titled(quantity, there["unit"].iloc[0], timed=timed)
                yield Panel(title, str(at_place), along, points, timed)


def _along(at: pd.DataFrame) -> str:
    """Return the numeric coordinate of most places; "" where there is none.

    Of coordinates that count alike (first and last position, share and tokens) the last.
    """
    numeric = [str(c) for c in at if pd.api.types.is_numeric_dtype(at[c])]
    return max(reversed(numeric), key=lambda c: len(set(at[c])), default="")


def _follows(at: pd.DataFrame, coordinate: str, along: str) -> bool:
    """Return whether a coordinate is known from another."""
    return len(at[[along, coordinate]].drop_duplicates()) == len(set(at[along]))


def _titled(quantity: str, unit: str, *, timed: bool) -> str:
    """Name a quantity with its unit."""
    words = quantity.replace("_", " ")
    if timed:
        return f"{words}, times the baseline's"
    return f"{words} ({unit})" if unit else words


def _is_timed(own: pd.DataFrame) -> bool:
    """Return whether values of variants are speeds, which differ from turn to turn."""
    return bool((own["run"] == "").all()) and any(len({*s}) > 1 for s in own["samples"])


def _means(own: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds; what is a variant's own has one value, over none.

    Where no value is below 0, as of shares, times and norms, no interval reaches below it. What is
    in nats may be a difference of losses, and keeps Student's interval.
    """
    means = over_seeds(own.assign(seed=own["seed"].fillna(0)), ["label", _AT], "value")
    if (own["unit"] != NATS.name).all() and not (own["value"] < 0).any():
        means["low"], means["high"] = not_negative(means["mean"], means["high"] - means["mean"])
    return means.assign(n=0) if (own["run"] == "").all() else means


def _ratios(table: TableFrames, own: pd.DataFrame) -> pd.DataFrame:
    """Return speeds as ratios to the baseline's at the same place, with intervals."""
    base = own[own["variant"] == table.plan.baseline.id]
    of_base = dict(zip(base[_AT], base["by_process"], strict=True))
    found = []
    for label, at, turns in zip(own["label"], own[_AT], own["by_process"], strict=True):
        ratio = comparison.speed_ratio(turns, of_base.get(at, ()))
        found.append((label, at, ratio.value, ratio.low, ratio.high, ratio.processes))
    points = pd.DataFrame(found, columns=["label", _AT, "mean", "low", "high", "n"])
    points.loc[points["label"] == table.plan.baseline.label, ["low", "high"]] = math.nan
    return points.dropna(subset="mean")


def _figure(metric: str, panels: list[Panel], shown: Cast, table: TableFrames) -> Figure:
    """Draw the panels of a metric that are all lines, or all marks."""
    left_out, panels = len(panels) - _PANELS, panels[:_PANELS]
    columns = min(len(panels), _COLUMNS)
    if panels[0].along:
        figure, every = grid(len(panels), 4.2, 3.4, columns=columns)
        for axes, panel in zip(every, panels, strict=True):
            _lines(axes, panel, shown)
        legend(*every[columns:], *every[:columns])
        about = shown.remark
    else:
        present = {label for panel in panels for label in panel.points["label"]}
        labels, about = _rows(table, present)
        size = (4.2, 1.2 + 0.28 * len(labels))
        figure, every = grid(len(panels), *size, columns=columns, rows=labels)
        for axes, panel in zip(every, panels, strict=True):
            _marks(axes, panel, labels, table.plan.baseline.label)
    for axes, panel in zip(every, panels, strict=True):
        axes.set_title(panel.at, fontsize=9)
    remark(every[0], about)
    more = f"{left_out:,} more panels are left out." if left_out > 0 else ""
    note(figure, f"Metric: {metric}.", _bars(panels), more)
    return figure


def _bars(panels: list[Panel]) -> str:
    """Say over what the intervals are."""
    counts = [n for panel in panels for n in panel.points["n"]]
    if not any(counts):
        return "One value a variant: no intervals."
    if not panels[0].timed:
        return over(counts)
    if max(counts) < 2:
        return "One process: no intervals."
    return f"Bars are 95% intervals over n = {max(counts):.0f} processes."


def _rows(table: TableFrames, present: set[str]) -> tuple[list[str], str]:
    """Return the labels that have a row of their own, as planned, and what is left out."""
    frame = of_rows(table.comparison)
    others, left_out = ends(frame[frame["label"].isin(present) & ~frame["baseline"]], "loss", _ROWS)
    kept = {*others["label"], table.plan.baseline.label} & present
    return [v.label for v in table.plan.variants if v.label in kept], left_out


def _marks(axes: Axes, panel: Panel, labels: list[str], base: str) -> None:
    """Draw a row for each variant; the line is where the baseline stands."""
    points = panel.points.set_index("label").reindex(labels)
    if base in points.index:
        axes.axvline(float(points["mean"][base]), color=BASELINE, lw=0.8, zorder=1)
    spread = [points["mean"] - points["low"], points["high"] - points["mean"]]
    y = np.arange(len(labels))
    axes.errorbar(points["mean"], y, xerr=spread, fmt="o", ms=5, color=COLOURS[0], elinewidth=1.2)
    axes.set_yticks(y, [visible(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set(xlabel=panel.quantity)
    if _is_wide(panel):
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=3 if panel.quantity.endswith("(bytes)") else 5)
    if panel.quantity.endswith("(bytes)"):
        axes.xaxis.set_major_formatter(FuncFormatter(binary))


def _lines(axes: Axes, panel: Panel, shown: Cast) -> None:
    """Draw a line for each variant."""
    at = np.sort(panel.points[_AT].unique())
    if len(at) > 2 and at[0] > 0 and np.median(at[1:] / at[:-1]) >= _STEEP:
        axes.set_xscale("log", base=2)
    if _is_wide(panel):
        axes.set_yscale("log")
    lines(axes, panel.points, _AT, shown)
    if panel.timed:
        axes.axhline(1, color=BASELINE, lw=0.8, zorder=1)
    if len(at) <= _TICKS:
        axes.set_xticks(at, [f"{x:,.6g}" if x < _LARGE else _SHORT(x) for x in at])
        axes.minorticks_off()
    words, unit = panel.along.replace("_", " "), _UNITS.get(panel.along, "")
    axes.set(xlabel=f"{words} ({unit})" if unit else words, ylabel=panel.quantity)


def _is_wide(panel: Panel) -> bool:
    """Return whether an axis must be logarithmic."""
    values = panel.points["mean"]
    return bool(values.min() > 0) and bool(values.max() > _WIDE * values.min())
