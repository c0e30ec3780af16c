"""Effects of the factors in a factorial design, and of steps along a path.

A path is a sequence of variants in which each variant adds one change to the variant before it. A
step is the comparison of a variant with the variant before it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text, name_level
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import NOTHING, Contrast, Difference, Ended, contrasts, judged
from llama_ablate.evidence.factorial import FactorEffect, every_effect, weights
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.written import Estimate, decimals, p_value
from llama_ablate.findings import tuning
from llama_ablate.findings.compare import NO_BIAS, RowFamily, compare_all, scale_ends
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.paired_table import loss_split, text_error_of
from llama_ablate.findings.rows import ENDS, DifferenceRow, Row, cell, column, grouped, shared
from llama_ablate.results.plan_document import PlannedTable, PlannedVariant

T = TypeVar("T")

_WIDE = 2  # a row wider than this multiple of the median width states the reason
#: Verdict of an interaction by the verdict on its interval, since no variant is better or worse.
_TOGETHER = {"better": "lower together", "worse": "higher together", "equivalent": "add up"}
_UNKNOWN = "not estimable"


@dataclass(frozen=True)
class FactorRow(DifferenceRow):
    """Table row for a factorial effect on the loss, averaged over the other factors.

    An interaction is a difference of differences: how the change of the second factor alters the
    effect of the first factor's change.
    """

    ORDER = (
        "factor",
        "effect",
        *ENDS,
        "verdict",
        "show_half",
        "why",
        "show_rate",
        "in_words",
        "show_p",
    )

    factor: str = column("the factor, or two of them")
    effect: str = column("the change in words", "effect", leading=True)
    why: str = column(
        "why the interval is wide, or there is none", "why so wide", leading=True, optional=True
    )
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
    aliases: str = column("effects that the cells cannot tell from it")
    rate: str = column("as in the comparison")
    half: str | None = column("as in the comparison", default=None)

    @cell("at half the length", optional=True)
    def show_half(self) -> str:
        """Write how the verdict at half the training length compares with the final verdict."""
        return self.half or ""

    @cell("learning rate", optional=True)
    def show_rate(self) -> str:
        """Write a warning if two optimizers were compared at a single learning rate."""
        return self.rate

    @cell("its effect", leading=True, optional=True)
    def in_words(self) -> str:
        """Write the effect of one change with and without another change."""
        if not self.changed or math.isnan(self.difference):
            return ""
        form = f"+z.{decimals(self.low, self.high)}f"
        return (
            f"{self.changed}: {self.with_present:{form}} with {self.present}, "
            f"{self.with_absent:{form}} with {self.absent}"
        )

    @cell("p, corrected")
    def show_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)


@dataclass(frozen=True)
class AxisRow(Row):
    """Table row for a factor: the range of the mean losses of its levels.

    The mean loss of a level is averaged over the levels of the other factors.
    """

    ORDER = ("axis", "show_range", "lowest", "order", "more_than")

    axis: str = column("the factor", "axis", leading=True)
    levels: int = column("how many levels it has")
    range: float = column("loss at its highest level minus that at its lowest")
    low: float = column("lower end of its interval, which holds with those of all effects at once")
    high: float = column("upper end of it")

    @cell("range [95%]", leading=True)
    def show_range(self) -> str:
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
    """Table row for a step of a path: its effect, and the cumulative effect."""

    ORDER = ("step", "n", "show_step", "verdict", "show_rate", "so_far", "show_p")

    step: str = column("label of the variant", "step", leading=True)
    n: int = column("number of pairs", "n", leading=True)
    marginal: float = column("mean difference from the step before; below 0 is better")
    marginal_low: float = column("lower end of its interval, which holds for all steps at once")
    marginal_high: float = column("upper end of it")
    verdict: str = column("what the interval says", "verdict", leading=True)
    p_corrected: float = column("two-sided p value, corrected for the number of steps")
    cumulative: float = column("mean difference from the baseline")
    cumulative_low: float = column("lower end of its interval")
    cumulative_high: float = column("upper end of it")
    rate: str = column("as in the comparison")

    @cell("this step [95%]", leading=True)
    def show_step(self) -> str:
        """Write the effect of the step, with its interval."""
        return str(Estimate(self.marginal, self.marginal_low, self.marginal_high))

    @cell("learning rate", leading=True, optional=True)
    def show_rate(self) -> str:
        """Write a warning if two optimizers were compared at a single learning rate."""
        return self.rate

    @cell("all so far [95%]", leading=True)
    def so_far(self) -> str:
        """Write the cumulative effect, with its interval."""
        return str(Estimate(self.cumulative, self.cumulative_low, self.cumulative_high))

    @cell("p of the step, corrected")
    def show_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    @property
    def variant(self) -> str:
        """Label of the variant."""
        return self.step


def _once_a_table(compute: Callable[[TableFrames], T]) -> Callable[[TableFrames], T]:
    """Cache a function's result for each table, as long as the table exists."""
    cache: WeakKeyDictionary[TableFrames, T] = WeakKeyDictionary()

    @wraps(compute)
    def computed(table: TableFrames) -> T:
        if table not in cache:
            cache[table] = compute(table)
        return cache[table]

    return computed


@_once_a_table
def factors(table: TableFrames) -> list[FactorRow]:
    """List the main effects and two-way interactions of a factorial design.

    Main effects come first, then interactions, each sorted by size. An effect that the runs do not
    determine has the verdict `not estimable`. The list is empty for other designs, and until every
    variant has finished a run or failed.
    """
    by_effect = {contrast.effect: contrast for contrast in find_contrasts(table)}
    if not by_effect:
        return []
    names = level_names(table.plan, table.experiment)
    rate = next((row.rate for row in table.comparison if row.rate), "")
    size = {effect: abs(contrast.interval.mean) for effect, contrast in by_effect.items()}
    largest = {e.factors: size[e] for e in sorted(size, key=lambda effect: size[effect])}

    def place(effect: FactorEffect) -> tuple[object, ...]:
        magnitude = largest.get(effect.factors, 0.0)
        return len(effect.factors), -magnitude, effect.factors, -size.get(effect, 0.0)

    factors = list(names)
    cells = {cell.id: [cell.levels[name] for name in factors] for cell in _cells(table)}
    return [
        _row(effect, names, by_effect, table, rate if "train.optimizer" in effect.factors else "")
        for effect in sorted(every_effect(cells, factors), key=place)
    ]


@_once_a_table
def axes(table: TableFrames) -> list[AxisRow]:
    """Return one row for each factor, with the range of the loss over its levels.

    The rows are sorted by range, the largest first. The intervals of the differences between all
    pairs of levels are simultaneous, and so are the intervals of the ranges. The lower end of a
    range is the largest lower end of any pair (at least 0), the upper end of a range the largest
    upper end of any pair. If the intervals of two factors' ranges do not overlap, the factor with
    the larger range has the larger effect. A factor is left out if the difference between any two
    of its levels is not estimable.
    """
    rows = []
    for name, labels in level_names(table.plan, table.experiment).items():
        axis_contrasts = (
            contrast for contrast in find_contrasts(table) if contrast.factors == (name,)
        )
        pairs = {contrast.effect.levels[0]: contrast.interval for contrast in axis_contrasts}
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
    less = {
        row.axis: ", ".join(smaller.axis for smaller in rows if smaller.high < row.low)
        for row in rows
    }
    rows = [replace(row, more_than=less[row.axis]) for row in rows]
    return sorted(rows, key=lambda row: -row.range)


def confounding(table: TableFrames) -> str:
    """Describe in a sentence which effects of a factorial design are confounded."""
    estimated = find_contrasts(table)
    cells = [cell for cell in _cells(table) if table.losses[cell.id]]
    every = math.prod(len({cell.levels[name] for cell in cells}) for name in cells[0].levels)
    if len(cells) == every:
        return f"All {every} combinations were run: no effect is confounded with another."
    run = f"{len(cells)} of {every} combinations were run: "
    aliased = {len(contrast.factors): contrast.aliases for contrast in estimated}
    if not all(aliased.get(order) for order in (1, 2)):
        return run + (
            "an effect is that of least squares over those, an interaction that is not fitted "
            "beside it (for a factor of any two, for two of any three) is taken to be nil."
        )
    main, pair = (
        min(
            len(alias)
            for contrast in estimated
            if len(contrast.factors) == order
            for alias in contrast.aliases
        )
        for order in (1, 2)
    )
    return run + (
        f"a main effect is confounded with an "
        f"interaction of {main} factors, an interaction of two with one of {pair}; those are taken "
        "to be nil."
    )


@_once_a_table
def steps(table: TableFrames) -> list[StepRow]:
    """List the steps of a path, each with its marginal and its cumulative effect.

    The marginal effect is the difference from the variant before, the cumulative effect the
    difference from the baseline, as in the comparison table. The verdict follows from the marginal
    effect's interval, unless lost or missing runs of the two variants determine the verdict. The
    list is empty for other designs.
    """
    total = {row.label: row for row in table.comparison}
    plan, experiment = table.plan, table.experiment
    rows = []
    for (now, before), step in compare_steps(table).items():
        variant, other = plan.variant(now), plan.variant(before)
        cumulative, interval = total[variant.label], step.interval
        rows.append(
            StepRow(
                step=variant.label,
                n=interval.n,
                marginal=interval.mean,
                marginal_low=interval.low,
                marginal_high=interval.high,
                verdict=_describe_step(
                    table, step, (total[other.label].verdict, cumulative.verdict)
                ),
                p_corrected=interval.p,
                cumulative=cumulative.difference,
                cumulative_low=cumulative.low,
                cumulative_high=cumulative.high,
                rate=tuning.one_rate(plan, experiment, variant, other),
            )
        )
    return rows


@_once_a_table
def compare_steps(table: TableFrames) -> dict[tuple[str, str], Difference]:
    """Compare each variant of a path with the variant before it; return differences by ids.

    The intervals are simultaneous over all steps. The first step is a comparison with the baseline,
    and therefore keeps its interval from the comparison table. The mapping is empty for other
    designs.
    """
    if table.experiment.variants.design != "path":
        return {}
    cells = [variant for variant in table.plan.variants if not variant.role]
    pairs = [(now.id, before.id) for before, now in itertools.pairwise(cells)]
    compared, base = compare_all(table, table.loss, RowFamily(pairs)), table.plan.baseline.id
    return {
        (now, before): table.standings[now].row if before == base else row
        for (now, before), row in compared.items()
    }


def _describe_step(table: TableFrames, step: Difference, words: Sequence[str]) -> str:
    """Return the verdict on a step of a path.

    `words` holds the verdicts of the step's two variants in the comparison table; a verdict
    `failed` or `pending` also applies to the step.
    """
    for word in words:
        if word in ("failed", "pending"):
            return word
    if not (step.interval.n or step.own.lost or step.other.lost):
        return "pending"
    return step.judged(table.equivalence)


def _cells(table: TableFrames) -> list[PlannedVariant]:
    return [variant for variant in table.plan.variants if not variant.role]


@_once_a_table
def find_contrasts(table: TableFrames) -> list[Contrast]:
    """Estimate the effects of a factorial design; return [] for other designs.

    A cell is a variant of the design: one combination of factor levels. The list is also empty
    while a cell without a loss has a pending run, and, in an experiment with looks (interim
    analyses), while any cell has a pending run. The estimates use each seed for which at least two
    cells have a loss, and each cell that has a loss for such a seed. Each interval is widened by
    the bias bound of the repeated baseline.
    """
    experiment, base = table.experiment, table.plan.baseline
    names, losses = list(base.levels), _losses(table)
    cells = {v.id: [v.levels[name] for name in names] for v in table.plan.variants if v.levels}
    waiting = {
        run.variant for run in table.planned if run.use == "reported" and run.outcome == "pending"
    }
    has_looks = len(experiment.looks) > 1
    if any(cell in waiting and (has_looks or not losses[cell]) for cell in cells):
        return []
    count = Counter(seed for cell in cells for seed in losses[cell])
    seeds = sorted(seed for seed, runs in count.items() if runs > 1)
    levels = {
        cell: coordinates for cell, coordinates in cells.items() if losses[cell].keys() & {*seeds}
    }
    if not levels:
        return []
    by_effect: dict[FactorEffect, dict[int, Mapping[str, float]]] = {
        effect: {} for effect in weights(levels, names)
    }
    for seed in seeds:
        there = {cell: coordinates for cell, coordinates in levels.items() if seed in losses[cell]}
        for effect, weight in weights(there, names).items():
            by_effect.get(effect, {})[seed] = dict(zip(there, weight, strict=True))
    documents = table.documents(loss_split(table, table.loss))
    errors = {
        effect: text_error_of(effect_losses, documents)
        for effect, effect_losses in by_effect.items()
    }
    estimated = contrasts(
        levels,
        names,
        {cell: [losses[cell].get(seed, math.nan) for seed in seeds] for cell in levels},
        text_errors={effect: error for effect, error in errors.items() if error},
        alpha=ALPHA * (1.0 if has_looks else (experiment.spend or (1.0,))[0]),
    )
    bias = table.bias or NO_BIAS
    ends = {
        contrast.effect: scale_ends(bias, -contrast.weights.get(base.id, 0.0))
        for contrast in estimated
    }
    return [
        replace(contrast, interval=contrast.interval.widened(ends[contrast.effect]))
        for contrast in estimated
    ]


def _losses(table: TableFrames) -> dict[str, dict[int, float]]:
    """Return the reported losses of ok runs by variant id and seed."""
    losses: dict[str, dict[int, float]] = {variant.id: {} for variant in table.plan.variants}
    for variant, runs_by_seed in table.at_point.items():
        for seed, run in runs_by_seed.items():
            if run.outcome == "ok" and math.isfinite(loss := run.number(table.loss)):
                losses[variant][seed] = loss
    return losses


class _Named(NamedTuple):
    """Texts and numbers that describe an effect in its table row.

    A main effect has only a name, `effect`. For an interaction, the other fields describe the first
    factor's change, and the effect of this change at two levels of the second factor.
    """

    effect: str
    changed: str = ""
    present: str = ""
    with_present: float = math.nan
    absent: str = ""
    with_absent: float = math.nan


def _name_effect(
    effect: FactorEffect,
    names: Mapping[str, Mapping[int, str]],
    found: Mapping[FactorEffect, Contrast],
) -> _Named:
    (off, on), *other = effect.levels
    words = names[effect.factors[0]]
    if not other:
        return _Named(f"{words[on]} instead of {words[off]}")
    # Averaged over the levels of the other factor, the first change has its main effect.
    (base, level), second = other[0], names[effect.factors[1]]
    beyond = {base: 0.0} | {
        changes[1]: effect_row.interval.mean
        for (factors, (first, *more)), effect_row in found.items()
        for changes in more
        if factors == effect.factors and first == (off, on)
    }
    alone = [
        effect_row.interval.mean * (1 if changes == ((off, on),) else -1)
        for (factors, changes), effect_row in found.items()
        if factors == effect.factors[:1] and {*changes[0]} == {off, on}
    ]
    is_known = alone and beyond.keys() == second.keys()
    without = alone[0] - sum(beyond.values()) / len(beyond) if is_known else math.nan
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
    """Return the row of an effect, with its interval and its verdict."""
    named, contrast = _name_effect(effect, names, found), found.get(effect)
    interval = contrast.interval if contrast else NOTHING
    word, why = _UNKNOWN, "its combinations were not run, or failed"
    if contrast:
        sides = _sides(effect, _cells(table))
        ended = [Ended.of(r.ended for r in table.reported if r.variant in ids) for ids in sides]
        word = judged(interval, table.equivalence, *ended)
        usual = np.median([other.interval.high - other.interval.low for other in found.values()])
        spread_word = "few runs" if interval.pooled else "varies over seeds"
        wide = interval.high - interval.low > _WIDE * usual
        why = ("the text" if interval.text_se > interval.seed_se else spread_word) if wide else ""
    return FactorRow(
        factor=" x ".join(effect.factors),
        **named._asdict(),
        **shared(FactorRow, interval),
        difference=interval.mean,
        verdict=_TOGETHER.get(word, word) if len(effect.factors) > 1 else word,
        why=why,
        p_corrected=interval.p,
        aliases="; ".join(" x ".join(alias) for alias in contrast.aliases) if contrast else "",
        rate=rate,
    )


def _sides(effect: FactorEffect, cells: Sequence[PlannedVariant]) -> tuple[list[str], list[str]]:
    """Return the ids of the variants that an effect counts as positive and as negative."""
    by_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for variant in cells:
        at = [variant.levels[name] for name in effect.factors]
        signs = [(a == on) - (a == off) for a, (off, on) in zip(at, effect.levels, strict=True)]
        by_sign[math.prod(signs)].append(variant.id)
    return by_sign[1], by_sign[-1]


def name_effect(effect: FactorEffect, names: Mapping[str, Mapping[int, str]]) -> str:
    """Return the name of an effect: its factors, joined by `x`.

    A factor with more than two levels is named with the two levels of the change.
    """
    named = [
        name if len(names[name]) == 2 else f"{name} {names[name][on]} for {names[name][off]}"
        for name, (off, on) in zip(effect.factors, effect.levels, strict=True)
    ]
    return " x ".join(named)


def level_names(plan: PlannedTable, experiment: Experiment) -> dict[str, dict[int, str]]:
    """Return names for the levels of each factor, such as `gelu` or `lr=0.003`."""
    cells = [variant for variant in plan.variants if not variant.role]
    names = {}
    for name in plan.baseline.levels:
        values = {cell.levels[name]: _value(cell, name, plan, experiment) for cell in cells}
        labels = {cell.levels[name]: cell.level_labels.get(name) for cell in cells}
        texts = _name_levels(name, values)
        names[name] = {level: labels[level] or texts[level] for level in sorted(values)}
    return names


def _value(cell: PlannedVariant, name: str, plan: PlannedTable, experiment: Experiment) -> object:
    """Return the value of a factor in a variant.

    A factor is a component slot, a size, a component option, or a key of `data` or `train`.
    """
    key, _, inner = name.partition(".")
    if key == "train":
        return cell.train.get(inner, getattr(experiment.train, inner))
    if key == "data":
        return cell.data.get(inner, getattr(plan.text_of(cell).source, inner))
    return cell.model[key][inner] if inner else cell.model[key]


def _name_levels(name: str, values: Mapping[int, object]) -> dict[int, str]:
    if name not in (*SLOTS, "train.optimizer", "data.tokenizer"):
        return {level: name_level(name, value) for level, value in values.items()}
    short = {level: entry_text(value, options=False) for level, value in values.items()}
    if len({*short.values()}) == len(short):
        return short
    return {level: entry_text(value) for level, value in values.items()}
