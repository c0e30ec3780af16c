"""Figures of a report by name: which frame each picture is drawn from, and its caption."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from llama_ablate.findings.answer import find_asked_cost, list_costs
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.sizes import compare_lengths, list_rates
from llama_ablate.findings.table import first_split
from llama_ablate.report import columns, pictures
from llama_ablate.report.contents import Styles, TableContents, list_tables
from llama_ablate.report.measurements import select_reported

#: Figures of one comparison table by the ends of their names, made in a size and style.
Maker = Callable[[TableContents, Mapping[str, Any]], Iterator[tuple[str, Figure]]]
_MAX_COSTS, _MAX_RATES, _MAX_PANELS = 4, 6, 6  # most figures of a kind
_ROW, _AROUND = 0.2, 0.75  # height of a row of a figure, and of its axis, in inches
#: Endings of quantities that are a standard error, or the single values behind another quantity.
_OTHER_ENDINGS = ("_se", "_by_document")
_SAME = 1e-3  # relative difference up to which values look equal in a figure


@dataclass(frozen=True)
class FigureKind:
    """Kind of figures: its function, its caption, and its section of the page."""

    make: Maker
    caption: str
    section: str = "comparison"
    #: Whether each comparison table has the figure; else it shows the whole experiment once.
    every_table: bool = True


@dataclass(frozen=True)
class ReportFigure:
    """Figure of a report, drawn when asked."""

    name: str
    #: Name of the comparison table; "" for a figure of the whole experiment.
    table: str
    kind: FigureKind
    figure: Figure


def make(
    name: str, frames: Frames, *, experiment: Frames | None = None, **look: Any
) -> Iterator[ReportFigure]:
    """Draw the figures of a kind, for each comparison table; none without data to show.

    `experiment` are the frames of the experiment, if `frames` has some of its tables. `look` are
    options of `pictures.draw`, such as `width` in inches.
    """
    kind = FIGURES[name]
    for contents in list_tables(frames, experiment or frames):
        if kind.every_table or contents.table is frames.table:
            for end, figure in kind.make(contents, look):
                full_name = f"{name}_{end}" if end else name
                yield ReportFigure(full_name, contents.table.plan.name, kind, figure)


def _draw(
    contents: TableContents,
    picture: Callable[..., None],
    frame: pd.DataFrame,
    look: Mapping[str, Any],
    *given: Any,
    **options: Any,
) -> Figure:
    """Draw a picture with the styles of a table; the table's name is the title."""
    options = {"title": contents.name, **options, **look}
    return pictures.draw(picture, frame, *given, contents.styles, **options)


def _units(contents: TableContents) -> dict[str, str]:
    return {"unit": contents.table.unit.full}


def _draw_rows(
    contents: TableContents, rows: pd.DataFrame, look: Mapping[str, Any], **options: Any
) -> Iterator[tuple[str, Figure]]:
    """Draw rows with intervals in a figure as high as they need."""
    rows = rows[rows["difference"].notna()]
    if len(rows):
        height = {"height": _AROUND + _ROW * min(len(rows), pictures.MAX_ROWS)}
        options |= {"margin": contents.table.margin, "unit": contents.table.unit.name}
        yield "", _draw(contents, pictures.effects, rows, {**look, **height}, **options)


def _effects(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    if contents.effects.empty and contents.steps.empty:
        yield from _draw_rows(contents, contents.comparison, look, seeds=contents.seeds)


def _factors(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    yield from _draw_rows(contents, contents.effects, look)


def _steps(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    yield from _draw_rows(contents, contents.steps, look)


def _loss_curves(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    curves = contents.curves.dropna(subset=["train"])
    if len(curves):
        reported = contents.comparison["loss"].dropna().to_dict()
        options = {"reported": reported, "text": contents.table.unit.text, **_units(contents)}
        yield "", _draw(contents, pictures.loss_curves, curves, look, **options)


def _learning_curves(
    contents: TableContents, look: Mapping[str, Any]
) -> Iterator[tuple[str, Figure]]:
    curves = contents.curves.dropna(subset=["validation"])
    curves = curves[curves["outcome"] == "ok"]
    others = {*curves["variant"]} & {*contents.styles.named} - {contents.baseline}
    if len({*curves["read"]}) > 1 and others and contents.baseline in {*curves["variant"]}:
        options = {"baseline": contents.baseline, "text": contents.table.unit.text}
        options |= {"unit": contents.table.unit.name}
        yield "", _draw(contents, pictures.learning_curves, curves, look, **options)


def _costs(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    rows = contents.ranked[contents.ranked["difference"].notna()]
    if len(rows) < 2:
        return
    first = find_asked_cost(contents.table.experiment, rows)
    costs = sorted(list_costs(rows), key=lambda cost: cost != first)
    for number, cost in enumerate(costs[:_MAX_COSTS]):
        options = {"unit": contents.table.unit.name}
        figure = _draw(contents, pictures.costs, rows, look, cost, **options)
        yield cost.column if number else "", figure


def _lengths(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    rows = compare_lengths(contents.table)
    if len(rows):
        styles = contents.styles if contents.effects.empty else Styles.of([*rows["name"].unique()])
        options = {"title": contents.name, "unit": contents.table.unit.name, **look}
        yield "", pictures.draw(pictures.lengths, rows, styles, **options)


def _cache_growth(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    sizes = contents.state.groupby("variant")["bytes"].agg(tuple)
    if len({*sizes}) > 1:
        yield "", _draw(contents, pictures.cache_growth, contents.state, look)


def _tuning(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    if len(contents.rates):
        yield "", _draw(contents, pictures.tuning, contents.rates, look, **_units(contents))


def _sizes(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    if len(contents.rungs):
        options = {"title": "", **_units(contents)}
        yield "", _draw(contents, pictures.sizes, contents.rungs, look, **options)


def _gaps(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    if len({*contents.rungs["non_embedding"]}) > 1:
        options = {"title": "", "unit": contents.table.unit.name}
        yield "", _draw(contents, pictures.gaps, contents.rungs, look, **options)


def _transfer(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Draw loss against learning rate, a figure for each variant and a line for each size."""
    rates = list_rates(contents.experiment)
    for number, (name, rows) in enumerate(rates.groupby("label", sort=False)):
        if number < _MAX_RATES:
            styles = Styles.of([*rows["rung"].unique()])
            options = {"title": name, "by": "rung", **_units(contents), **look}
            yield (
                f"{number + 1}" if number else "",
                pictures.draw(pictures.tuning, rows, styles, **options),
            )


def _metrics(contents: TableContents, look: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Draw each quantity in which variants differ: along a coordinate, or a row a variant."""
    rows = select_reported(contents.alone)
    if rows.empty:
        return
    rows = rows[rows["metric"] != "perplexity"]
    rows = rows[rows["variant"].isin(contents.styles.named)].dropna(subset=["value"])
    rows = rows[~rows["quantity"].str.endswith(_OTHER_ENDINGS)]
    rows = rows.sort_values(
        "variant", key=lambda names: names.map([*contents.comparison.index].index), kind="stable"
    )
    panels = 0
    for (metric, quantity), each in rows.groupby(["metric", "quantity"], sort=False):
        for place, along, points in _list_panels(each):
            is_counted = not along and not points["run"].any()  # a column of the comparison has it
            if panels < _MAX_PANELS and not is_counted and _differ(points, along):
                panels += 1
                title = ", ".join(filter(None, (contents.name, str(metric), place)))
                height = {} if along else {"height": _AROUND + _ROW * len({*points["variant"]})}
                options = {"along": along, "title": title}
                end = f"{metric}_{quantity}_{panels}"
                figure = _draw(contents, pictures.metrics, points, {**look, **height}, **options)
                yield end, figure


def _list_panels(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Split the values of a quantity into panels: words on the place, x coordinate, and values.

    The numeric coordinate with the most values becomes the x axis. Each combination of the other
    coordinates has a panel, except for coordinates that the x coordinate determines.
    """
    coordinates = [name for name in rows.columns if name not in columns.METRICS]
    present = [row.tobytes() for row in rows[coordinates].notna().to_numpy()]
    for _, part in rows.groupby(present, sort=False):
        names = [name for name in coordinates if part[name].notna().any()]
        points = part
        if "split" in names:
            points = part[part["split"].eq(first_split(part["split"]))]
        names = [name for name in names if len({*points[name]}) > 1]
        numeric = [name for name in names if pd.api.types.is_numeric_dtype(points[name])]
        along = max(reversed(numeric), key=lambda name: len({*points[name]}), default="")
        others = [
            name
            for name in names
            if name != along and not (along and _follows(points, name, along))
        ]
        for values, panel in points.groupby(others) if others else [((), points)]:
            pairs = zip(others, values, strict=True)
            yield (
                ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in pairs),
                along,
                panel,
            )


def _follows(rows: pd.DataFrame, name: str, along: str) -> bool:
    """Return whether the value of `along` determines the value of `name` in all rows."""
    pairs = {*zip(rows[along], rows[name], strict=True)}
    return len(pairs) == len({*rows[along]})


def _differ(rows: pd.DataFrame, along: str) -> bool:
    """Return whether variants differ in some place; of one variant, whether places differ."""
    means = rows.groupby(["variant", along] if along else ["variant"])["value"].mean()
    several = len({*rows["variant"]}) > 1
    groups = means.groupby(level=along) if along and several else [("", means)]
    return any(of.max() - of.min() > _SAME * of.abs().max() for _, of in groups)


#: Kinds of figures in the report's reading order.
FIGURES: Mapping[str, FigureKind] = {
    "steps": FigureKind(
        _steps, "Each step of the path against the step before it; left is better.", "steps"
    ),
    "factors": FigureKind(
        _factors,
        "Mean effects of each change, and of two changes together; left is better.",
        "factors",
    ),
    "effects": FigureKind(
        _effects,
        "Each variant's difference in loss from the baseline, paired by seed, with intervals that "
        "hold for all rows at once; strokes are single seeds; left is better.",
    ),
    "costs": FigureKind(
        _costs, "Difference in loss against a cost; low and left is better; dots: best at a cost."
    ),
    "loss_curves": FigureKind(
        _loss_curves,
        "Training loss, the median over seeds; thin lines are runs. Diamonds: held-out loss.",
    ),
    "learning_curves": FigureKind(
        _learning_curves,
        "Loss on 8,192 validation tokens minus that of the baseline's run of the same seed, with "
        "95% intervals over seeds.",
        "along",
    ),
    "cache_growth": FigureKind(
        _cache_growth,
        "Bytes that each variant keeps for one sequence, by its length, in 16-bit numbers.",
        "costs",
    ),
    "lengths": FigureKind(
        _lengths, "Differences from the baseline by the length of training.", "lengths"
    ),
    "tuning": FigureKind(
        _tuning,
        "Loss by learning rate, the mean over seeds; the ring marks the chosen rate.",
        "tuning",
    ),
    "sizes": FigureKind(_sizes, "Loss by model size.", "sizes", every_table=False),
    "gaps": FigureKind(
        _gaps,
        "Difference from the baseline by model size, with the interval of its table.",
        "sizes",
        every_table=False,
    ),
    "transfer": FigureKind(
        _transfer,
        "Loss by learning rate, a line for each size; the ring marks the chosen rate.",
        "transfer",
        every_table=False,
    ),
    "metrics": FigureKind(
        _metrics, "Means over seeds, with Student's 95% intervals over n seeds.", "metrics"
    ),
}
