"""Scaling laws through a ladder of sizes, and the trend of each variant's gap to the baseline."""

import math
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.scaling import Law, fit, fit_law, gaps, local_exponent, sizes_for_law
from llama_ablate.evidence.surface import over_seeds
from llama_ablate.findings.frames import Frames, TableFrames

_FURTHER = 10.0  # how far to project, in multiples of the largest size
_ESTIMATES = ("exponent", "floor", "projected", "predicted")
_UNKNOWN: dict[str, Any] = (
    {"label": "", "axis": "", "n": 0, "form": "none"}
    | {f"{name}{end}": math.nan for name in _ESTIMATES for end in ("", "_low", "_high")}
    | {"measured": math.nan, "at": math.nan}
)
_AXES = ("parameters", "tokens", "compute")


def laws(frames: Frames) -> pd.DataFrame:
    """Return the law of each variant along each axis, and the trend of its gap.

    Columns: `label, axis, n, form, exponent, floor, projected, predicted` (each also with `_low`
    and `_high`), `measured, at, trend, slope, slope_low, slope_high`. `predicted` and `measured`
    are the loss of the largest size, as the law through all smaller ones has it, and as it is; what
    has no such check, or fails it, is not projected. Empty for an experiment without `sizes`. The
    gap and its trend are along parameters.
    """
    if frames.ladder.empty:
        return pd.DataFrame()
    ends = at_end(frames.ladder)
    floor = floor_of(frames.table)
    trends = _trends(ends, frames.table.margin)
    rows: list[dict[str, Any]] = []
    for label, own in ends.groupby("label", sort=False):
        for axis in _AXES:
            grid = own.pivot_table(index=axis, columns="seed", values="loss").dropna(axis=1)
            row = {**_UNKNOWN, "label": label, "axis": axis, "n": len(grid), **_law(grid, floor)}
            if axis == "parameters":
                row |= trends.get(str(label), {})
            rows.append(row)
    return pd.DataFrame(rows)


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


def surface(frames: Frames) -> pd.DataFrame:
    """Return the constants of `E + A/N^alpha + B/D^beta` for each variant with points enough.

    Columns: `label, n`, and `E, A, alpha, B, beta, parameters_exponent`, each also with `_low` and
    `_high`. Branches of runs count: they let tokens vary apart from parameters.
    """
    if frames.ladder.empty:
        return pd.DataFrame()
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
        row: dict[str, Any] = {"label": label, "n": len(grid)}
        for name, estimate in estimates.items():
            row |= _columns(name, estimate.value, estimate.low, estimate.high)
        rows.append(row)
    return pd.DataFrame(rows)


def _columns(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _law(grid: pd.DataFrame, floor: float | None) -> dict[str, Any]:
    """Return what losses (sizes, seeds) say of a law: its constants with their intervals.

    Too few sizes for one have the exponent of a power law over these sizes alone.
    """
    if not grid.shape[1] or len(grid) < 2:
        return {"form": "none"}
    x, losses = list(grid.index.astype(float)), grid.to_numpy().tolist()
    if len(x) < sizes_for_law(floor):
        slope = local_exponent(x, losses)
        return {"form": "local", **_columns("exponent", slope.mean, slope.low, slope.high)}
    at = x[-1] * _FURTHER
    law = fit(x, losses, at=at, floor=floor)
    values: dict[str, Any] = {"form": "floor fitted" if floor is None else "floor known"}
    names = ["exponent", "floor"]
    if can_be_checked(len(x), floor):
        check = fit(x[:-1], losses[:-1], at=x[-1], floor=floor).projected
        measured = float(np.mean(losses[-1]))
        values |= {
            **_columns("predicted", check.value, check.low, check.high),
            "measured": measured,
        }
        if check.low <= measured <= check.high:
            values |= {"at": at}
            names.append("projected")
    for name in names:
        estimate = getattr(law, name)
        values |= _columns(name, estimate.value, estimate.low, estimate.high)
    return values


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
            **_columns("slope", gap.slope.mean, gap.slope.low, gap.slope.high),
        }
        for label, gap in gaps(found, margin=margin).items()
    }
