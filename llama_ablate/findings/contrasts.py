"""Effects of factors in a factorial design, and of the steps along a path."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text, name_level
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import Contrast, Interval, judged, simultaneous
from llama_ablate.evidence.factorial import FactorEffect, every_effect
from llama_ablate.evidence.written import Estimate, decimals, number, p_value
from llama_ablate.findings import tuning
from llama_ablate.findings.comparison import NOTHING
from llama_ablate.findings.controls import held
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.outcomes import sides
from llama_ablate.findings.rows import DIFFERENCE, Row, cell, column, grouped, shared
from llama_ablate.findings.stages import grid_effects
from llama_ablate.results.plan_document import PlannedTable, PlannedVariant

T = TypeVar("T")

_MOST_SAVED = 10  # times: beyond, a few seeds do not tell how many
_WIDE = 2  # times the median half width, beyond which a row says why
#: What an interaction's interval says: two changes together are neither better nor worse.
_TOGETHER = {"better": "lower together", "worse": "higher together", "equivalent": "add up"}
_UNKNOWN = "not estimable"


@dataclass(frozen=True)
class FactorRow(Row):
    """What a change does to the loss, on average over all settings of the other factors."""

    factor: str = column("the factor, or two of them")
    effect: str = column("the change in words", "effect", leading=True)
    difference: float = column("effect on the loss; below 0 is better")
    low: float = column("lower end of its interval, which holds for all rows at once")
    high: float = column("upper end of it")

    @cell(DIFFERENCE, leading=True)
    def of_difference(self) -> str:
        """Write the effect with its interval."""
        return str(Estimate(self.difference, self.low, self.high))

    verdict: str = column("what the interval says", "verdict", leading=True)

    @cell("at half the length", optional=True)
    def of_half(self) -> str:
        """Write how the verdict at half the length of training compares."""
        return self.half or ""

    why: str = column(
        "why the interval is wide, or there is none", "why so wide", leading=True, optional=True
    )
    bias: str = column("what is known of a bias, as in the comparison", "bias", optional=True)

    @cell("learning rate", optional=True)
    def of_rate(self) -> str:
        """Write whether the learning rate was tuned."""
        return self.rate

    p_corrected: float = column("two-sided p value, corrected for the number of rows")
    alpha: float = column("error that the row's interval spends")
    df: float = column("degrees of freedom of the standard error")
    seed_se: float = column("standard error over seeds")
    text_se: float = column("standard error over held-out texts")
    pooled: bool = column("whether the variance is that left over in all cells")
    changed: str = column("of an interaction, the change whose effect varies; else empty")
    present: str = column("the other factor's level that is named")
    with_present: float = column("effect of `changed` there")
    absent: str = column("the level that it is compared with")
    with_absent: float = column("effect of `changed` there")

    @cell("its effect", leading=True, optional=True)
    def in_words(self) -> str:
        """Write what one factor does at either level of another."""
        if not self.changed or math.isnan(self.difference):
            return ""
        form = f"+z.{decimals(self.low, self.high)}f"
        return (
            f"{self.changed}: {self.with_present:{form}} with {self.present}, "
            f"{self.with_absent:{form}} with {self.absent}"
        )

    @cell("p, corrected")
    def of_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    aliases: str = column("effects that the cells cannot tell from it")
    rate: str = column("as in the comparison")
    half: str | None = column("as in the comparison", default=None)


@dataclass(frozen=True)
class AxisRow(Row):
    """How far the levels of a factor lie apart, on average over the settings of the others."""

    axis: str = column("the factor", "axis", leading=True)
    levels: int = column("how many levels it has")
    range: float = column("loss at its highest level minus that at its lowest")
    low: float = column("lower end of its interval, which holds with those of all effects at once")
    high: float = column("upper end of it")

    @cell("range [95%]", leading=True)
    def of_range(self) -> str:
        """Write the range with its interval."""
        return f"{Estimate(self.range, self.low, self.high):.{decimals(self.low, self.high)}f}"

    lowest: str = column(
        "levels none other is surely lower than", "lowest, or may be", leading=True
    )
    order: str = column(
        "levels by their loss, less that of the lowest", "levels, the lowest first", leading=True
    )
    more_than: str = column(
        "axes that surely matter less", "matters more than", optional=True, default=""
    )


@dataclass(frozen=True)
class StepRow(Row):
    """What a step of a path changes against the step before it, and all steps so far."""

    step: str = column("label of the variant", "step", leading=True)
    n: int = column("number of pairs", "n", leading=True)
    marginal: float = column("mean difference from the step before; below 0 is better")
    marginal_low: float = column("lower end of its interval, which holds for all steps at once")
    marginal_high: float = column("upper end of it")

    @cell("this step [95%]", leading=True)
    def of_step(self) -> str:
        """Write what the step changes, with its interval."""
        return str(Estimate(self.marginal, self.marginal_low, self.marginal_high))

    verdict: str = column("what the interval says", "verdict", leading=True)

    @cell("bias", leading=True, optional=True)
    def of_bias(self) -> str:
        """Write what is known of a bias."""
        return self.bias

    @cell("learning rate", leading=True, optional=True)
    def of_rate(self) -> str:
        """Write whether the learning rate was tuned."""
        return self.rate

    bias: str = column("what is known of a bias, as in the comparison")
    p_corrected: float = column("two-sided p value, corrected for the number of steps")
    cumulative: float = column("mean difference from the baseline")
    cumulative_low: float = column("lower end of its interval")
    cumulative_high: float = column("upper end of it")

    @cell("all so far [95%]", leading=True)
    def so_far(self) -> str:
        """Write what all steps so far change, with the interval."""
        return str(Estimate(self.cumulative, self.cumulative_low, self.cumulative_high))

    @cell("p of the step, corrected")
    def of_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    rate: str = column("as in the comparison")

    @property
    def variant(self) -> str:
        """The label of the variant."""
        return self.step


def _once_a_table(compute: Callable[[TableFrames], T]) -> Callable[[TableFrames], T]:
    """Keep what is computed of a table for as long as the table is there: many parts show it."""
    known: WeakKeyDictionary[TableFrames, T] = WeakKeyDictionary()

    @wraps(compute)
    def computed(table: TableFrames) -> T:
        if table not in known:
            known[table] = compute(table)
        return known[table]

    return computed


@_once_a_table
def factors(table: TableFrames) -> list[FactorRow]:
    """Return what each level does against another, and two together, of a grid of factors.

    Of each kind the factors of the largest effect first. What the runs cannot tell says so. None
    for other designs, and until every variant has finished a seed or failed.
    """
    found = {one.effect: one for one in effects(table)}
    if not found:
        return []
    names = level_names(table.plan, table.experiment)
    rate = next((row.rate for row in table.comparison if row.rate), "")
    size = {effect: abs(one.interval.mean) for effect, one in found.items()}
    largest = {e.factors: size[e] for e in sorted(size, key=lambda effect: size[effect])}

    def place(effect: FactorEffect) -> tuple[object, ...]:
        own = largest.get(effect.factors, 0.0)
        return len(effect.factors), -own, effect.factors, -size.get(effect, 0.0)

    factors = list(names)
    cells = {cell.id: [cell.levels[name] for name in factors] for cell in _cells(table)}
    return [
        _row(effect, names, found, table, rate if "train.optimizer" in effect.factors else "")
        for effect in sorted(every_effect(cells, factors), key=place)
    ]


@_once_a_table
def axes(table: TableFrames) -> list[AxisRow]:
    """Return how far the levels of each factor lie apart, the largest range first.

    The intervals of all pairs hold at once, and so does the range's: at least what any pair differs
    by for sure, at most what any pair may. Where those of two do not meet, one surely matters more.
    None where a pair of levels cannot be told apart.
    """
    rows = []
    for name, labels in level_names(table.plan, table.experiment).items():
        pairs = {e.effect.levels[0]: e.interval for e in effects(table) if e.factors == (name,)}
        if not pairs or len(pairs) < math.comb(len(labels), 2):
            continue
        pairs |= {(on, off): -interval for (off, on), interval in pairs.items()}
        onto = grouped(pairs, lambda pair: pair[1])
        above = {level: max(pairs[pair].mean for pair in onto[level]) for level in labels}
        surely = {level: max(pairs[pair].low for pair in onto[level]) for level in labels}
        first, *others = sorted(labels, key=lambda level: above[level])
        low, high = max(0.0, *surely.values()), max(i.high for i in pairs.values())
        form = f"+.{decimals(low, high)}f"
        rows.append(
            AxisRow(
                axis=name,
                levels=len(labels),
                range=max(above.values()),
                low=low,
                high=high,
                lowest=", ".join(
                    labels[level] for level in (first, *others) if not surely[level] > 0
                ),
                order=", ".join(
                    [labels[first], *(f"{labels[level]} {above[level]:{form}}" for level in others)]
                ),
            )
        )
    less = {row.axis: ", ".join(one.axis for one in rows if one.high < row.low) for row in rows}
    rows = [replace(row, more_than=less[row.axis]) for row in rows]
    return sorted(rows, key=lambda row: -row.range)


def told(table: TableFrames) -> list[FactorRow]:
    """Return the largest change of each factor, the largest first: what a headline needs."""
    rows = [row for row in factors(table) if not (row.changed or math.isnan(row.difference))]
    first = {row.factor: row for row in reversed(rows)}
    return [row for row in rows if row is first[row.factor]]


@dataclass(frozen=True)
class DiagnosticRow(Row):
    """What the interval of a variant's difference, or of an effect, is made of."""

    label: str | None = column("label of the variant", "variant", optional=True, default=None)
    effect: str | None = column("the effect in words", "effect", optional=True, default=None)
    n: int | None = column("number of pairs", "n", optional=True, default=None)
    sd: float | None = column("standard deviation of the loss over seeds", default=None)
    seed_se: float = column("standard error over seeds", "error of seeds", ".2g")

    text_se: float = column(
        "standard error over held-out texts",
        "error of the text",
        ".2g",
        when=lambda row: row.text_se > 0,
    )
    df: float = column("degrees of freedom", "degrees of freedom", ".1f")
    alpha: float = column("error that the interval spends")
    pooled: bool = column("whether the variance is estimated with the other rows'")

    @cell("variance")
    def of_variance(self) -> str:
        """Write whose variance it is."""
        return "" if math.isnan(self.df) else "pooled" if self.pooled else "own"

    @cell("level")
    def of_level(self) -> str:
        """Write the level at which the interval holds alone."""
        return number(100 * (1 - self.alpha), ".4g", "%")

    look: float | None = column("which of the looks the row is from", default=None)
    looks: int | None = column("how many are planned", default=None)

    @cell("look", when=lambda row: (row.looks or 1) > 1)
    def of_look(self) -> str:
        """Write the look."""
        return "" if self.look is None else number(self.look, ".0f", f" of {self.looks}")

    def _has_pairs(self) -> bool:
        return not math.isnan(self.correlation or 0.0) and self.correlation is not None

    correlation: float | None = column(
        "correlation over seeds with the baseline",
        "r over seeds",
        ".2f",
        when=_has_pairs,
        default=None,
    )
    pairing_saves: float | None = column(
        "how many times the runs an unpaired design would need", default=None
    )

    @cell("runs that pairing saves", when=_has_pairs)
    def saved(self) -> str:
        """Write what pairing saves: a rough figure."""
        times = self.pairing_saves or math.nan
        return f"over {_MOST_SAVED}x" if times > _MOST_SAVED else number(times, ".1f", "x")

    aliases: str | None = column(
        "effects that the cells cannot tell from it", "confounded with", optional=True, default=None
    )


def diagnostics(table: TableFrames) -> list[DiagnosticRow]:
    """Return what the intervals of a factorial design's effects, or of a table's rows, rest on."""
    rows: Sequence[Row] = factors(table) or [r for r in table.comparison if not r.baseline]
    return [DiagnosticRow(**shared(DiagnosticRow, row)) for row in rows]


def confounding(table: TableFrames) -> str:
    """Say which effects the cells of a factorial design cannot tell apart."""
    found, cells = effects(table), [one for one in _cells(table) if table.losses[one.id]]
    every = math.prod(len({one.levels[name] for one in cells}) for name in cells[0].levels)
    if len(cells) == every:
        return f"All {every} combinations were run: no effect is confounded with another."
    run = f"{len(cells)} of {every} combinations were run: "
    aliased = {len(one.factors): one.aliases for one in found}
    if not all(aliased.get(order) for order in (1, 2)):
        return run + (
            "an effect is that of least squares over those, an interaction that is not fitted "
            "beside it (for a factor of any two, for two of any three) is taken to be nil."
        )
    main, pair = (
        min(len(alias) for one in found if len(one.factors) == order for alias in one.aliases)
        for order in (1, 2)
    )
    return run + (
        f"a main effect is confounded with an "
        f"interaction of {main} factors, an interaction of two with one of {pair}; those are taken "
        "to be nil."
    )


@_once_a_table
def steps(table: TableFrames) -> list[StepRow]:
    """Return the effect of each step of a path, and of all steps up to it together.

    None for other designs. Marginal is against the step before, as `step_intervals` has it;
    cumulative is the difference from the baseline, as the comparison has it. The verdict is the
    interval's, unless how a variant's runs ended decides.
    """
    total = {row.label: row for row in table.comparison}
    variants = {variant.label: variant for variant in table.plan.variants}
    plan, experiment = table.plan, table.experiment
    rows = []
    for (now, before), step in step_intervals(table).items():
        word = held(_of_step(table, step, now, before), table.controls)
        rows.append(
            StepRow(
                step=now,
                n=step.n,
                marginal=step.mean,
                marginal_low=step.low,
                marginal_high=step.high,
                verdict=word,
                bias=table.beside(word, step, float(variants[before].baseline)),
                p_corrected=step.p,
                cumulative=total[now].difference,
                cumulative_low=total[now].low,
                cumulative_high=total[now].high,
                rate=tuning.one_rate(plan, experiment, variants[now], variants[before]),
            )
        )
    return rows


@_once_a_table
def step_intervals(table: TableFrames) -> dict[tuple[str, str], Interval]:
    """Return the interval of each step of a path, by its label and that of the step before it.

    Over the seeds that both finished, in intervals that hold for all steps at once. The first step
    is a row of the comparison too: it has that row's interval, as one number has one. Empty for
    other designs.
    """
    if table.experiment.variants.design != "path":
        return {}
    pairs = [(now, before) for before, now in itertools.pairwise(_cells(table))]
    errors = {now.label: table.text_errors(before.id).get(now.id) for now, before in pairs}
    own = simultaneous(
        {
            now.label: _differences(table.losses[now.id], table.losses[before.id])
            for now, before in pairs
        },
        text_errors={label: error for label, error in errors.items() if error},
    )
    return {
        (now.label, before.label): table.intervals[now.id] if before.baseline else own[now.label]
        for now, before in pairs
    }


def _of_step(table: TableFrames, step: Interval, now: str, before: str) -> str:
    """Return a step's verdict, from its interval and how the runs of both variants ended."""
    words = {row.label: row.verdict for row in table.comparison}
    for label in (now, before):
        if words[label] in ("failed", "pending"):
            return words[label]
    ids = {variant.label: variant.id for variant in table.plan.variants}
    own, base = sides(table.reported, {ids[now]}, {ids[before]})
    if not (step.n or own.lost or base.lost):
        return "pending"
    return judged(step, table.margin, own, base)


def _cells(table: TableFrames) -> list[PlannedVariant]:
    return [variant for variant in table.plan.variants if not variant.role]


@_once_a_table
def effects(table: TableFrames) -> list[Contrast]:
    """Return the contrasts of a grid of factors, at the look at which it stands; of others none.

    None while a cell without a loss may still get one.
    """
    cells = [cell for cell in _cells(table) if cell.levels]
    waiting = {run.variant for run in table.reported if run.outcome == "pending"}
    if not cells or any(cell.id in waiting and not table.losses[cell.id] for cell in cells):
        return []
    look = max(table.standings[cell.id].look for cell in cells if not cell.baseline)
    return grid_effects(table.plan, table.losses, table.by_document, table.shares[max(0, look)])


class _Named(NamedTuple):
    """Columns of an effect: what changes, and of an interaction what that does in either case."""

    effect: str
    changed: str = ""
    present: str = ""
    with_present: float = math.nan
    absent: str = ""
    with_absent: float = math.nan


def _named(
    effect: FactorEffect,
    names: Mapping[str, Mapping[int, str]],
    found: Mapping[FactorEffect, Contrast],
) -> _Named:
    (off, on), *other = effect.levels
    words = names[effect.factors[0]]
    if not other:
        return _Named(f"{words[on]} instead of {words[off]}")
    # On average over the levels of the other the first change does what it does alone.
    (base, level), second = other[0], names[effect.factors[1]]
    beyond = {base: 0.0} | {
        changes[1]: 2 * one.interval.mean
        for (factors, (first, *more)), one in found.items()
        for changes in more
        if factors == effect.factors and first == (off, on)
    }
    alone = [
        one.interval.mean * (1 if changes == ((off, on),) else -1)
        for (factors, changes), one in found.items()
        if factors == effect.factors[:1] and {*changes[0]} == {off, on}
    ]
    known = alone and beyond.keys() == second.keys()
    without = alone[0] - sum(beyond.values()) / len(beyond) if known else math.nan
    both = f"{words[on]} with {second[level]}"
    there = without + beyond.get(level, math.nan)
    return _Named(both, words[on], second[level], there, second[base], without)


def _row(
    effect: FactorEffect,
    names: Mapping[str, Mapping[int, str]],
    found: Mapping[FactorEffect, Contrast],
    table: TableFrames,
    rate: str,
) -> FactorRow:
    """Return an effect with its interval and verdict: of cells that it adds, less the others."""
    told, one = _named(effect, names, found), found.get(effect)
    interval = one.interval if one else NOTHING
    word, why, bias = _UNKNOWN, "its combinations were not run, or failed", ""
    if one:
        ended = sides(table.reported, *_sides(effect, _cells(table)))
        word = held(judged(interval, table.margin, *ended), table.controls)
        bias = table.beside(word, interval, -one.weights.get(table.plan.baseline.id, 0.0))
        usual = np.median([other.interval.high - other.interval.low for other in found.values()])
        of_seeds = "few runs" if interval.pooled else "varies over seeds"
        wide = interval.high - interval.low > _WIDE * usual
        why = ("the text" if interval.text_se > interval.seed_se else of_seeds) if wide else ""
    return FactorRow(
        factor=" x ".join(effect.factors),
        **told._asdict(),
        **shared(FactorRow, interval),
        difference=interval.mean,
        verdict=_TOGETHER.get(word, word) if len(effect.factors) > 1 else word,
        why=why,
        bias=bias,
        p_corrected=interval.p,
        aliases="; ".join(" x ".join(alias) for alias in one.aliases) if one else "",
        rate=rate,
    )


def _sides(effect: FactorEffect, cells: Sequence[PlannedVariant]) -> tuple[list[str], list[str]]:
    """Return the cells, by id, that an effect adds and that it takes."""
    by_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for one in cells:
        at = [one.levels[name] for name in effect.factors]
        signs = [(a == on) - (a == off) for a, (off, on) in zip(at, effect.levels, strict=True)]
        by_sign[math.prod(signs)].append(one.id)
    return by_sign[1], by_sign[-1]


def name_of(effect: FactorEffect, names: Mapping[str, Mapping[int, str]]) -> str:
    """Write an effect by its factors, and where one has more than two levels by those, too."""
    told = [
        name if len(names[name]) == 2 else f"{name} {names[name][on]} for {names[name][off]}"
        for name, (off, on) in zip(effect.factors, effect.levels, strict=True)
    ]
    return " x ".join(told)


def level_names(plan: PlannedTable, experiment: Experiment) -> dict[str, dict[int, str]]:
    """Write the levels of each factor of a grid: `gelu`, `lr=0.003`."""
    cells = [variant for variant in plan.variants if not variant.role]
    names = {}
    for name in plan.baseline.levels:
        values = {cell.levels[name]: _value(cell, name, plan, experiment) for cell in cells}
        labels = {cell.levels[name]: cell.level_labels.get(name) for cell in cells}
        texts = _written(name, values)
        names[name] = {level: labels[level] or texts[level] for level in sorted(values)}
    return names


def _value(cell: PlannedVariant, name: str, plan: PlannedTable, experiment: Experiment) -> object:
    """Return what a factor is in a cell: of a slot, a size, an option, text or `train`."""
    key, _, inner = name.partition(".")
    if key == "train":
        return cell.train.get(inner, getattr(experiment.train, inner))
    if key == "data":
        return cell.data.get(inner, getattr(plan.text_of(cell).source, inner))
    return cell.model[key][inner] if inner else cell.model[key]


def _written(name: str, values: Mapping[int, object]) -> dict[int, str]:
    if name not in (*SLOTS, "train.optimizer", "data.tokenizer"):
        return {level: name_level(name, value) for level, value in values.items()}
    short = {level: entry_text(value, options=False) for level, value in values.items()}
    if len({*short.values()}) == len(short):
        return short
    return {level: entry_text(value) for level, value in values.items()}


def _differences(losses: Mapping[int, float], against: Mapping[int, float]) -> list[float]:
    return [loss - against[seed] for seed, loss in losses.items() if seed in against]
