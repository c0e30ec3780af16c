"""Comparisons over model sizes and training lengths, and best learning rates by size."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from llama_ablate.evidence.trends import Gap, fit_gaps
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import effects, tuning
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, LossPoint, TableFrames
from llama_ablate.findings.rows import DifferenceRow, Row, column, grouped, mean, shared

DECIDED = ("better", "worse", "equivalent", "lower together", "higher together", "add up")
CONTRARY = ({"better", "worse"}, {"lower together", "higher together"})
#: A branch counts as half of a run if its share of the run's length lies between these values.
MIN_HALF, MAX_HALF = 0.4, 0.6


@dataclass(frozen=True)
class SizeRow(DifferenceRow):
    """Table row for a variant's difference at one model size, with its trend over sizes."""

    label: str = column("label of the variant")
    rung: str = column("name of the size's table")
    parameters: int = column("parameters of the variant without embeddings")
    n: int = column("number of seeds")
    trend: str = column(
        "`grows`, `closes`, `reverses`, `moves`, `holds` or `undecided`; empty below two seeds",
        default="",
    )
    slope: Estimate = column("change of the difference per tenfold size", default=Estimate())


def by_size(frames: Frames) -> list[SizeRow]:
    """List each variant's difference from the baseline at each model size, by variant.

    The list is empty for an experiment without `sizes`.
    """
    trends = _trends(frames.ladder, frames.table.margin)
    rows = []
    for rung in frames.rungs:
        for row in rung.comparison:
            if row.baseline or row.role or math.isnan(row.difference):
                continue
            row_trend = trends.get(row.label)
            trend = {"trend": row_trend.trend, "slope": _estimate(row_trend)} if row_trend else {}
            about = {"rung": rung.plan.name, "parameters": row.non_embedding, **trend}
            rows.append(SizeRow(**{**shared(SizeRow, row), **about}))
    return [row for group in grouped(rows, lambda row: row.label).values() for row in group]


def _estimate(found: Gap) -> Estimate:
    return Estimate(found.slope.mean, found.slope.low, found.slope.high)


def _trends(points: Sequence[LossPoint], margin: float | None) -> dict[str, Gap]:
    """Fit the trend of each variant's loss difference from the baseline over model sizes.

    Only seeds common to all sizes are used. A variant with fewer than two sizes or seeds has no
    trend.
    """
    ends = [point for point in points if not (point.branch or point.role)]
    base = {(point.rung, point.seed): point.loss for point in ends if point.baseline}
    paired = [
        (point.label, point.parameters, point.seed, point.loss - base[point.rung, point.seed])
        for point in ends
        if not point.baseline and (point.rung, point.seed) in base
    ]
    gaps: dict[str, Mapping[float, list[float]]] = {}
    for label, rows_of_label in grouped(paired, lambda one: one[0]).items():
        by_place = grouped(rows_of_label, lambda one: (one[1], one[2]))
        sizes = sorted({size for size, _ in by_place})
        seeds = sorted({seed for _, seed in by_place})
        common_seeds = [seed for seed in seeds if all((size, seed) in by_place for size in sizes)]
        if len(sizes) > 1 and len(common_seeds) > 1:
            gaps[label] = {
                float(size): [mean(gap[3] for gap in by_place[size, seed]) for seed in common_seeds]
                for size in sizes
            }
    return fit_gaps(gaps, margin)


@dataclass(frozen=True)
class RateRow(Row):
    """Best learning rate of a variant at a model size."""

    label: str = column("label of the variant")
    rung: str = column("the size")
    lr: float = column("the rate with the lowest mean validation loss")
    loss: float = column("mean loss there")
    edge: bool = column("whether it lies at an end of the grid, where the best may lie beyond it")
    moved: int = column("by how many points of the grid it differs from that of the first size")


def optima(frames: Frames) -> list[RateRow]:
    """Find each variant's best learning rate at each model size.

    A row also holds the distance from the best rate at the first size, in points of the grid. The
    list is empty unless the experiment has several sizes and tunes the learning rate.
    """
    rated = by_rate(frames)
    grid = sorted({rating.rate.lr for rating in rated})
    best = grouped((rating for rating in rated if rating.best), _place)
    first: dict[str, int] = {}
    rows = []
    for (label, rung, lr), ratings in best.items():
        at = grid.index(lr)
        moved = at - first.setdefault(label, at)
        edge = at in (0, len(grid) - 1)
        loss = fmean(rating.rate.loss for rating in ratings)
        rows.append(RateRow(label=label, rung=rung, lr=lr, loss=loss, edge=edge, moved=moved))
    return rows


class RungRate(NamedTuple):
    """Loss of a variant and seed at a model size and a learning rate."""

    rung: str
    rate: tuning.Rate
    #: Whether the rate is the reported rate, which the validation loss chose.
    best: bool


def _place(one: RungRate) -> tuple[str, str, float]:
    return one.rate.label, one.rung, one.rate.lr


def by_rate(frames: Frames) -> list[RungRate]:
    """List losses by variant, model size, seed and learning rate, with best rates marked.

    The list is empty unless the experiment has several sizes and tunes the learning rate.
    """
    if "lr" not in frames.plan.experiment.tune:
        return []
    rows = []
    for table in frames.rungs:
        runs = [run for run in table.runs if not run.role]
        points = tuning.best_points(table.planned, table.plan.repeated)
        best = {r.label: json.loads(points[r.variant])["lr"] for r in runs if r.variant in points}
        rows += [
            RungRate(table.plan.name, rate, rate.lr == best.get(rate.label))
            for rate in tuning.rates(runs, table.loss, table.chance)
        ]
    return rows


@dataclass(frozen=True)
class LengthRow(DifferenceRow):
    """Difference of a variant, or effect of a factorial design, at one training length."""

    name: str = column("label of the variant, or the effect in words")
    tokens: int = column("training tokens")
    end: bool = column("whether that is the whole length")


def by_length(table: TableFrames) -> list[LengthRow]:
    """List each variant's difference, or each factorial effect, at every training length.

    Losses at shorter lengths come from branches, which are copies of a run that are cooled down
    early. The intervals at branches are simultaneous over rows and lengths, and contain no text
    error. The intervals at the full length are the table's. The list is empty if runs have no
    branches.
    """
    end = table.plan.tokens_per_run
    every = [*table.lengths.items(), (end, table)] if table.lengths else []
    return [
        row for tokens, view in every for row in _rows_of_length(view, tokens, end=tokens == end)
    ]


def at_half(rows: Sequence[LengthRow]) -> dict[str, str]:
    """Compare each row's final verdict with its verdict at half the training length.

    The values are `same`; `turned` for opposite verdicts, such as better and worse; `was` with the
    earlier verdict for any other change; and `undecided` for an undecided verdict at half the
    length. The keys are row names. Return an empty mapping without a branch near half the length.
    """
    last = {row.name: row.verdict for row in rows if row.end}
    longest = max((row.tokens for row in rows), default=0)
    near = [row for row in rows if not row.end and MIN_HALF <= row.tokens / longest <= MAX_HALF]
    half = max((row.tokens for row in near), default=0)
    return {
        row.name: _compare_verdicts(last[row.name], row.verdict)
        for row in near
        if row.tokens == half
    }


def contrary(rows: Sequence[LengthRow]) -> dict[str, int]:
    """Return the largest token count with a verdict opposite to the final verdict.

    The keys are row names. Rows without an opposite verdict are left out.
    """
    last = {row.name: row.verdict for row in rows if row.end}
    counts: dict[str, int] = {}
    for row in rows:
        if _compare_verdicts(last[row.name], row.verdict) == "turned":
            counts[row.name] = max(row.tokens, counts.get(row.name, 0))
    return counts


def _compare_verdicts(now: str, then: str) -> str:
    if then not in DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} in CONTRARY else f"was {then}"


def _rows_of_length(table: TableFrames, tokens: int, *, end: bool) -> list[LengthRow]:
    """List one training length's rows: a table's factorial effects, or else its variants."""
    compared = [row for row in table.comparison if not row.baseline and not row.role]
    return [
        LengthRow(name=name_of(row), tokens=tokens, end=end, **shared(LengthRow, row))
        for row in effects.factors(table) or compared
    ]


def name_of(row: FactorRow | ComparisonRow) -> str:
    """Return the name of a row: its effect, or the label of its variant."""
    return row.effect if isinstance(row, FactorRow) else row.label
