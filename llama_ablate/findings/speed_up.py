"""The effective speed-up of each variant: the baseline's cost of the same loss, over its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llama_ablate.evidence import Interval, medians, simultaneous
from llama_ablate.evidence.medians import Turns
from llama_ablate.evidence.speed_up import LENGTHS, LossCurve, SpeedUp, speed_up
from llama_ablate.findings.frames import Frames, LossPoint, TableFrames
from llama_ablate.findings.ladder import Grid
from llama_ablate.findings.rows import Row, cell, column, grouped
from llama_ablate.results.plan_document import BITS

_ALPHA = 0.05


class Multiple(NamedTuple):
    """How many times a cost: with its interval, and the bounds of what the runs can show.

    Beyond the runs it is infinite, above `most`, or 0, below `least`; so are the ends.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    least: float = math.nan
    most: float = math.nan

    def __str__(self) -> str:
        """Write it with its interval; what is beyond the runs by what it is above or below."""
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low) or self.low == self.high:
            return self._bounded(self.value, "x")
        ends = f"{self._bounded(self.low)}, {self._bounded(self.high)}"
        return f"{self._bounded(self.value, 'x')} [{ends}]"

    def __format__(self, form: str) -> str:
        """Write it, whatever the format."""
        return str(self)

    def _bounded(self, one: float, unit: str = "") -> str:
        if one == 0 or math.isinf(one):
            return f"below {self.least:.2f}{unit}" if one == 0 else f"above {self.most:.2f}{unit}"
        return f"{one:.2f}{unit}"


@dataclass(frozen=True)
class SpeedUpRow(Row):
    """How many times a variant's cost of a loss the baseline needs for it."""

    table: str = column("name of the table; empty where there is one", "table", optional=True)
    label: str = column("label of the variant", "variant")
    along: str = column("`lengths` of branches of runs, or `sizes` of a ladder")
    loss: float = column("the higher loss of both ends", "at a loss of ({unit})", ".4f")
    n: int = column("number of seeds")
    form: float = column(
        "share by which the curve that is read misses a length that is left out; missing with three"
    )
    tokens: Multiple = column("of tokens; where tokenizers differ of text", default=Multiple())
    flops: Multiple = column("of training FLOPs", default=Multiple())
    seconds: Multiple = column("of seconds of training", default=Multiple())
    unit: str = column("unit of the loss")

    @property
    def _text(self) -> str:
        return "text" if self.unit == BITS.name else "tokens"

    @cell("{_text} [95% interval]")
    def of_tokens(self) -> str:
        """Write the multiple of tokens."""
        return str(self.tokens)

    @cell("FLOPs [95% interval]")
    def of_flops(self) -> str:
        """Write the multiple of FLOPs."""
        return str(self.flops)

    @cell("seconds [95% interval]")
    def of_seconds(self) -> str:
        """Write the multiple of seconds."""
        return str(self.seconds)

    @cell("form of the curve")
    def checked(self) -> str:
        """Write how well the curve finds a length that is left out."""
        return "unchecked" if math.isnan(self.form) else f"within {self.form:.0%}"


def speed_ups(frames: Frames) -> list[SpeedUpRow]:
    """Return one row for each variant whose table's baseline has runs of three lengths or more.

    Lengths are those of branches of runs; without branches those of a ladder of sizes, whose
    compute alone is compared. The intervals are those of the differences in loss.
    """
    return [row for table in frames.tables for row in _of_lengths(table)] or _of_sizes(frames)


def _of_lengths(table: TableFrames) -> list[SpeedUpRow]:
    """Return the rows of a table whose runs have branches."""
    variants = {v.label: v for v in table.plan.variants}
    text = {label: table.plan.text_per_token(variant) for label, variant in variants.items()}
    # In the baseline's tokens.
    curves = _curves(table.points, lambda point: point.tokens * text[point.label])
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
        flops = math.log(text[label] * base.flops / variants[label].flops)
        pace = paces.get(label)
        seconds = of.times(pace.mean, (pace.high - pace.low) / 2) if pace else None
        costs = {"tokens": of, "flops": of.times(flops), "seconds": seconds}
        rows.append(_row(table, label, "lengths", curves[label], standing[label], of.form, costs))
    return rows


def _of_sizes(frames: Frames) -> list[SpeedUpRow]:
    """Return the rows of a ladder of sizes, along compute."""
    if not frames.rungs:
        return []
    ends = [point for point in frames.ladder if not point.branch]
    curves = _curves(ends, lambda point: point.compute)
    largest = max(frames.rungs, key=lambda rung: rung.plan.baseline.non_embedding)
    standing = _differences(largest)
    return [
        replace(
            _row(largest, label, "sizes", curves[label], standing[label], of.form, {"flops": of}),
            table="",
        )
        for label, of in _multiples(curves, standing).items()
    ]


def _row(
    table: TableFrames,
    label: str,
    along: str,
    curves: "_Pair",
    difference: Interval,
    form: float,
    costs: Mapping[str, SpeedUp | None],
) -> SpeedUpRow:
    multiples = {
        name: Multiple(*map(math.exp, (of.value, of.low, of.high, of.least, of.most)))
        for name, of in costs.items()
        if of
    }
    return SpeedUpRow(
        table=table.plan.name,
        label=label,
        along=along,
        loss=max(float(grid.losses[-1].mean()) for grid in curves),
        n=difference.n,
        form=form,
        unit=table.unit.name,
        **multiples,
    )


def _differences(table: TableFrames) -> dict[str, Interval]:
    return {v.label: table.intervals[v.id] for v in table.plan.variants if not v.baseline}


#: The losses of the baseline and of a variant, by length and by the seeds that both have.
_Pair = tuple[Grid[float], Grid[float]]


def _curves(points: Sequence[LossPoint], place: Callable[[LossPoint], float]) -> dict[str, _Pair]:
    """Return the losses along an axis of each variant, none where the baseline's are too few."""
    base = Grid.of((point for point in points if point.baseline), place)
    if len(base.places) < LENGTHS:
        return {}
    curves = {}
    others = [point for point in points if not (point.role or point.baseline)]
    for label, of_variant in grouped(others, lambda point: point.label).items():
        own = Grid.of(of_variant, place)
        seeds = [seed for seed in own.seeds if seed in base.seeds]
        if seeds:
            curves[label] = (base.only(seeds), own.only(seeds))
    return curves


def _multiples(
    curves: Mapping[str, _Pair], differences: Mapping[str, Interval]
) -> dict[str, SpeedUp]:
    return {
        label: speed_up(_curve(base), _curve(own), differences[label])
        for label, (base, own) in curves.items()
    }


def _curve(grid: Grid[float]) -> LossCurve:
    return LossCurve([*grid.places], grid.losses.mean(axis=1).tolist())


def _turns(table: TableFrames, variant: str) -> Turns:
    """Return the training speeds of a variant, by process and turn of the measurement."""
    rows = table.metrics.named.get("train_tokens_per_s", ())
    return next((row.by_process for row in rows if row.variant == variant), ())


def _log_ratios(own: Turns, base: Turns) -> list[float]:
    """Return the logarithm of the ratio in each process: its turns are one observation."""
    if [*map(len, own)] != [*map(len, base)]:
        return []
    return [math.log(medians.ratio([a], [b]).value) for a, b in zip(own, base, strict=True)]
