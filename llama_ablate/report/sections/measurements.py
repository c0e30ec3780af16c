"""Everything that was measured: the means of variants, what is missing, a picture a metric."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd

from llama_ablate.evidence.student import not_negative
from llama_ablate.evidence.written import Estimate, plain
from llama_ablate.findings import comparison
from llama_ablate.findings.frames import Frames, TableFrames, spread
from llama_ablate.findings.tuning import first_split
from llama_ablate.report.columns import OWN
from llama_ablate.report.picture import (
    FIGURES,
    Axis,
    Cast,
    Dot,
    Dots,
    Lines,
    Picture,
    Point,
    cast,
    differ,
    over,
    over_seeds,
    points,
)
from llama_ablate.report.section import SECTIONS, Section
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import listed

_MANY = 12  # variants beyond which a column for each is too wide
#: Their losses are what the tables and the other figures are about.
_ELSEWHERE = {"perplexity"}
#: Quantities that say how sure another is, or that it is computed from.
_OF_OTHERS = ("_se", "_by_document")
_UNITS = {"context": "tokens", "tokens": "training", "last_position": "tokens"}
_COLUMNS, _PANELS = 3, 12  # of a picture
_AT = "at"  # the column of the coordinate
_STEEP = 1.5  # from one place to the next, from where on an axis is logarithmic
_WIDE = 50  # times the lowest, beyond which an axis is logarithmic


@SECTIONS.register("metrics")
def metrics(frames: Frames) -> Section | None:
    """Return every measured value: each is a row of the CSV, the cells are means by variant."""
    values = frames.metrics
    if values.empty:
        return None
    means = pd.concat([of_reported(table) for table in frames.tables])
    missing = dict.fromkeys(why for table in frames.tables for why in reasons(table))
    note = f"""Everything that was measured, as the mean over a variant's reported runs that ended
        ok. The values of each run are in tables/metrics.csv.
        {"Not measured: " * bool(missing)}{" ".join(missing)}"""
    return Section(
        "Metrics",
        means_of(means),
        " ".join(note.split()),
        spread(values).rename(columns=OWN),
        printed=False,
        folded=True,
    )


def means_of(values: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over runs of each measured value, one row a value, one column a variant.

    Of more than twelve variants the first, the lowest and the highest are shown.
    """
    keys = ["table", "metric", "name"]
    means = values.dropna(subset="value").pivot_table("value", keys, "label", sort=False)
    shown = means.index.to_frame(index=False)
    if not shown["table"].any():
        shown = shown.drop(columns="table")
    if len(means.columns) <= _MANY:
        columns = {str(label): [plain(v, 5) for v in means[label]] for label in means}
    else:
        first = str(means.columns[0])
        columns = {first: [plain(v, 5) for v in means[first]]}
        for title, ends, labels in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            columns[title] = [f"{plain(v, 5)} ({at})" for v, at in zip(ends, labels, strict=True)]
    for title, texts in columns.items():
        shown[f"{title} (variant)" if title in shown else title] = texts
    return shown


def of_reported(table: TableFrames) -> pd.DataFrame:
    """Return the measured values of variants, and of their reported runs that ended ok."""
    return _of_reported(table.metrics, table)


def _of_reported(measured: pd.DataFrame, table: TableFrames) -> pd.DataFrame:
    ok = table.reported.loc[table.reported["outcome"] == "ok", "id"]
    return measured[measured["run"].isin(["", *ok])]


def reasons(table: TableFrames) -> list[str]:
    """Say which metrics were not measured of which variants, and why."""
    failed = _of_reported(table.attempts[table.attempts["error"] != ""], table)
    said = []
    for (metric, error), own in failed.groupby(["metric", "error"], sort=False):
        labels = [f"'{label}'" for label in dict.fromkeys(own["label"])]
        said.append(f"{metric} of {listed(labels)}: {error}.")
    return said


@FIGURES.register_many("metrics")
def metrics_pictures(frames: Frames) -> dict[str, Picture]:
    """Show what a metric measured of each variant.

    The mean over seeds: lines along a coordinate, marks where there is one value. Speeds are
    relative to the baseline's, turn by turn, with intervals over processes. A quantity in which no
    variant differs is left out.
    """
    table, shown = frames.table, cast(frames.table)
    values = of_reported(table)
    values = values[values["label"].isin(shown.all) & ~values["metric"].isin(_ELSEWHERE)]
    drawn: dict[str, Picture] = {}
    for metric, own in values.groupby("metric", sort=False):
        quantities = [one for one in _quantities(table, own) if _tells(one.points)]
        along = [one for one in quantities if one.along]
        alone = [one for one in quantities if not one.along]
        beside = f"{metric}_by_variant" if along else str(metric)
        for name, kind in ((str(metric), along), (beside, alone)):
            if kind:
                drawn[name] = _picture(str(metric), kind, table, shown)
    return drawn


class _Quantity(NamedTuple):
    """A quantity by variant, along a coordinate or alone."""

    name: str
    unit: str
    #: At which other coordinates.
    place: str
    #: The coordinate that it is drawn along; "" for one value a variant.
    along: str
    points: Sequence[Point]
    #: Whether the values are ratios to the baseline's, with intervals over processes.
    is_timed: bool


def _picture(
    metric: str, quantities: Sequence[_Quantity], table: TableFrames, shown: Cast
) -> Picture:
    """Return a panel for each quantity of a metric, and over what their intervals are."""
    counts = [point.n for one in quantities for point in one.points]
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
    panels = [_panel(one, table, shown) for one in quantities[:_PANELS]]
    return Picture(panels, note=note, columns=min(len(panels), _COLUMNS), interactive=False)


def _quantities(table: TableFrames, metric: pd.DataFrame) -> Iterator[_Quantity]:
    """Yield each quantity of a metric, at each place that is apart."""
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
            drawn = _ratios(table, there) if timed else _means(there)
            if drawn:
                unit = str(there["unit"].iloc[0])
                yield _Quantity(quantity, unit, str(at_place), along, drawn, timed)


def _tells(drawn: Sequence[Point]) -> bool:
    """Return whether variants differ anywhere, or a single one along its coordinate."""
    by_place: dict[float, list[float]] = {}
    single = len({point.name for point in drawn}) == 1
    for point in drawn:
        by_place.setdefault(0 if single else point.x, []).append(point.at.value)
    return any(map(differ, by_place.values()))


def _panel(one: _Quantity, table: TableFrames, shown: Cast) -> Lines | Dots:
    """Return lines along a coordinate, or a mark for each variant, in their planned order."""
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
    marks = [Dot(v.label, of[v.label]) for v in table.plan.variants if v.label in of]
    base = of.get(table.plan.baseline.label)
    return Dots(marks, replace(measured, at=base.value if base else None), title=one.place)


def _along(at: pd.DataFrame) -> str:
    """Return the numeric coordinate of most places; "" where there is none.

    Of coordinates that count alike (first and last position, share and tokens) the last.
    """
    numeric = [str(c) for c in at if pd.api.types.is_numeric_dtype(at[c])]
    return max(reversed(numeric), key=lambda c: len(set(at[c])), default="")


def _follows(at: pd.DataFrame, coordinate: str, along: str) -> bool:
    """Return whether a coordinate is known from another."""
    return len(at[[along, coordinate]].drop_duplicates()) == len(set(at[along]))


def _is_timed(own: pd.DataFrame) -> bool:
    """Return whether values of variants are speeds, which differ from turn to turn."""
    return bool((own["run"] == "").all()) and any(len({*s}) > 1 for s in own["samples"])


def _means(own: pd.DataFrame) -> list[Point]:
    """Return means over seeds; what is a variant's own has one value, over none.

    Where no value is below 0, as of shares, times and norms, no interval reaches below it. What is
    in nats may be a difference of losses, and keeps Student's interval.
    """
    means = over_seeds(own.assign(seed=own["seed"].fillna(0)), ["label", _AT], "value")
    if (own["unit"] != NATS.name).all() and not (own["value"] < 0).any():
        means["low"], means["high"] = not_negative(means["mean"], means["high"] - means["mean"])
    return points(means.assign(n=0) if (own["run"] == "").all() else means, "label", _AT)


def _ratios(table: TableFrames, own: pd.DataFrame) -> list[Point]:
    """Return speeds as ratios to the baseline's at the same place, with intervals."""
    base = table.plan.baseline
    of_base = own[own["variant"] == base.id]
    turns_of = dict(zip(of_base[_AT], of_base["by_process"], strict=True))
    found = []
    for label, at, turns in zip(own["label"], own[_AT], own["by_process"], strict=True):
        ratio = comparison.speed_ratio(turns, turns_of.get(at, ()))
        ends = (math.nan, math.nan) if label == base.label else (ratio.low, ratio.high)
        if not math.isnan(ratio.value):
            found.append(Point(label, at, Estimate(ratio.value, *ends), ratio.processes))
    return sorted(found, key=lambda point: point.x)
