"""Scaling laws through a ladder of sizes, and the trend of each variant's gap to the baseline."""

import math
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.scaling import Law, fit, fit_law, fit_surface, gap
from llama_ablate.report.frames import Frames, TableFrames

_FURTHER = 10.0  # how far to project, in multiples of the largest size
_AXES = ("parameters", "tokens", "compute")


def laws(frames: Frames) -> pd.DataFrame:
    """Return the law of each variant along each axis, and the trend of its gap.

    Columns: `label, axis, n, exponent, exponent_low, exponent_high, floor, floor_low, floor_high,
    projected, projected_low, projected_high, at, trend, slope, slope_low, slope_high, gap_at,
    gap_low, gap_high`. Empty for an experiment without `sizes`. A law needs three sizes or more;
    the gap and its trend are along parameters.
    """
    if frames.ladder.empty:
        return pd.DataFrame()
    ends = at_end(frames.ladder)
    floor = floor_of(frames.table)
    rows: list[dict[str, Any]] = []
    for label, own in ends.groupby("label", sort=False):
        for axis in _AXES:
            grid = own.pivot_table(index=axis, columns="seed", values="loss_nats").dropna(axis=1)
            row = {"label": label, "axis": axis, "n": len(grid), **_law(grid, floor)}
            if axis == "parameters" and not own["baseline"].any():
                row |= _gap(ends, own, frames.table.margin)
            rows.append(row)
    return pd.DataFrame(rows)


def at_end(ladder: pd.DataFrame) -> pd.DataFrame:
    """Return the losses at the end of each run, without controls."""
    return ladder[~ladder["branch"] & (ladder["role"] == "")]


def law_through(means: "pd.Series[float]", floor: float | None) -> Law | None:
    """Return the law through a loss for each size; None where there are too few sizes."""
    if not _enough(len(means), floor):
        return None
    return fit_law([float(x) for x in means.index], [float(v) for v in means], floor)


def floor_of(table: TableFrames) -> float | None:
    """Return the entropy that the losses cannot go below, where the text's is known."""
    column = f"{table.split}_floor_nats"
    if column not in table.reported or table.reported[column].isna().all():
        return None
    return float(np.nanmean(table.reported[column]))


def surface(frames: Frames) -> pd.DataFrame:
    """Return the constants of `E + A/N^alpha + B/D^beta` for each variant with points enough.

    Columns: `label, n, E, A, alpha, B, beta`. Branches of runs count: they let tokens vary apart
    from parameters.
    """
    if frames.ladder.empty:
        return pd.DataFrame()
    rows = []
    points = frames.ladder[frames.ladder["role"] == ""]
    for label, own in points.groupby("label", sort=False):
        means = own.groupby(["parameters", "tokens"])["loss_nats"].mean().reset_index()
        columns = [[float(v) for v in means[c]] for c in ("parameters", "tokens", "loss_nats")]
        try:
            rows.append({"label": label, "n": len(means), **fit_surface(*columns)})
        except ValueError:
            continue  # too few points, or tokens in step with parameters: there is no surface
    return pd.DataFrame(rows)


def _enough(sizes: int, floor: float | None) -> bool:
    """Return whether the sizes suffice for a law: three, or two with a known floor."""
    return sizes >= (3 if floor is None else 2)


def _law(grid: pd.DataFrame, floor: float | None) -> dict[str, float]:
    """Return the constants of the law through losses (sizes, seeds), with their intervals."""
    at = float(grid.index.max()) * _FURTHER if len(grid) else math.nan
    values = {"at": at}
    if not _enough(len(grid), floor) or not grid.shape[1]:
        return values
    law = fit(list(grid.index.astype(float)), grid.to_numpy().tolist(), at=at, floor=floor)
    for name in ("exponent", "floor", "projected"):
        interval = getattr(law, name)
        values |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return values


def _gap(ends: pd.DataFrame, own: pd.DataFrame, margin: float | None) -> dict[str, Any]:
    """Return the trend of a variant's difference from the baseline along parameters."""
    base = ends[ends["baseline"]].set_index(["rung", "seed"])
    paired = (own.set_index(["rung", "seed"])[["loss_nats"]] - base[["loss_nats"]]).dropna()
    difference = paired.reset_index().pivot_table(index="rung", columns="seed", values="loss_nats")
    difference = difference.dropna(axis=1)
    sizes = base.groupby("rung")["parameters"].first()
    difference = difference.loc[[rung for rung in sizes.index if rung in difference.index]]
    if len(difference) < 2 or difference.shape[1] < 2:
        return {}
    x = [float(sizes[rung]) for rung in difference.index]
    trend = gap(x, difference.to_numpy().tolist(), at=max(x) * _FURTHER, margin=margin)
    return {
        "trend": trend.trend,
        "slope": trend.slope.mean,
        "slope_low": trend.slope.low,
        "slope_high": trend.slope.high,
        "gap_at": trend.projected.mean,
        "gap_low": trend.projected.low,
        "gap_high": trend.projected.high,
    }
