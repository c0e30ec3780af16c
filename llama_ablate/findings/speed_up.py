"""The effective speed-up of each variant: the baseline's cost of the same loss, over its own."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from llama_ablate.evidence import Interval, medians, simultaneous
from llama_ablate.evidence.medians import Turns
from llama_ablate.evidence.speed_up import LENGTHS, LossCurve, SpeedUp, speed_up
from llama_ablate.findings.frames import Frames, TableFrames

_ALPHA = 0.05
_COSTS = ("tokens", "flops", "seconds")
_ENDS = ("low", "high", "least", "most")


def speed_ups(frames: Frames) -> pd.DataFrame:
    """Return one row for each variant whose table's baseline has runs of three lengths or more.

    Columns: `table, label, along, loss, n, form, unit`, and `tokens, flops, seconds`, each also
    with `_low, _high, _least` and `_most`: how many times the variant's own cost the baseline needs
    for the same loss. Where variants differ in their tokens, `tokens` is of text. Lengths are those
    of branches of runs (`along` is `lengths`); without branches those of a ladder of sizes, whose
    compute alone is compared (`sizes`). A multiple, or an end of its interval, that is beyond the
    runs is infinite, above `_most`, or 0, below `_least`. `loss` is the higher one of both ends,
    `n` counts the seeds, `form` is the share by which the curve that is read misses a length that
    is left out (NaN with three lengths). The intervals are those of the differences in loss.
    """
    rows = [row for table in frames.tables for row in _of_lengths(table)]
    frame = pd.DataFrame(rows or _of_sizes(frames))
    return frame if frame.empty else frame.assign(unit=frames.table.unit.name)


def _of_lengths(table: TableFrames) -> list[dict[str, Any]]:
    """Return the rows of a table whose runs have branches."""
    variants = {v.label: v for v in table.plan.variants}
    text = {label: table.plan.text_per_token(variant) for label, variant in variants.items()}
    points = table.points
    of_text = points["tokens"] * points["label"].map(text)  # in the baseline's tokens
    curves = _curves(points.assign(tokens=of_text), "tokens")
    standing = _differences(table)
    multiples = _multiples(curves, standing)
    shares = {label: standing[label].alpha * len(multiples) / _ALPHA for label in multiples}
    base = table.plan.baseline
    speeds = {label: _turns(table, variant.id) for label, variant in variants.items()}
    ratios = {
        label: [math.log(text[label]) + of_turn for of_turn in _log_ratios(own, speeds[base.label])]
        for label, own in speeds.items()
        if label in multiples
    }
    paces = simultaneous({label: ratio for label, ratio in ratios.items() if ratio}, shares=shares)
    rows = []
    for label, of in multiples.items():
        flops = math.log(text[label] * base.flops_per_token / variants[label].flops_per_token)
        row = _described(table.plan.name, label, "lengths", of, curves, standing[label])
        row |= _cost("tokens", of) | _cost("flops", of.times(flops))
        if pace := paces.get(label):
            row |= _cost("seconds", of.times(pace.mean, (pace.high - pace.low) / 2))
        rows.append(row)
    return rows


def _of_sizes(frames: Frames) -> list[dict[str, Any]]:
    """Return the rows of a ladder of sizes, along compute."""
    if not frames.rungs:
        return []
    curves = _curves(frames.ladder[~frames.ladder["branch"]], "compute")
    standing = _differences(max(frames.rungs, key=lambda rung: rung.plan.baseline.non_embedding))
    return [
        _described("", label, "sizes", of, curves, standing[label]) | _cost("flops", of)
        for label, of in _multiples(curves, standing).items()
    ]


def _differences(table: TableFrames) -> dict[str, Interval]:
    return {v.label: table.intervals[v.id] for v in table.plan.variants if not v.baseline}


#: The losses of the baseline and of a variant, by length and by the seeds that both have.
_Pair = tuple[pd.DataFrame, pd.DataFrame]


def _curves(points: pd.DataFrame, axis: str) -> dict[str, _Pair]:
    """Return the losses along an axis of each variant, none where the baseline's are too few."""
    base = _grid(points[points["baseline"]], axis) if len(points) else pd.DataFrame()
    if len(base) < LENGTHS:
        return {}
    labels = set(points.loc[points["baseline"], "label"])
    curves = {}
    for name, of_variant in points[points["role"] == ""].groupby("label", sort=False):
        label, own = str(name), _grid(of_variant, axis)
        seeds = [seed for seed in own.columns if seed in base.columns]
        if label not in labels and seeds:
            curves[label] = (base[seeds], own[seeds])
    return curves


def _multiples(
    curves: Mapping[str, _Pair], differences: Mapping[str, Interval]
) -> dict[str, SpeedUp]:
    return {
        label: speed_up(_curve(base), _curve(own), differences[label])
        for label, (base, own) in curves.items()
    }


def _grid(points: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return losses by place along an axis, and by seed: those that have every place."""
    return points.pivot_table("loss", axis, "seed").dropna(axis=1)


def _curve(grid: pd.DataFrame) -> LossCurve:
    return LossCurve([float(x) for x in grid.index], grid.mean(axis=1).tolist())


def _turns(table: TableFrames, variant: str) -> Turns:
    """Return the training speeds of a variant, by process and turn of the measurement."""
    own = table.metrics[
        (table.metrics["variant"] == variant) & (table.metrics["name"] == "train_tokens_per_s")
    ]
    return own["by_process"].iloc[0] if len(own) else ()


def _log_ratios(own: Turns, base: Turns) -> list[float]:
    """Return the logarithm of the ratio in each process: its turns are one observation."""
    if [*map(len, own)] != [*map(len, base)]:
        return []
    return [math.log(medians.ratio([a], [b]).value) for a, b in zip(own, base, strict=True)]


def _described(
    table: str,
    label: str,
    along: str,
    of: SpeedUp,
    curves: Mapping[str, _Pair],
    difference: Interval,
) -> dict[str, Any]:
    ends = [float(grid.iloc[-1].mean()) for grid in curves[label]]
    row = {"table": table, "label": label, "along": along, "loss": max(ends)}
    row |= {"n": difference.n, "form": of.form}
    costs = [f"{cost}{end}" for cost in _COSTS for end in ("", *(f"_{end}" for end in _ENDS))]
    return row | dict.fromkeys(costs, math.nan)


def _cost(name: str, of: SpeedUp) -> dict[str, float]:
    """Return a multiple of a cost, its interval, and the bounds of what the runs can show."""
    ends = {f"{name}_{end}": math.exp(getattr(of, end)) for end in _ENDS}
    return {name: math.exp(of.value), **ends}
