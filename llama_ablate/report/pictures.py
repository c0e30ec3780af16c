"""Functions that make the figures of a report, in reading order.

The docstring of a function, without "Show", is the caption of its figure.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import effects, sizes, tuning
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import CurvePoint, Frames, TableFrames
from llama_ablate.findings.rows import grouped
from llama_ablate.report.costs import list_costs
from llama_ablate.report.picture import (
    DASHES,
    FIGURES,
    MAX_NAMED,
    Axis,
    Costs,
    Dot,
    Dots,
    Lines,
    LineStyles,
    Picture,
    Point,
    Style,
    Tick,
    choose_styles,
    over,
    over_seeds,
    style_variants,
)
from llama_ablate.report.tables import size
from llama_ablate.results.plan_document import CONTEXTS
from llama_ablate.terminal import listed

MAX_EFFECTS = 10  # interactions beyond which only those told apart from 0 are drawn
MAX_CURVES, MAX_CURVE_POINTS = 64, 100  # most curves of a figure, and points of a curve
LOSS_CURVES, LOG = "loss_curves", "log"  # figure of every run, and suffix of its logarithmic form
_MAX_COSTS = 3  # most panels of costs
_MAX_RATES = 6  # most panels of learning rates; more are too small to read
_SIZE = Axis("parameters without embeddings", "count", log=True)


@FIGURES.register("steps", every_table=True)
def draw_steps(frames: Frames) -> Picture | None:
    """Show the effect of each step of the path; left is better."""
    rows = effects.steps(frames.table)
    marks = [
        Dot(row.step, Estimate(row.marginal, row.marginal_low, row.marginal_high), row.verdict)
        for row in rows
    ]
    if all(math.isnan(mark.at.value) for mark in marks):
        return None
    x = Axis(f"loss minus that of the step before ({frames.table.unit.name})", at=0)
    return Picture([Dots(marks, x)], "steps", over((row.n for row in rows), rows=True))


@FIGURES.register("factors", every_table=True)
def draw_factors(frames: Frames) -> Picture | None:
    """Show the mean effect of each change on the loss; left is better.

    Interactions of two changes are hollow; the grey band is the margin.
    """
    table = frames.table
    rows = [row for row in effects.factors(table) if row.verdict != "not estimable"]
    few = sum(bool(row.changed) for row in rows) <= MAX_EFFECTS
    marks = [
        Dot(
            row.effect,
            Estimate(row.difference, row.low, row.high),
            row.verdict,
            hollow=bool(row.changed),
        )
        for row in rows
        if few or not row.changed or "together" in row.verdict
    ]
    if not marks:
        return None
    runs = sum(row.n for row in table.comparison if not row.role)
    return Picture(
        [Dots(marks, Axis(f"effect on the loss ({table.unit.name})", at=0), margin=table.margin)],
        "axes" if has_ranges(table) else "factors",
        f"Bars are 95% intervals that hold for all rows at once, n = {runs} runs.",
    )


def has_ranges(table: TableFrames) -> bool:
    """Return whether any axis has more than two levels.

    With two levels, the range of an axis is the effect of its factor.
    """
    return any(row.levels > 2 for row in effects.axes(table))


@FIGURES.register("effects", every_table=True)
def draw_effects(frames: Frames) -> Picture | None:
    """Show each variant's paired difference in loss from the baseline; left is better.

    The shape of a mark shows its verdict; thin strokes are single seeds.
    """
    table = frames.table
    if effects.factors(table) or effects.steps(table):
        return None
    rows = order_rows(table)
    marks = [
        Dot(
            row.label,
            Estimate(row.difference, row.low, row.high),
            str(row.verdict),
            row.outcome if row.show_runs() else "",
        )
        for row in rows
    ]
    base = table.losses[table.plan.baseline.id]
    ticks = [
        Tick(variant.label, loss - base[seed], seed)
        for variant in table.plan.variants
        if not variant.baseline
        for seed, loss in table.losses[variant.id].items()
        if seed in base
    ]
    x = Axis(f"{_against(table)} ({table.unit.name})", at=0)
    panel = Dots(marks, x, ticks, table.margin, styles=style_variants(frames.plan))
    counts = (row.n for row in rows if not (row.baseline or row.role))
    return Picture([panel], "comparison", over(counts, rows=True))


def order_rows(table: TableFrames) -> list[ComparisonRow]:
    """Return a table's rows in display order: baseline, other variants by loss, then controls.

    The steps of a path keep their order.
    """
    if table.experiment.variants.design == "path":
        return table.comparison
    by_loss = sorted(table.comparison, key=lambda row: (math.isnan(row.difference), row.difference))
    return sorted(by_loss, key=lambda row: (not row.baseline, bool(row.role)))


def _against(table: TableFrames) -> str:
    return f"loss minus that of {table.plan.baseline.label}"


@FIGURES.register(LOSS_CURVES, every_table=True)
def draw_loss_curves(frames: Frames) -> dict[str, Picture]:
    """Show the training loss of every run, and the loss that the table reports as a last point."""
    table, styles = frames.table, choose_styles(frames)
    curves = grouped(table.curves(styles.styles, "train"), lambda point: point.run.id)
    runs = [thin(curve) for curve in curves.values()]
    if not runs:
        return {}
    points, ticks = list[Point](), list[tuple[float, Tick]]()
    if len(runs) > MAX_CURVES:
        places = ((p.run.label, p.read, p.run.seed, p.loss) for run in runs for p in run)
        points = [_median(points_at) for points_at in grouped(places, lambda one: one[:2]).values()]
        points.sort(key=lambda point: point.x)
    else:
        ticks = [(p.read, _tick(p)) for run in runs for p in run]
    last = max(point.read for run in runs for point in run)
    reported = [
        Point(row.label, 1.02 * last, Estimate(row.loss))
        for row in table.comparison
        if row.label in styles.styles and math.isfinite(row.loss)
    ]
    x, y = Axis(table.unit.text, "count"), Axis(f"training loss ({table.unit.full})")
    panel = Lines(points, x, y, styles, ticks, reported, zoom=True, raw=True)
    what = "medians over seeds" if points else "one line a run"
    note = f"{what.capitalize()}; the diamond is the {table.split_name} loss of the table."
    logarithmic = replace(panel, x=replace(x, log=True), y=replace(y, log=True), zoom=False)
    return {"": Picture([panel], "comparison", note), LOG: Picture([logarithmic], "", note)}


def thin(curve: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return at most 100 evenly spaced points of a curve, including its last."""
    step = len(curve) // MAX_CURVE_POINTS + 1
    return [point for i, point in enumerate(curve) if not (i % step and i < len(curve) - 1)]


def _median(own: Sequence[tuple[str, float, int, float]]) -> Point:
    values = sorted(loss for *_, loss in own)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return Point(own[0][0], own[0][1], Estimate(middle), len(values))


def _tick(point: CurvePoint) -> Tick:
    outcome = "" if point.run.outcome == "ok" else point.run.outcome
    return Tick(point.run.label, point.loss, point.run.seed, outcome)


@FIGURES.register("learning_curves", every_table=True)
def draw_learning_curves(frames: Frames) -> Picture | None:
    """Show the loss on 8,192 validation tokens along training, and how variants differ there.

    Differences are from the baseline's run of the same seed. Diamonds mark the values that the
    table reports.
    """
    table, styles = frames.table, choose_styles(frames)
    curves = [point for point in table.curves(styles.styles) if point.run.outcome == "ok"]
    if len({point.read for point in curves}) < 2:
        return None
    base = {(p.run.seed, p.read): p.loss for p in curves if p.run.baseline}
    paired = over_seeds(
        (p.run.label, p.read, p.run.seed, p.loss - base[p.run.seed, p.read])
        for p in curves
        if not p.run.baseline and (p.run.seed, p.read) in base
    )
    losses = over_seeds((p.run.label, p.read, p.run.seed, p.loss) for p in curves)
    losses = [replace(point, at=Estimate(point.at.value)) for point in losses]
    rows = [row for row in table.comparison if row.label in styles.styles]
    last = 1.02 * max(point.read for point in curves)
    ends = [Point(row.label, last, Estimate(row.loss)) for row in rows if math.isfinite(row.loss)]
    x, text = Axis(table.unit.text, "count"), "loss on 8,192 validation tokens"
    panels = [Lines(losses, x, Axis(f"{text} ({table.unit.full})"), styles, (), ends, zoom=True)]
    if len({point.x for point in paired}) > 1:
        differences = [
            Point(row.label, last, Estimate(row.difference, row.low, row.high))
            for row in rows
            if not row.baseline and math.isfinite(row.difference)
        ]
        y = Axis(f"{text} minus that of the baseline ({table.unit.name})", at=0)
        others = styles.without(table.plan.baseline.label)
        panels.insert(0, Lines(paired, x, y, others, (), differences, zoom=True))
    note = f"Differences: {over(p.n for p in paired)}" if paired else ""
    return Picture(panels, "comparison", note, columns=2)


@FIGURES.register("costs", every_table=True)
def draw_costs(frames: Frames) -> Picture | None:
    """Show each variant's difference in loss against its cost.

    Marks below the line are better, and marks to the left are cheaper. Costs that differ by less
    than 2% are left out.
    """
    table, styles = frames.table, style_variants(frames.plan)
    rows = [row for row in table.comparison if row.role != "positive"]
    lost = [row.label for row in rows if math.isnan(row.difference)]
    rows = [row for row in rows if not math.isnan(row.difference)]
    costs = [cost for cost in list_costs(table.comparison[0]) if cost.differs(rows)]
    if len(rows) < 2 or not costs:
        return None
    y = Axis(f"{_against(table)} ({table.unit.name})", at=0)
    marks = [
        Dot(
            row.label,
            Estimate(row.difference, row.low, row.high),
            str(row.verdict),
            cost={cost.axis.title: cost.read(row) for cost in costs},
        )
        for row in rows
    ]
    without = f"without a loss: {listed(lost)}" if lost else ""
    panels = [Costs(marks, cost.axis.title, cost.axis, y, styles, without) for cost in costs]
    left = [cost.axis.title for cost in costs[_MAX_COSTS:]]
    note = over((row.n for row in rows if not (row.baseline or row.role)), rows=True)
    note += f" Not drawn: {listed(left)}." * bool(left)
    return Picture(panels[:_MAX_COSTS], "comparison", note)


@FIGURES.register("cache_growth")
def draw_cache_growth(frames: Frames) -> Picture | None:
    """Show the bytes that each variant keeps for one sequence, by its length.

    The bytes are computed for 16-bit numbers; both axes are logarithmic. A line is labelled with
    the bytes at the longest context, and with the variants that keep as many.
    """
    plan, styles = frames.table.plan, style_variants(frames.plan)
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant in plan.variants:
        if growth := variant.state_growth:
            groups.setdefault(tuple(growth[n] for n in CONTEXTS), []).append(variant.label)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: group[0][-1])
    left = len(ordered) - MAX_NAMED
    if left > 0:
        ordered = ordered[: MAX_NAMED // 2] + ordered[-MAX_NAMED // 2 :]
    named = {
        f"{size(sizes[-1])} at {CONTEXTS[-1]:,}: {listed(labels, 4)}": (sizes, styles[labels[0]])
        for sizes, labels in ordered
    }
    lines = [
        Point(name, n, Estimate(of))
        for name, (sizes, _) in named.items()
        for n, of in zip(CONTEXTS, sizes, strict=True)
    ]
    x = Axis("context (tokens)", "count", log=True)
    y = Axis("state of one sequence (16-bit)", "bytes", log=True)
    more = f"{left:,} of {len(groups):,} sizes are left out: drawn are the ends" * (left > 0)
    style_cast = LineStyles({name: style for name, (_, style) in named.items()}, [*named])
    return Picture([Lines(lines, x, y, style_cast, remark=more)], "comparison")


@FIGURES.register("sensitivity", every_table=True)
def draw_sensitivity(frames: Frames) -> Picture | None:
    """Show the loss against the learning rate; the ring marks the rate that was chosen.

    A run that diverged, or that has no loss, is drawn at the loss of chance.
    """
    table, styles = frames.table, choose_styles(frames)
    if "lr" not in table.experiment.tune:
        return None
    rates = tuning.rates(table.runs, table.loss, table.chance)
    chosen = {run.label: json.loads(run.tuned).get("lr") for run in reversed(table.reported)}
    means = over_seeds(
        (rate.label, rate.lr, rate.seed, rate.loss) for rate in rates if rate.label in styles.styles
    )
    if not means:
        return None
    points = [replace(point, chosen=chosen.get(point.name) == point.x) for point in means]
    y = Axis(f"{table.split_name} loss ({table.unit.full})")
    panel = Lines(points, Axis("learning rate", log=True), y, styles)
    return Picture([panel], "tuning", over(point.n for point in means))


@FIGURES.register("sizes")
def draw_sizes(frames: Frames) -> Picture | None:
    """Show the loss of each variant against its size: means over seeds with 95% intervals."""
    ends = [point for point in frames.ladder if not (point.branch or point.role)]
    if not ends:
        return None
    styles = choose_styles(frames)
    means = over_seeds(
        (point.label, point.parameters, point.seed, point.loss)
        for point in ends
        if point.label in styles.styles
    )
    panel = Lines(means, _SIZE, Axis(f"loss ({frames.table.unit.full})"), styles)
    return Picture([panel], "sizes", over(point.n for point in means))


@FIGURES.register("gaps")
def draw_gaps(frames: Frames) -> Picture | None:
    """Show each variant's difference from the baseline by size, with the interval of its table."""
    points = [
        Point(row.label, row.non_embedding, Estimate(row.difference, row.low, row.high), row.n)
        for rung in frames.rungs
        for row in rung.comparison
        if not (row.baseline or row.role or math.isnan(row.difference))
    ]
    if len({point.x for point in points}) < 2:
        return None
    base, unit = frames.table.plan.baseline.label, frames.table.unit.name
    y = Axis(f"loss minus that of {base} ({unit})", at=0)
    panel = Lines(points, _SIZE, y, choose_styles(frames).without(base))
    return Picture([panel], "sizes", over((point.n for point in points), rows=True))


@FIGURES.register("transfer")
def draw_transfer(frames: Frames) -> Picture | None:
    """Show loss against learning rate, a panel for each variant and a line for each size."""
    losses = sizes.by_rate(frames)
    if not losses:
        return None
    styles = _style_sizes(loss.rung for loss in losses)
    y = Axis(f"{frames.table.split_name} loss ({frames.table.unit.full})")
    panels = []
    for label, rows in list(grouped(losses, lambda one: one.rate.label).items())[:_MAX_RATES]:
        best = {(row.rung, row.rate.lr) for row in rows if row.best}
        means = over_seeds((row.rung, row.rate.lr, row.rate.seed, row.rate.loss) for row in rows)
        points = [replace(point, chosen=(point.name, point.x) in best) for point in means]
        style_cast = LineStyles(styles, [*styles])
        panels.append(Lines(points, Axis("learning rate", log=True), y, style_cast, title=label))
    note = over(point.n for panel in panels for point in panel.points)
    return Picture(panels, "transfer", note, columns=2)


def _style_sizes(names: Iterable[str]) -> Mapping[str, Style]:
    """Return line styles for model sizes, in greys that differ from variants' styles."""
    unlike = dict.fromkeys(names)
    return {name: Style(_SHADES[i % 4], DASHES[(i + i // 4) % 4]) for i, name in enumerate(unlike)}


_SHADES = ("#8c8c8c", "#767676", "#555555", "#262626")
