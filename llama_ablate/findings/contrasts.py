"""Effects of factors in a factorial design, and of the steps along a path."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from llama_ablate.config.registry import entry_text, written
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import Contrast, Interval, contrasts, judged, simultaneous
from llama_ablate.evidence.factorial import weights
from llama_ablate.evidence.written import Estimate, decimals, number, p_value
from llama_ablate.findings import heldout, tuning
from llama_ablate.findings.controls import scaled
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.outcomes import sides
from llama_ablate.findings.rows import DIFFERENCE, Row, cell, column, columns
from llama_ablate.results.plan_document import PlannedVariant

T = TypeVar("T")

_ALPHA = 0.05
_MOST_SAVED = 10  # times: beyond, a few seeds do not tell how many


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
    present: str = column("the other factor at level 1")
    with_present: float = column("effect of `changed` there")
    absent: str = column("the other factor at level 0")
    with_absent: float = column("effect of `changed` there")

    @cell("in other words")
    def in_words(self) -> str:
        """Write what one factor does with and without another, and what the two make together."""
        if not self.changed:
            return ""
        extra = 2 * self.difference
        form = f"z.{decimals(self.low, self.high)}f"
        return (
            f"{self.changed} {self.with_present:+{form}} with {self.present}, "
            f"{self.with_absent:+{form}} with {self.absent}: together {abs(extra):{form}} "
            f"{'lower' if extra < 0 else 'higher'} than the sum of each alone"
        )

    @cell("p, corrected")
    def of_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    aliases: str = column("effects that the cells cannot tell from it")
    rate: str = column("as in the comparison")
    half: str | None = column("as in the comparison", default=None)


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
    """Return main effects and two-way interactions of a factorial design with two-level factors.

    Main effects first, each kind by its size. None for other designs, and until every variant has
    finished a seed that all have.
    """
    found = effects(table)
    cells = _cells(table)
    main = {one.factors[0]: one.interval.mean for one in found if len(one.factors) == 1}
    levels = {name: _levels(cells, name, table) for name in main}
    rate = next((row.rate for row in table.comparison if row.rate), "") if found else ""
    return [
        FactorRow(
            factor=" x ".join(one.factors),
            **_named(one, levels, main),
            **_decided(one, cells, table),
            aliases="; ".join(" x ".join(alias) for alias in one.aliases),
            rate=rate if "train.optimizer" in one.factors else "",
        )
        for one in sorted(found, key=lambda one: (len(one.factors), -abs(one.interval.mean)))
    ]


@dataclass(frozen=True)
class DiagnosticRow(Row):
    """What the interval of a variant's difference, or of an effect, is made of."""

    label: str | None = column("label of the variant", "variant", optional=True, default=None)
    effect: str | None = column("the effect in words", "effect", optional=True, default=None)
    n: int | None = column("number of pairs", "n", optional=True, default=None)
    sd: float | None = column("standard deviation of the loss over seeds", default=None)
    seed_se: float = column("standard error over seeds", "error of seeds", ".2g")

    def _has_text(self) -> bool:
        return self.text_se > 0

    text_se: float = column(
        "standard error over held-out texts", "error of the text", ".2g", when=_has_text
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

    def _has_looks(self) -> bool:
        return (self.looks or 1) > 1

    @cell("look", when=_has_looks)
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
    names = columns(DiagnosticRow)
    return [
        DiagnosticRow(**{name: getattr(row, name) for name in names if hasattr(row, name)})
        for row in rows
    ]


def confounding(table: TableFrames) -> str:
    """Say which effects the cells of a factorial design cannot tell apart."""
    found, cells = effects(table), _cells(table)
    every = 2 ** len(cells[0].levels)
    if len(cells) == every:
        return f"All {every} combinations were run: no effect is confounded with another."
    main, pair = (
        min(len(alias) for one in found if len(one.factors) == order for alias in one.aliases)
        for order in (1, 2)
    )
    return (
        f"{len(cells)} of {every} combinations were run: a main effect is confounded with an "
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
        word = _of_step(table, step, now, before)
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
    """Return the contrasts of a factorial design with two-level factors; of others none."""
    cells = _cells(table)
    names = list(cells[0].levels)
    two = all({cell.levels[name] for cell in cells} == {0, 1} for name in names)
    seeds = sorted(set.intersection(*(set(table.losses[cell.id]) for cell in cells)))
    if not names or not two or not seeds:
        return []
    levels = {cell.id: [cell.levels[name] for name in names] for cell in cells}
    errors = {
        factors: heldout.text_error_of(
            dict(zip(levels, weight, strict=True)), table.by_document, seeds
        )
        for factors, weight in weights(levels, names).items()
    }
    found = contrasts(
        levels,
        names,
        {cell.id: [table.losses[cell.id][seed] for seed in seeds] for cell in cells},
        text_errors={factors: error for factors, error in errors.items() if error},
        alpha=_ALPHA * (table.experiment.spend or (1.0,))[-1],
    )
    if not (ends := table.bias.ends):
        return found
    return [
        replace(one, interval=one.interval.widened(scaled(ends, _of_others(one, cells))))
        for one in found
    ]


def _of_others(one: Contrast, cells: Sequence[PlannedVariant]) -> float:
    """Return what an effect weighs all cells but the baseline by: what biases those, biases it."""
    base = next(cell for cell in cells if cell.baseline)
    return -2 / len(cells) * math.prod(2 * base.levels[name] - 1 for name in one.factors)


def _named(
    one: Contrast, levels: Mapping[str, Sequence[str]], main: Mapping[str, float]
) -> dict[str, Any]:
    """Name an effect by what changes, and an interaction by what that does in either case."""
    off, on = levels[one.factors[0]]
    if len(one.factors) == 1:
        nothing: dict[str, Any] = dict.fromkeys(("changed", "present", "absent"), "")
        nothing |= dict.fromkeys(("with_present", "with_absent"), math.nan)
        return {"effect": f"{on} instead of {off}", **nothing}
    absent, present = levels[one.factors[1]]
    alone, more = main[one.factors[0]], one.interval.mean
    return {
        "effect": f"{on} with {present}",
        "changed": on,
        "present": present,
        "with_present": alone + more,
        "absent": absent,
        "with_absent": alone - more,
    }


def _decided(one: Contrast, cells: Sequence[PlannedVariant], table: TableFrames) -> dict[str, Any]:
    """Return an effect's interval and verdict: of the cells that it adds, less the others."""
    signs = {c.id: math.prod(2 * c.levels[name] - 1 for name in one.factors) for c in cells}
    added, taken = ([id_ for id_, own in signs.items() if own == sign] for sign in (1, -1))
    interval = one.interval
    word = judged(interval, table.margin, *sides(table.reported, added, taken))
    return {
        "difference": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "verdict": word,
        "bias": table.beside(word, interval, _of_others(one, cells)),
        "p_corrected": interval.p,
        "alpha": interval.alpha,
        "df": interval.df,
        "seed_se": interval.seed_se,
        "text_se": interval.text_se,
        "pooled": interval.pooled,
    }


def _levels(cells: Sequence[PlannedVariant], name: str, table: TableFrames) -> tuple[str, str]:
    """Write a factor's two values, that of level 0 and that of level 1: `gelu`, `lr=0.003`."""
    values = {cell.levels[name]: _value(cell, name, table) for cell in cells}
    labels = {cell.levels[name]: cell.level_labels.get(name) for cell in cells}
    off, on = _written(name, values)
    return labels[0] or off, labels[1] or on


def _value(cell: PlannedVariant, name: str, table: TableFrames) -> Any:
    """Return what a factor is in a cell: of a slot, a size, an option, text or `train`."""
    key, _, inner = name.partition(".")
    if key == "train":
        return cell.train.get(inner, getattr(table.experiment.train, inner))
    if key == "data":
        return getattr(table.plan.text_of(cell).source, inner)
    return cell.model[key][inner] if inner else cell.model[key]


def _written(name: str, values: Mapping[int, Any]) -> tuple[str, str]:
    key = name.rpartition(".")[2]
    if name not in (*SLOTS, "train.optimizer", "data.tokenizer"):
        return f"{key}={written(values[0])}", f"{key}={written(values[1])}"
    off, on = (entry_text(values[level], options=False) for level in (0, 1))
    return (off, on) if off != on else (entry_text(values[0]), entry_text(values[1]))


def _differences(losses: Mapping[int, float], against: Mapping[int, float]) -> list[float]:
    return [loss - against[seed] for seed, loss in losses.items() if seed in against]
