"""The effective speed-up of each variant: the baseline's cost of the same loss, over its own."""

import math
from typing import Any

import pandas as pd

from llama_ablate.evidence import Interval, medians, simultaneous
from llama_ablate.evidence.medians import Turns
from llama_ablate.evidence.speed_up import Curve, SpeedUp, speed_up
from llama_ablate.evidence.text import StandardError
from llama_ablate.report.frames import Frames, TableFrames

_LENGTHS = 3  # fewest of a curve
_ALPHA = 0.05
_COSTS = ("tokens", "flops", "seconds")


def speed_ups(frames: Frames) -> pd.DataFrame:
    """Return one row for each variant whose table's baseline has runs of three lengths or more.

    Columns: `table, label, along, loss, n, beyond, unit`, and `tokens, flops, seconds`, each also
    with `_low` and `_high`: how many times the variant's own cost the baseline needs for the same
    loss. Where variants differ in their tokens, `tokens` is of text. Lengths are those of branches
    of runs (`along` is `lengths`); without branches those of a ladder of sizes, whose compute alone
    is compared (`sizes`). `n` counts the seeds, `beyond` says in how many of them the curves do not
    reach the loss: then there is no multiple, and where it is all of them, `_low` is what it is
    above (`_high` infinite), or `_high` what it is below (`_low` 0). The intervals of a table hold
    at once, at the level of its differences in loss, and with the same parts: seeds, and held-out
    texts.
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
    multiples = _multiples(points.assign(tokens=of_text), "tokens")
    if not multiples:
        return []
    errors, standing = table.text_errors(), table.intervals
    texts = {
        label: StandardError(errors[id_].se / of.fall, errors[id_].df)
        for label, of in multiples.items()
        if (id_ := variants[label].id) in errors and of.fall > 0
    }
    # A row keeps the level that its difference in loss is judged at, looks included.
    shares = {
        label: standing[variants[label].id].alpha * len(multiples) / _ALPHA for label in multiples
    }
    intervals = simultaneous(
        {label: of.logs for label, of in multiples.items()}, text_errors=texts, shares=shares
    )
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
        row = _described(table.plan.name, label, "lengths", of)
        row |= _cost("tokens", of, intervals[label])
        row |= _cost("flops", of, intervals[label], flops)
        pace = paces.get(label)
        row |= _cost("seconds", of, intervals[label], pace.mean, _half(pace)) if pace else {}
        rows.append(row)
    return rows


def _of_sizes(frames: Frames) -> list[dict[str, Any]]:
    """Return the rows of a ladder of sizes, along compute."""
    if frames.ladder.empty:
        return []
    multiples = _multiples(frames.ladder[~frames.ladder["branch"]], "compute")
    intervals = simultaneous({label: of.logs for label, of in multiples.items()})
    return [
        _described("", label, "sizes", of) | _cost("flops", of, intervals[label])
        for label, of in multiples.items()
    ]


def _multiples(points: pd.DataFrame, axis: str) -> dict[str, SpeedUp]:
    """Return each variant's multiple along an axis of the baseline's, over the seeds of both."""
    base = _grid(points[points["baseline"]], axis) if len(points) else pd.DataFrame()
    if len(base) < _LENGTHS:
        return {}
    labels = set(points.loc[points["baseline"], "label"])
    multiples = {}
    for name, of_variant in points[points["role"] == ""].groupby("label", sort=False):
        label, own = str(name), _grid(of_variant, axis)
        seeds = [seed for seed in own.columns if seed in base.columns]
        if label not in labels and seeds:
            multiples[label] = speed_up(_curve(base[seeds]), _curve(own[seeds]))
    return multiples


def _grid(points: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return losses by place along an axis, and by seed: those that have every place."""
    return points.pivot_table("loss", axis, "seed").dropna(axis=1)


def _curve(grid: pd.DataFrame) -> Curve:
    return Curve([float(x) for x in grid.index], grid.to_numpy().tolist())


def _half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


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


def _described(table: str, label: str, along: str, of: SpeedUp) -> dict[str, Any]:
    seeds = len(of.logs) + of.above + of.below
    outside = of.above + of.below
    row: dict[str, Any] = {
        "table": table,
        "label": label,
        "along": along,
        "loss": of.loss,
        "n": seeds,
        "beyond": f"in {outside} of {seeds} seeds" if outside else "",
    }
    costs = [f"{cost}{end}" for cost in _COSTS for end in ("", "_low", "_high")]
    return row | dict.fromkeys(costs, math.nan)


def _cost(
    name: str, of: SpeedUp, interval: Interval, ratio: float = 0.0, half: float = 0.0
) -> dict[str, float]:
    """Return a multiple of a cost: that of the length times a ratio, given as a logarithm.

    `half` is half the width of the ratio's own interval, NaN where it has none: then the multiple
    has none either. Both errors are independent.
    """
    if of.above or of.below:
        ends = (math.nan, math.nan)
        if math.isnan(half):
            pass
        elif not of.logs and not of.below:
            ends = (of.most * math.exp(ratio - half), math.inf)
        elif not of.logs and not of.above:
            ends = (0.0, of.least * math.exp(ratio + half))
        return {name: math.nan, f"{name}_low": ends[0], f"{name}_high": ends[1]}
    middle, wide = interval.mean + ratio, math.hypot(_half(interval), half)
    return {
        name: math.exp(middle),
        f"{name}_low": math.exp(middle - wide),
        f"{name}_high": math.exp(middle + wide),
    }
