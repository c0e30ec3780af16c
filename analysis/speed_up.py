"""Effective speed-up: how many times the tokens or FLOPs a baseline needs for the same loss.

    python analysis/speed_up.py results/reference/atlas/activations

Also called compute multiplier or efficiency gain (Hernandez & Brown 2020, arXiv:2005.04305; Ho et
al. 2024, arXiv:2403.05812). Above 1 the variant is cheaper. Losses are at the ends of runs whose
schedule ended there, or of branches of a warm-up, stable, decay run; points of a learning curve on
the way are not comparable. The curve of the better one is read where the worse one ends, and the
interval is that of the table's difference in loss, read the same way. No curve is extended.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import llama_ablate as la
from llama_ablate.evidence import Interval, medians, simultaneous
from llama_ablate.evidence.medians import Turns
from llama_ablate.evidence.scaling import law_between
from llama_ablate.findings.frames import Frames, LossPoint, TableFrames
from llama_ablate.findings.ladder import Grid
from llama_ablate.findings.rows import Row, cell, cells, column, grouped
from llama_ablate.results import Results
from llama_ablate.results.plan_document import BITS

Array = NDArray[np.float64]
_STEPS = 1000  # of a curve, between its shortest and its longest run
#: Fewest lengths that a curve is fitted through; one more checks its form.
LENGTHS = 3


@dataclass(frozen=True)
class LossCurve:
    """Mean losses over seeds of runs by their length, which ascends, in tokens or FLOPs."""

    x: Sequence[float]
    losses: Sequence[float]

    def saved(self, nats: float) -> tuple[float, float]:
        """Return how much less length reaches a loss that is so much higher than at the end.

        In natural logarithms of length, with the error of the curve's form there. Infinite, and no
        error, where the runs do not reach that far; with fewer than three lengths none does.
        """
        if nats == 0:
            return 0.0, 0.0
        at = self.where(self.losses[-1] + nats) if len(self.x) >= LENGTHS else -math.inf
        if math.isinf(at):
            return math.inf, 0.0
        logs = np.log(self.x)
        return float(logs[-1]) - at, self._slope * float(np.abs(logs - at).min())

    @property
    def form(self) -> float:
        """By which share a length is missed that is left out, the worst of them; NaN unchecked."""
        errors = [error for error, _ in self._left_out]
        return math.expm1(max(errors)) if errors else math.nan

    @property
    def _slope(self) -> float:
        """The error of the form over the logarithm of length to the nearest run; 0 unchecked."""
        return max((error / gap for error, gap in self._left_out), default=0.0)

    @cached_property
    def _left_out(self) -> list[tuple[float, float]]:
        """How far each inner length is from where the others have its loss, and from the next."""
        if len(self.x) <= LENGTHS:
            return []
        logs, inner = np.log(self.x), range(1, len(self.x) - 1)
        others = [
            LossCurve([*self.x[:i], *self.x[i + 1 :]], [*self.losses[:i], *self.losses[i + 1 :]])
            for i in inner
        ]
        return [
            (
                abs(max(other.where(self.losses[i]), float(logs[0])) - float(logs[i])),
                float(min(logs[i] - logs[i - 1], logs[i + 1] - logs[i])),
            )
            for i, other in zip(inner, others, strict=True)
        ]

    @cached_property
    def _drawn(self) -> tuple[Array, Array]:
        """Logarithms of length, and the losses there.

        Between its measured points the curve follows their law, shifted as much as the points on
        both sides lie beside it.
        """
        logs, law = np.log(np.asarray(self.x, float)), law_between(self.x, self.losses)
        beside = [loss - law(x) for x, loss in zip(self.x, self.losses, strict=True)]
        at = np.linspace(logs[0], logs[-1], _STEPS)
        smooth = law.floor + law.scale * np.exp(-law.exponent * at)
        return at, smooth + np.interp(at, logs, beside)

    def where(self, loss: float) -> float:
        """Return the logarithm of the length from which on the loss is lower; -inf for none."""
        at, losses = self._drawn
        last = int(np.flatnonzero(losses >= loss).max(initial=-1))
        if last < 0:
            return -math.inf
        if last == len(at) - 1:
            return float(at[-1])
        share = (losses[last] - loss) / (losses[last] - losses[last + 1])
        return float(at[last] + share * (at[last + 1] - at[last]))


@dataclass(frozen=True)
class SpeedUp:
    """How many times a variant's length the baseline takes to the same loss, and its interval.

    All are natural logarithms but the form. Infinite where it is beyond the runs, above `most` or
    below `least`.
    """

    value: float
    low: float
    high: float
    least: float
    most: float
    #: By which share the curve misses a length that is left out; NaN where it has too few.
    form: float

    def times(self, ratio: float, half: float = 0.0) -> "SpeedUp":
        """Return the multiple of another cost, whose ratio has an interval of that half width.

        Both errors are independent. What is beyond the runs stays so, by a bound that allows for
        the ratio's error.
        """
        near = min(max(self.value, self.least), self.most)
        low = near - math.hypot(near - self.low, half) if self.low < near else self.low - half
        high = near + math.hypot(self.high - near, half) if self.high > near else self.high + half
        if math.isnan(half):
            low = high = math.nan
        return replace(
            self,
            value=self.value + ratio,
            low=low + ratio,
            high=high + ratio,
            least=self.least + ratio + half,
            most=self.most + ratio - half,
        )


def speed_up(baseline: LossCurve, variant: LossCurve, difference: Interval) -> SpeedUp:
    """Return the multiple of the baseline's length that reaches the same loss.

    `difference` is that of the losses at both ends, variant minus baseline. The better one's curve
    is read: how soon it was where the other ended. So the multiple leaves out 1 where the
    difference leaves out 0, unless the runs differ in length. No curve is extended: a difference
    that reaches higher than a curve begins is beyond the runs. The error of a curve's form grows
    from 0 at each of its runs by the worst that a run left out shows; it widens the interval
    (tests/test_speed_up_curves.py).
    """
    longer = math.log(baseline.x[-1] / variant.x[-1])

    def read(nats: float) -> tuple[float, float]:
        if math.isnan(nats):
            return math.nan, 0.0
        if nats <= 0:
            saved, error = variant.saved(-nats)
            return longer + saved, error
        saved, error = baseline.saved(nats)
        return longer - saved, error

    (high, over), (low, under) = read(difference.low), read(difference.high)
    return SpeedUp(
        value=read(difference.mean)[0],
        low=low - under,
        high=high + over,
        least=math.log(baseline.x[0] / variant.x[-1]),
        most=math.log(baseline.x[-1] / variant.x[0]),
        form=(variant if difference.mean <= 0 else baseline).form,
    )


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


def main() -> None:
    """Print the multiples of each variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of one experiment, or a pack")
    options = parser.parse_args()
    try:
        rows = speed_ups(Frames.of(Results.open(options.results)))
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if not rows:
        what = "has no runs or branches of three lengths or more"
        parser.exit(2, f"{parser.prog}: '{options.results}' {what}\n")
    print(cells(rows).to_string(index=False))


if __name__ == "__main__":
    main()
