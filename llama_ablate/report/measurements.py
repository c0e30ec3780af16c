"""Metric values in a report: means per variant, missing values, and figures."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

from llama_ablate.evidence.medians import Turns, compare_column
from llama_ablate.evidence.student import not_negative
from llama_ablate.evidence.written import Estimate, plain
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import Row, frame, grouped
from llama_ablate.findings.tuning import first_split
from llama_ablate.findings.values import MetricRow
from llama_ablate.report.picture import (
    FIGURES,
    Axis,
    Dot,
    Dots,
    Lines,
    LineStyles,
    Picture,
    Point,
    choose_styles,
    differ,
    over,
    over_seeds,
)
from llama_ablate.results.plan_document import NATS
from llama_ablate.results.record import Coordinate
from llama_ablate.terminal import listed

_MANY = 12  # variants beyond which a table with a column for each is too wide
#: Metrics without a figure here, since comparison tables and other figures show them.
_ELSEWHERE = {"perplexity"}
#: Endings of quantities that are a standard error, or the single values behind another quantity.
_OTHER_ENDINGS = ("_se", "_by_document")
_UNITS = {"context": "tokens", "tokens": "training", "last_position": "tokens"}
_COLUMNS, _PANELS = 2, 12  # most columns and panels of a figure
_STEEP = 1.5  # median ratio of neighbouring coordinates from which the x axis is logarithmic
_WIDE = 50  # ratio of highest to lowest value beyond which the value axis is logarithmic


def find_measured(frames: Frames) -> Sequence[MetricRow]:
    """Return all metric values, or an empty sequence if no reported run has any."""
    means = (row for table in frames.tables for row in reported_rows(table))
    return frames.metrics if any(not math.isnan(row.value) for row in means) else ()


def note_unmeasured(frames: Frames, _rows: Sequence[Row]) -> str:
    """Write the note below the metrics section: its contents, and missing metrics with reasons."""
    missing = dict.fromkeys(why for table in frames.tables for why in reasons(table))
    return f"""Everything that was measured, as the mean over a variant's reported runs that ended
        ok. The values of each run are in tables/metrics.csv.
        {"Not measured: " * bool(missing)}{" ".join(missing)}"""


def average(frames: Frames) -> pd.DataFrame:
    """Return formatted means of all metric values over each variant's reported runs."""
    return means_of([row for table in frames.tables for row in reported_rows(table)])


def means_of(values: Sequence[MetricRow]) -> pd.DataFrame:
    """Return formatted means over runs, with metric values as rows and variants as columns.

    With more than twelve variants, the columns are the first variant, and the lowest and highest
    mean with their variants.
    """
    names = ["table", "metric", "name"]
    rows = frame(values, MetricRow).dropna(subset="value")
    for name in (*names, "label"):  # keep the order of first appearance
        rows[name] = pd.Categorical(rows[name], rows[name].unique())
    means = rows.pivot_table("value", names, "label", observed=True)
    texts = means.map(lambda value: plain(value, 5))
    if len(means.columns) > _MANY:
        texts = texts.iloc[:, :1].copy()
        for title, ends, at in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            both = zip(ends, at, strict=True)
            texts[title] = [f"{plain(value, 5)} ({label})" for value, label in both]
    places = means.index.to_frame(index=False).astype(str)
    places = places[["name", *["table"] * bool(places["table"].any()), "metric"]]
    texts.columns = [f"{title} (variant)" if title in places else title for title in texts]
    return pd.concat([places, texts.reset_index(drop=True)], axis=1)


def reported_rows(table: TableFrames) -> list[MetricRow]:
    """Return all values of per-variant metrics, and the values of reported runs that ended ok."""
    ok = _ok(table)
    return [row for row in table.metrics if row.run in ok]


def _ok(table: TableFrames) -> set[str]:
    """Return the ids of reported runs that ended ok, and "".

    The empty string is the run id of per-variant values.
    """
    return {"", *(run.id for run in table.reported if run.outcome == "ok")}


def reasons(table: TableFrames) -> list[str]:
    """List failed metrics with their variants and error messages, one sentence each."""
    ok = _ok(table)
    failed = [row for row in table.attempts if row.error and row.run in ok]
    said = []
    for (metric, error), rows in grouped(failed, lambda row: (row.metric, row.error)).items():
        labels = [f"'{label}'" for label in dict.fromkeys(row.label for row in rows)]
        said.append(f"{metric} of {listed(labels)}: {error}.")
    return said


@FIGURES.register("metrics", every_table=True)
def metrics_pictures(frames: Frames) -> dict[str, Picture]:
    """Show the values of a metric for each variant.

    A quantity in which no variant differs is left out; speeds are relative to the baseline's.
    """
    table, styles = frames.table, choose_styles(frames)
    values = [
        row
        for row in reported_rows(table)
        if row.label in styles.styles and row.metric not in _ELSEWHERE
    ]
    pictures: dict[str, Picture] = {}
    for metric, rows in grouped(values, lambda row: row.metric).items():
        quantities = [quantity for quantity in _quantities(table, rows) if _tells(quantity.points)]
        along = [quantity for quantity in quantities if quantity.along]
        alone = [quantity for quantity in quantities if not quantity.along]
        panel_name = f"{metric}_by_variant" if along else metric
        for name, kind in ((metric, along), (panel_name, alone)):
            if kind:
                pictures[name] = _picture(metric, kind, table, styles)
    return pictures


class _Quantity(NamedTuple):
    """Values of one quantity for all variants, for one panel of a figure."""

    name: str
    unit: str
    #: The panel's values of the coordinates that are not drawn, such as `layer 2`.
    place: str
    #: The coordinate on the x axis; "" if each variant has one value.
    along: str
    points: Sequence[Point]
    #: Whether the values are ratios to the baseline's values, with intervals over processes.
    is_timed: bool


def _picture(
    metric: str, quantities: Sequence[_Quantity], table: TableFrames, shown: LineStyles
) -> Picture:
    """Return a metric's figure: a panel per quantity, and a note on intervals."""
    counts = [point.n for quantity in quantities for point in quantity.points]
    bars = over(counts)
    if not any(counts):
        bars = "One value a variant: no intervals."
    elif quantities[0].is_timed:
        most = max(counts)
        bars = f"Bars are 95% intervals over n = {most} processes."
        bars = "One process: no intervals." if most < 2 else bars
    left = len(quantities) - _PANELS
    more = f"{left:,} more panels are left out." if left > 0 else ""
    note = " ".join(filter(None, (f"Metric: {metric}.", bars, more)))
    panels = [_panel(quantity, table, shown) for quantity in quantities[:_PANELS]]
    return Picture(panels, note=note, columns=min(len(panels), _COLUMNS))


def _quantities(table: TableFrames, metric: Sequence[MetricRow]) -> Iterator[_Quantity]:
    """Yield the quantities of a metric, one for each panel of the metric's figure.

    A numeric coordinate, such as `context`, becomes the x axis. Each combination of the other
    coordinates gets a panel, except for coordinates that the x coordinate determines.
    """
    # Group by coordinates, too: a mean over layers has no coordinate `layer`.
    groups = grouped(metric, lambda row: (row.quantity, tuple(sorted(row.coordinates))))
    for (quantity, _), every in groups.items():
        if quantity.endswith(_OTHER_ENDINGS):
            continue
        split = first_split(row.coordinates.get("split") for row in every)
        rows = [row for row in every if not split or row.coordinates.get("split") == split]
        at = {key: {row.coordinates[key] for row in rows} for key in rows[0].coordinates}
        at = {key: values for key, values in at.items() if len(values) > 1}
        along = _along(at)
        other_keys = [
            key for key in at if key != along and not (along and _follows(rows, key, along))
        ]

        def where(row: MetricRow, apart: Sequence[str] = other_keys) -> str:
            return ", ".join(f"{key.replace('_', ' ')} {row.coordinates[key]}" for key in apart)

        for place, there in grouped(rows, where).items():
            placed = [(row, float(row.coordinates[along]) if along else 0.0) for row in there]
            timed = _is_timed(there)
            points = _ratios(table, placed) if timed else _means(placed)
            if points:
                yield _Quantity(quantity, there[0].unit, place, along, points, timed)


def _tells(drawn: Sequence[Point]) -> bool:
    """Return whether the points of a panel show any difference.

    With several variants, their values must differ at some x; with a single variant, its values
    must differ along x.
    """
    single = len({point.name for point in drawn}) == 1
    by_place = grouped(drawn, lambda point: 0 if single else point.x)
    return any(differ(point.at.value for point in points) for points in by_place.values())


def _panel(one: _Quantity, table: TableFrames, shown: LineStyles) -> Lines | Dots:
    """Return the panel of a quantity: lines along a coordinate, or one mark per variant."""
    values = [point.at.value for point in one.points]
    is_wide = min(values) > 0 and max(values) > _WIDE * min(values)
    words = one.name.replace("_", " ")
    title = f"{words} ({one.unit})" if one.unit else words
    form = "bytes" if one.unit == "bytes" else ""
    if one.is_timed:
        title, form = f"{words}, times the baseline's", ""
    measured = Axis(title, form, log=is_wide)
    if one.along:
        at = np.array(sorted({point.x for point in one.points}))
        steep = len(at) > 2 and at[0] > 0 and float(median(at[1:] / at[:-1])) >= _STEEP
        place, unit = one.along.replace("_", " "), _UNITS.get(one.along, "")
        x = Axis(f"{place} ({unit})" if unit else place, log=steep)
        y = replace(measured, at=1 if one.is_timed else None)
        return Lines(one.points, x, y, shown, title=one.place)
    of = {point.name: point.at for point in one.points}
    marks = [Dot(label, of.get(label, Estimate())) for label in shown.styles]  # rows of all panels
    base = of.get(table.plan.baseline.label)
    x = replace(measured, at=base.value if base else None)
    return Dots(marks, x, title=one.place, styles=shown.styles)


def _along(at: Mapping[str, Collection[Coordinate]]) -> str:
    """Return the numeric coordinate with the most distinct values, or "" without any.

    If several coordinates have equally many values (such as `share` and `tokens`), return the last.
    """
    numeric = [key for key, of in at.items() if not any(isinstance(value, str) for value in of)]
    return max(reversed(numeric), key=lambda key: len(at[key]), default="")


def _follows(rows: Sequence[MetricRow], coordinate: str, along: str) -> bool:
    """Return whether the value of `along` determines the value of `coordinate` in all rows."""
    both = {(row.coordinates[along], row.coordinates[coordinate]) for row in rows}
    return len(both) == len({at for at, _ in both})


def _is_timed(own: Sequence[MetricRow]) -> bool:
    """Return whether values are per-variant timings, which have samples that differ."""
    return not any(row.run for row in own) and any(len({*row.samples}) > 1 for row in own)


#: Metric values, each with its x coordinate.
_Placed = Sequence[tuple[MetricRow, float]]


def _means(own: _Placed) -> list[Point]:
    """Compute means over seeds with Student's t intervals.

    Values measured per variant have no seeds; their points get `n` = 0. If no value is negative (as
    for shares, times and norms), intervals are computed for nonnegative values, and do not extend
    below 0. Values in nats are excepted, since they may be differences of losses.
    """
    means = over_seeds((row.label, at, row.seed if row.run else 0, row.value) for row, at in own)
    if not any(row.unit == NATS.name or row.value < 0 for row, _ in own):
        ends = [not_negative(mean.at.value, mean.at.high - mean.at.value) for mean in means]
        means = [
            replace(mean, at=Estimate(mean.at.value, float(low), float(high)))
            for mean, (low, high) in zip(means, ends, strict=True)
        ]
    return means if any(row.run for row, _ in own) else [replace(mean, n=0) for mean in means]


def _ratios(table: TableFrames, own: _Placed) -> list[Point]:
    """Return timings as ratios to the baseline's timing at the same x coordinate.

    Each ratio has an interval.
    """
    labels = {variant.id: variant.label for variant in table.plan.variants}
    places: dict[float, dict[str, Turns]] = {}
    for row, at in own:
        places.setdefault(at, {})[row.variant] = row.by_process
    return [
        Point(labels[variant], at, Estimate(ratio.value, ratio.low, ratio.high), ratio.processes)
        for at, turns in sorted(places.items())
        for variant, ratio in compare_column(turns, table.plan.baseline.id).items()
        if not math.isnan(ratio.value)
    ]
