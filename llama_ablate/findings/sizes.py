"""Comparisons over model sizes: gaps to the baseline, and best learning rates."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from llama_ablate.evidence.trends import Gap, fit_gaps
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames, LossPoint
from llama_ablate.findings.rows import Row, column, grouped, mean, shared


@dataclass(frozen=True)
class SizeRow(Row):
    """A variant's difference from the baseline at one size, with the trend over all sizes."""

    label: str = column("label of the variant")
    rung: str = column("name of the size's table")
    parameters: int = column("parameters of the variant without embeddings")
    n: int = column("number of seeds")
    difference: float = column("mean difference from the baseline; below 0 is better")
    low: float = column("lower end of its interval")
    high: float = column("upper end of its interval")
    verdict: str = column("what the interval says")
    trend: str = column(
        "`grows`, `closes`, `reverses`, `moves`, `holds` or `undecided`; empty below two seeds",
        default="",
    )
    slope: Estimate = column("change of the difference per tenfold size", default=Estimate())


def by_size(frames: Frames) -> list[SizeRow]:
    """List each variant's difference at each size, variant by variant.

    Empty for an experiment without `sizes`.
    """
    trends = _trends(frames.ladder, frames.table.margin)
    rows = []
    for rung in frames.rungs:
        for row in rung.comparison:
            if row.baseline or row.role or math.isnan(row.difference):
                continue
            found = trends.get(row.label)
            trend = {"trend": found.trend, "slope": _estimate(found)} if found else {}
            own = {"rung": rung.plan.name, "parameters": row.non_embedding, **trend}
            rows.append(SizeRow(**{**shared(SizeRow, row), **own}))
    return [row for own in grouped(rows, lambda row: row.label).values() for row in own]


def _estimate(found: Gap) -> Estimate:
    return Estimate(found.slope.mean, found.slope.low, found.slope.high)


def _trends(points: Sequence[LossPoint], margin: float | None) -> dict[str, Gap]:
    """Fit each variant's gap over the seeds that all its sizes have."""
    ends = [point for point in points if not (point.branch or point.role)]
    base = {(point.rung, point.seed): point.loss for point in ends if point.baseline}
    paired = [
        (point.label, point.parameters, point.seed, point.loss - base[point.rung, point.seed])
        for point in ends
        if not point.baseline and (point.rung, point.seed) in base
    ]
    found: dict[str, Mapping[float, list[float]]] = {}
    for label, own in grouped(paired, lambda one: one[0]).items():
        by_place = grouped(own, lambda one: (one[1], one[2]))
        sizes = sorted({size for size, _ in by_place})
        seeds = sorted({seed for _, seed in by_place})
        whole = [seed for seed in seeds if all((size, seed) in by_place for size in sizes)]
        if len(sizes) > 1 and len(whole) > 1:
            found[label] = {
                float(size): [mean(one[3] for one in by_place[size, seed]) for seed in whole]
                for size in sizes
            }
    return fit_gaps(found, margin)


@dataclass(frozen=True)
class RateRow(Row):
    """Best learning rate of a variant at a size."""

    label: str = column("label of the variant")
    rung: str = column("the size")
    lr: float = column("the rate with the lowest mean validation loss")
    loss: float = column("mean loss there")
    edge: bool = column("whether it lies at an end of the grid, where the best may lie beyond it")
    moved: int = column("by how many points of the grid it differs from that of the first size")


def optima(frames: Frames) -> list[RateRow]:
    """Find the best learning rate of each variant at each size, and how far it moves.

    Empty where `by_rate` is.
    """
    rated = by_rate(frames)
    grid = sorted({one.rate.lr for one in rated})
    best = grouped((one for one in rated if one.best), _place)
    first: dict[str, int] = {}
    rows = []
    for (label, rung, lr), own in best.items():
        at = grid.index(lr)
        moved = at - first.setdefault(label, at)
        edge = at in (0, len(grid) - 1)
        loss = fmean(one.rate.loss for one in own)
        rows.append(RateRow(label=label, rung=rung, lr=lr, loss=loss, edge=edge, moved=moved))
    return rows


class RungRate(NamedTuple):
    """Loss at a size and a learning rate."""

    rung: str
    rate: tuning.Rate
    #: Whether the rate is the one that the tables report, by the validation loss.
    best: bool


def _place(one: RungRate) -> tuple[str, str, float]:
    return one.rate.label, one.rung, one.rate.lr


def by_rate(frames: Frames) -> list[RungRate]:
    """List the loss of each variant, size, seed and learning rate, with the best rates marked.

    Empty unless several sizes are tuned over the learning rate.
    """
    if "lr" not in frames.plan.experiment.tune:
        return []
    found = []
    for table in frames.rungs:
        runs = [run for run in table.runs if not run.role]
        best = {run.label: json.loads(run.tuned)["lr"] for run in reversed(runs) if run.best}
        found += [
            RungRate(table.plan.name, one, one.lr == best.get(one.label))
            for one in tuning.rates(runs, table.loss, table.chance)
        ]
    return found
