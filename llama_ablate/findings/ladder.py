"""What a ladder of sizes shows: laws, trends of gaps to the baseline, where best rates lie."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.scaling import Law, fit, fit_law, gaps, local_exponent, sizes_for_law
from llama_ablate.evidence.surface import over_seeds
from llama_ablate.evidence.written import Estimate, bounded
from llama_ablate.findings import tuning
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import Row, cell, column

_FURTHER = 10.0  # how far to project, in multiples of the largest size
_AXES = ("parameters", "tokens", "compute")
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
    if frames.ladder.empty:
        return []
    ends = at_end(frames.ladder)
    floor = floor_of(frames.table)
    trends = _trends(ends, frames.table.margin)
    rows = []
    for label, own in ends.groupby("label", sort=False):
        for axis in _AXES:
            grid = own.pivot_table(index=axis, columns="seed", values="loss").dropna(axis=1)
            values = _law(grid, floor)
            if trends:
                values["slope"] = Estimate()
            if axis == "parameters":
                values |= trends.get(str(label), {})
            rows.append(LawRow(label=str(label), axis=axis, n=len(grid), **values))
    return rows


def at_end(ladder: pd.DataFrame) -> pd.DataFrame:
    """Return the losses at the end of each run, without controls."""
    return ladder[~ladder["branch"] & (ladder["role"] == "")]


def law_through(means: "pd.Series[float]", floor: float | None) -> Law | None:
    """Return the law through a loss for each size; None where there are too few sizes."""
    if len(means) < sizes_for_law(floor):
        return None
    return fit_law([float(x) for x in means.index], [float(v) for v in means], floor)


def can_be_checked(sizes: int, floor: float | None) -> bool:
    """Return whether a law can be fitted without the largest size, to predict it."""
    return sizes > sizes_for_law(floor)


def floor_of(table: TableFrames) -> float | None:
    """Return the entropy that the losses cannot go below, where the text's is known."""
    column = f"{table.split}_floor_nats"
    if column not in table.reported or table.reported[column].isna().all():
        return None
    return float(np.nanmean(table.reported[column]))


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
    if frames.ladder.empty:
        return []
    rows = []
    points = frames.ladder[frames.ladder["role"] == ""]
    for label, own in points.groupby("label", sort=False):
        grid = own.pivot_table("loss", ["parameters", "tokens"], "seed").dropna(axis=1)
        if not grid.shape[1]:
            continue
        parameters, tokens = ([float(v) for v in grid.index.get_level_values(i)] for i in (0, 1))
        try:
            estimates = over_seeds(parameters, tokens, grid.to_numpy().tolist())
        except ValueError:
            continue  # too few points, or tokens in step with parameters: there is no surface
        rows.append(SurfaceRow(label=str(label), n=len(grid), **estimates))
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
    losses = by_rate(frames)
    if losses.empty:
        return []
    grid = sorted(set(losses["lr"]))
    best = losses[losses["best"]].groupby(["label", "rung", "lr"], sort=False)["loss"].mean()
    first: dict[str, int] = {}
    rows = []
    for label, rung, lr, loss in best.reset_index().itertuples(index=False, name=None):
        at = grid.index(lr)
        moved = at - first.setdefault(label, at)
        edge = at in (0, len(grid) - 1)
        rows.append(RateRow(label=label, rung=rung, lr=lr, loss=loss, edge=edge, moved=moved))
    return rows


def by_rate(frames: Frames) -> pd.DataFrame:
    """Return the loss of each variant, size, seed and learning rate, and which rate is the best.

    Columns: `label, rung, seed, lr, loss, best`. The best is the one that the tables report,
    by the validation loss. Empty where no ladder of sizes is tuned over its learning rate.
    """
    of_rungs: list[pd.DataFrame] = []
    if "lr" not in frames.plan.experiment.tune:
        return pd.DataFrame()
    for table in frames.rungs:
        arms = [variant.label for variant in table.plan.variants if not variant.role]
        runs = table.runs[table.runs["label"].isin(arms)]
        own = tuning.rates(runs, table.loss, table.chance)
        chosen = table.runs[table.runs["best"]].groupby("label", sort=False)["tuned"].first()
        best = chosen.map(lambda point: json.loads(point)["lr"])
        of_rungs.append(own.assign(rung=table.plan.name, best=own["lr"] == own["label"].map(best)))
    return pd.concat(of_rungs, ignore_index=True) if of_rungs else pd.DataFrame()


def _law(grid: pd.DataFrame, floor: float | None) -> dict[str, Any]:
    """Return what losses (sizes, seeds) say of a law: its constants with their intervals.

    Too few sizes for one have the exponent of a power law over these sizes alone.
    """
    if not grid.shape[1] or len(grid) < 2:
        return {"form": "none"}
    x, losses = list(grid.index.astype(float)), grid.to_numpy().tolist()
    if len(x) < sizes_for_law(floor):
        slope = local_exponent(x, losses)
        return {"form": "local", "exponent": Estimate(slope.mean, slope.low, slope.high)}
    at = x[-1] * _FURTHER
    law = fit(x, losses, at=at, floor=floor)
    values: dict[str, Any] = {"form": "floor fitted" if floor is None else "floor known"}
    names = ["exponent", "floor"]
    if can_be_checked(len(x), floor):
        check = fit(x[:-1], losses[:-1], at=x[-1], floor=floor).projected
        measured = float(np.mean(losses[-1]))
        values |= {"predicted": check, "measured": measured}
        if check.low <= measured <= check.high:
            values |= {"at": at}
            names.append("projected")
    return values | {name: getattr(law, name) for name in names}


def _trends(ends: pd.DataFrame, margin: float | None) -> dict[str, dict[str, Any]]:
    """Return the trend of each variant's difference from the baseline along parameters."""
    base = ends[ends["baseline"]].set_index(["rung", "seed"])
    sizes = base.groupby("rung")["parameters"].first().sort_values()
    found: dict[str, dict[float, list[float]]] = {}
    for label, own in ends[~ends["baseline"]].groupby("label", sort=False):
        paired = (own.set_index(["rung", "seed"])[["loss"]] - base[["loss"]]).dropna()
        grid = paired.reset_index().pivot_table(index="rung", columns="seed", values="loss")
        grid = grid.dropna(axis=1)
        grid = grid.loc[[rung for rung in sizes.index if rung in grid.index]]
        if len(grid) > 1 and grid.shape[1] > 1:
            each = zip((float(sizes[rung]) for rung in grid.index), grid.to_numpy(), strict=True)
            found[str(label)] = {x: list(map(float, values)) for x, values in each}
    return {
        label: {
            "trend": gap.trend,
            "slope": Estimate(gap.slope.mean, gap.slope.low, gap.slope.high),
        }
        for label, gap in gaps(found, margin=margin).items()
    }
