"""A ladder of sizes: the losses at each rung, the laws through them, and where the gap is going."""

import math
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.scaling import Law, fit, fit_law, fit_surface, gap
from llama_ablate.report import frames
from llama_ablate.results import Store, once
from llama_ablate.results.metrics import Measurement

_FURTHER = 10.0  # times the largest size: how far is projected
_AXES = {"parameters": "parameters", "tokens": "tokens", "compute": "training FLOPs"}


@once
def points(store: Store) -> pd.DataFrame:
    """Return the reported loss of every rung, variant and seed, and of every branch of a run.

    Columns: `label, baseline, role, seed, parameters, tokens, compute, loss_nats, branch`.
    Parameters are non-embedding, compute is in training FLOPs. Rungs are the tables that share
    text, match and budget with the first.
    """
    first = store.tables[0].plan
    rows: list[dict[str, Any]] = []
    for table in store.tables:
        plan = table.plan
        if any(plan.get(k) != first.get(k) for k in ("match", "budget")):
            continue
        if plan["data"]["fingerprint"] != first["data"]["fingerprint"]:
            continue
        frame = frames.ranked(frames.runs(table))
        split = frames.reported_split(frame)
        steps = {run["id"]: run["steps"] for run in plan["runs"]}
        per_step = plan["experiment"]["train"]["batch"] * plan["experiment"]["model"]["context"]
        variants = {v["id"]: v for v in plan["variants"]}
        records = {record.id: record for record in table.records()}
        for run in frame[frame["outcome"] == "ok"].to_dict("records"):
            variant = variants[run["variant"]]
            at = {steps[run["id"]] * per_step: float(run.get(f"{split}_loss_nats", math.nan))}
            branches = {
                int(value.coordinates["tokens"]): value.value
                for value in records[run["id"]].metrics.get("training", Measurement()).rows
                if value.quantity == "loss"
                and value.coordinates["split"] == split
                and not math.isnan(value.value)
            }
            for tokens, loss in (branches | at).items():
                rows.append(
                    {
                        "label": variant["label"],
                        "baseline": variant["baseline"],
                        "role": variant.get("role", ""),
                        "seed": run["seed"],
                        "parameters": variant["non_embedding"],
                        "tokens": tokens,
                        "compute": 3 * variant["flops_per_token"] * tokens,
                        "loss_nats": loss,
                        "branch": tokens not in at,
                        "rung": plan["table"],
                    }
                )
    return pd.DataFrame(rows)


def laws(store: Store) -> pd.DataFrame:
    """Return the law of each variant along each axis, and the trend of its gap.

    Columns: `label, axis, n, exponent, exponent_low, exponent_high, floor, floor_low, floor_high,
    projected, projected_low, projected_high, at, trend, slope, slope_low, slope_high, gap_at,
    gap_low, gap_high`. Empty for an experiment without `sizes`. A law needs three sizes or more;
    the gap and its trend are along parameters.
    """
    found = points(store) if store.plan["experiment"].get("sizes") else pd.DataFrame()
    if found.empty:
        return found
    found = found[~found["branch"] & (found["role"] == "")]
    floor = floor_of(store)
    rows: list[dict[str, Any]] = []
    for label, of in found.groupby("label", sort=False):
        for axis in _AXES:
            grid = of.pivot_table(index=axis, columns="seed", values="loss_nats").dropna(axis=1)
            at = float(grid.index.max()) * _FURTHER if len(grid) else math.nan
            row: dict[str, Any] = {"label": label, "axis": axis, "n": len(grid), "at": at}
            if len(grid) >= (3 if floor is None else 2) and grid.shape[1]:
                made = fit(
                    list(grid.index.astype(float)), grid.to_numpy().tolist(), at=at, floor=floor
                )
                for name, interval in (
                    ("exponent", made.exponent),
                    ("floor", made.floor),
                    ("projected", made.projected),
                ):
                    row |= {
                        name: interval.value,
                        f"{name}_low": interval.low,
                        f"{name}_high": interval.high,
                    }
            if axis == "parameters" and not of["baseline"].any():
                row |= _gap(store, found, str(label))
            rows.append(row)
    return pd.DataFrame(rows)


def _gap(store: Store, found: pd.DataFrame, label: str) -> dict[str, Any]:
    base = found[found["baseline"]].set_index(["rung", "seed"])
    of = found[found["label"] == label].set_index(["rung", "seed"])
    paired = (of[["loss_nats"]] - base[["loss_nats"]]).dropna().reset_index()
    difference = paired.pivot_table(index="rung", columns="seed", values="loss_nats")
    difference = difference.dropna(axis=1)
    sizes = base.groupby("rung")["parameters"].first()
    difference = difference.loc[[rung for rung in sizes.index if rung in difference.index]]
    if len(difference) < 2 or difference.shape[1] < 2:
        return {}
    x = [float(sizes[rung]) for rung in difference.index]
    margin = frames.margin_of(store.plan)
    made = gap(x, difference.to_numpy().tolist(), at=max(x) * _FURTHER, margin=margin)
    return {
        "trend": made.trend,
        "slope": made.slope.mean,
        "slope_low": made.slope.low,
        "slope_high": made.slope.high,
        "gap_at": made.projected.mean,
        "gap_low": made.projected.low,
        "gap_high": made.projected.high,
    }


def law_through(means: "pd.Series[float]", floor: float | None) -> Law | None:
    """Return the law through a loss for each size; None where there are too few sizes."""
    if len(means) < (3 if floor is None else 2):
        return None
    return fit_law([float(x) for x in means.index], [float(v) for v in means], floor)


def surface(store: Store) -> pd.DataFrame:
    """Return the constants of `E + A/N^alpha + B/D^beta` for each variant with points enough.

    Columns: `label, n, E, A, alpha, B, beta`. Branches of runs count: they let tokens
    vary apart from parameters.
    """
    found = points(store) if store.plan["experiment"].get("sizes") else pd.DataFrame()
    if found.empty:
        return found
    rows = []
    for label, of in found[found["role"] == ""].groupby("label", sort=False):
        means = of.groupby(["parameters", "tokens"])["loss_nats"].mean().reset_index()
        columns = [[float(v) for v in means[c]] for c in ("parameters", "tokens", "loss_nats")]
        try:
            rows.append({"label": label, "n": len(means), **fit_surface(*columns)})
        except ValueError:
            continue  # too few points, or tokens in step with parameters: there is no surface
    return pd.DataFrame(rows)


def floor_of(store: Store) -> float | None:
    """Return the entropy that the losses cannot go below, where the text's is known."""
    frame = frames.reported(frames.runs(store))
    column = f"{frames.reported_split(frame)}_floor_nats"
    if column not in frame or frame[column].isna().all():
        return None
    return float(np.nanmean(frame[column]))
