"""What a ladder of sizes shows: laws, trends of gaps to the baseline, where best rates lie."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.scaling import (
    Gap,
    Law,
    fit,
    fit_law,
    gaps,
    local_exponent,
    sizes_for_law,
)
from llama_ablate.evidence.surface import over_seeds
from llama_ablate.evidence.written import Estimate, bounded
from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames, LossPoint, TableFrames
from llama_ablate.findings.rows import Row, cell, column, grouped, mean, mean_number

#: Where a point lies: along an axis, or along two.
Place = TypeVar("Place", float, tuple[float, float])
_FURTHER = 10.0  # how far to project, in multiples of the largest size
_AXES: Mapping[str, Callable[[LossPoint], float]] = {
    "parameters": lambda point: float(point.parameters),
    "tokens": lambda point: float(point.tokens),
    "compute": lambda point: float(point.compute),
}
#: What a ladder's law is, and why where it is none.
_FORMS = {
    "none": "",
    "local": "none: power law over these sizes alone",
    "floor fitted": "floor fitted",
    "floor known": "floor known",
}


@dataclass(frozen=True)
class LawRow(Row):
    """The law of a variant along an axis, and along parameters the trend of its gap."""

    label: str = column("label of the variant", "variant", leading=True)
    axis: str = column("`parameters`, `tokens` or `compute`", "along", leading=True)
    n: int = column("number of sizes", "sizes", leading=True)

    def _has_gaps(self) -> bool:
        return self.trend is not None

    @cell("gap", leading=True, when=_has_gaps)
    def gap(self) -> str:
        """Write how the gap to the baseline goes with size."""
        return self.trend or ""

    @cell("per tenfold (nats)", leading=True, when=_has_gaps)
    def per_tenfold(self) -> str:
        """Write how the gap changes for ten times the size."""
        return str(self.slope or "")

    form: str = column(
        "`floor known`, `floor fitted`, `local` for a power law without a floor, or `none`"
    )

    @cell("law", leading=True)
    def law(self) -> str:
        """Write what the law is."""
        return _FORMS[self.form]

    exponent: Estimate = column(
        "exponent of the law", "exponent", ".3f", leading=True, default=Estimate()
    )
    floor: Estimate = column(
        "loss of a model without end", "floor (nats)", ".3f", default=Estimate()
    )
    projected: Estimate = column("loss at ten times the largest size", default=Estimate())
    predicted: Estimate = column(
        "loss of the largest size, as the law through all smaller ones has it",
        "largest size: predicted",
        ".4f",
        default=Estimate(),
    )
    measured: float = column(
        "loss of the largest size, as it is", "measured", ".4f", default=math.nan
    )

    @cell("projected (nats)")
    def projection(self) -> str:
        """Write what is projected: nothing where the check on the largest size failed."""
        failed = not math.isnan(self.measured) and math.isnan(self.projected.value)
        return "none: the check failed" if failed else format(self.projected, ".3f")

    at: float = column("size that is projected to", "at", ".3g", default=math.nan)
    trend: str | None = column(
        "`grows`, `closes`, `reverses`, `moves`, `holds` or `undecided`", default=None
    )
    slope: Estimate | None = column("how the gap changes for ten times the size", default=None)


def laws(frames: Frames) -> list[LawRow]:
    """Return the law of each variant along each axis, and the trend of its gap.

    What has no check on its largest size, or fails it, is not projected. None for an experiment
    without `sizes`.
    """
    floor, ends = floor_of(frames.table), at_end(frames.ladder)
    trends = _trends(ends, frames.table.margin)
    rows = []
    for label, own in grouped(ends, lambda point: point.label).items():
        for axis, place in _AXES.items():
            row = _law(label, axis, Grid.of(own, place), floor)
            if trends:
                row = replace(row, slope=Estimate())
            if axis == "parameters" and label in trends:
                gap, slope = trends[label].trend, trends[label].slope
                row = replace(row, trend=gap, slope=Estimate(slope.mean, slope.low, slope.high))
            rows.append(row)
    return rows


def at_end(ladder: Iterable[LossPoint]) -> list[LossPoint]:
    """Return the losses at the end of each run, without controls."""
    return [point for point in ladder if not (point.branch or point.role)]


class Grid(NamedTuple, Generic[Place]):
    """Losses by place along an axis, in order, and by seed: of the seeds that have every place."""

    places: Sequence[Place]
    seeds: Sequence[int]
    #: (places, seeds)
    losses: NDArray[np.float64]

    @classmethod
    def of(cls, points: Iterable[LossPoint], place: Callable[[LossPoint], Place]) -> "Grid[Place]":
        """Make it of points; several of one place and seed count as their mean."""
        known = grouped(points, lambda point: (place(point), point.seed))
        places, seeds = sorted({at for at, _ in known}), sorted({seed for _, seed in known})
        whole = [seed for seed in seeds if all((at, seed) in known for at in places)]
        losses = [[mean(p.loss for p in known[at, seed]) for seed in whole] for at in places]
        return cls(places, whole, np.array(losses, float).reshape(len(places), len(whole)))

    def only(self, seeds: Sequence[int]) -> "Grid[Place]":
        """Return the losses of some of its seeds."""
        return Grid(self.places, seeds, self.losses[:, [self.seeds.index(seed) for seed in seeds]])


def law_through(means: Mapping[float, float], floor: float | None) -> Law | None:
    """Return the law through a loss for each size; None where there are too few sizes."""
    return (
        None if len(means) < sizes_for_law(floor) else fit_law([*means], [*means.values()], floor)
    )


def can_be_checked(sizes: int, floor: float | None) -> bool:
    """Return whether a law can be fitted without the largest size, to predict it."""
    return sizes > sizes_for_law(floor)


def floor_of(table: TableFrames) -> float | None:
    """Return the entropy that the losses cannot go below, where the text's is known."""
    floor = mean_number(table.reported, f"{table.split}_floor_nats")
    return None if math.isnan(floor) else floor


@dataclass(frozen=True)
class SurfaceRow(Row):
    """The constants of `E + A/parameters^alpha + B/tokens^beta` for a variant."""

    label: str = column("label of the variant", "variant")
    n: int = column("number of points", "points")
    E: Estimate = column("loss of a model without end on text without end", "E", ".4g")
    A: Estimate = column("factor of the parameters", "A", ".4g")
    alpha: Estimate = column("exponent of the parameters", "alpha", ".4g")
    B: Estimate = column("factor of the tokens", "B", ".4g")
    beta: Estimate = column("exponent of the tokens", "beta", ".4g")
    parameters_exponent: Estimate = column(
        "the power of compute with which the best number of parameters grows"
    )

    @cell("best parameters grow as compute^")
    def split(self) -> str:
        """Write the power of compute; an end of 1, which leaves nothing for tokens, is none."""
        value, low, high = self.parameters_exponent
        return bounded(value, low, high if high < 1 else math.inf, ".3f")


def surface(frames: Frames) -> list[SurfaceRow]:
    """Return the surface of each variant with points enough.

    Branches of runs count: they let tokens vary apart from parameters.
    """
    rows = []
    points = grouped((p for p in frames.ladder if not p.role), lambda point: point.label)
    for label, own in points.items():
        grid = Grid.of(own, lambda point: (float(point.parameters), float(point.tokens)))
        if not grid.seeds:
            continue
        parameters, tokens = ([both[i] for both in grid.places] for i in (0, 1))
        try:
            estimates = over_seeds(parameters, tokens, grid.losses.tolist())
        except ValueError:
            continue  # too few points, or tokens in step with parameters: there is no surface
        rows.append(SurfaceRow(label=label, n=len(grid.places), **estimates))
    return rows


@dataclass(frozen=True)
class RateRow(Row):
    """The best learning rate of a variant at a size."""

    label: str = column("label of the variant")
    rung: str = column("the size")
    lr: float = column("the rate with the lowest mean validation loss")
    loss: float = column("mean loss there")
    edge: bool = column("whether it lies at an end of the grid, where the best may lie beyond it")
    moved: int = column("by how many points of the grid it differs from that of the first size")


def optima(frames: Frames) -> list[RateRow]:
    """Return the best learning rate of each variant at each size, and how far it moves.

    None where `by_rate` is empty.
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
    """A loss at a size and a learning rate."""

    rung: str
    rate: tuning.Rate
    #: Whether the rate is the one that the tables report, by the validation loss.
    best: bool


def _place(one: RungRate) -> tuple[str, str, float]:
    return one.rate.label, one.rung, one.rate.lr


def by_rate(frames: Frames) -> list[RungRate]:
    """Return the loss of each variant, size, seed and learning rate, and which rate is the best.

    None where no ladder of sizes is tuned over its learning rate.
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


def _law(label: str, axis: str, grid: Grid[float], floor: float | None) -> LawRow:
    """Return what losses say of a law: its constants with their intervals.

    Too few sizes for one have the exponent of a power law over these sizes alone.
    """
    x, losses = grid.places, grid.losses.tolist()
    row = LawRow(label=label, axis=axis, n=len(x), form="none")
    if not grid.seeds or len(x) < 2:
        return row
    if len(x) < sizes_for_law(floor):
        slope = local_exponent(x, losses)
        return replace(row, form="local", exponent=Estimate(slope.mean, slope.low, slope.high))
    at = x[-1] * _FURTHER
    law = fit(x, losses, at=at, floor=floor)
    form = "floor fitted" if floor is None else "floor known"
    row = replace(row, form=form, exponent=law.exponent, floor=law.floor)
    if not can_be_checked(len(x), floor):
        return row
    check = fit(x[:-1], losses[:-1], at=x[-1], floor=floor).projected
    row = replace(row, predicted=check, measured=float(np.mean(losses[-1])))
    holds = check.low <= row.measured <= check.high
    return replace(row, at=at, projected=law.projected) if holds else row


def _trends(ends: Sequence[LossPoint], margin: float | None) -> dict[str, Gap]:
    """Return the trend of each variant's difference from the baseline along parameters."""
    base = {(point.rung, point.seed): point for point in ends if point.baseline}
    others = grouped((p for p in ends if not p.baseline), lambda point: point.label)
    found: dict[str, dict[float, list[float]]] = {}
    for label, own in others.items():
        paired = [
            replace(at, loss=point.loss - at.loss)
            for point in own
            if (at := base.get((point.rung, point.seed)))
        ]
        grid = Grid.of(paired, lambda point: float(point.parameters))
        if len(grid.places) > 1 and len(grid.seeds) > 1:
            found[label] = dict(zip(grid.places, grid.losses.tolist(), strict=True))
    return gaps(found, margin=margin)
