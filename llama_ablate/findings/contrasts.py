"""Effects of factors in a factorial design, and of the steps along a path."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

from llama_ablate.config.registry import entry_text, written
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import Contrast, Interval, contrasts, judged, simultaneous
from llama_ablate.evidence.factorial import weights
from llama_ablate.findings import heldout, tuning
from llama_ablate.findings.controls import scaled
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.outcomes import sides
from llama_ablate.results.plan_document import PlannedVariant

T = TypeVar("T")

_ALPHA = 0.05
_FACTORS = (
    "factor",
    "effect",
    "difference",
    "low",
    "high",
    "verdict",
    "bias",
    "p_corrected",
    "alpha",
    "df",
    "seed_se",
    "text_se",
    "pooled",
    "changed",
    "present",
    "with_present",
    "absent",
    "with_absent",
    "aliases",
    "rate",
)


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
def factors(table: TableFrames) -> pd.DataFrame:
    """Return main effects and two-way interactions of a factorial design with two-level factors.

    Columns: `factor, effect, difference, low, high, verdict, bias, p_corrected, alpha, df, seed_se,
    text_se, pooled, changed, present, with_present, absent, with_absent, aliases, rate`; main
    effects first, each kind by its size. Of an interaction, `with_present` and `with_absent` are
    what `changed` does with the other factor at level 1 (`present`) and at level 0 (`absent`).
    Empty for other designs, and until every variant has finished a seed that all have.
    """
    found = effects(table)
    cells = _cells(table)
    main = {one.factors[0]: one.interval.mean for one in found if len(one.factors) == 1}
    levels = {name: _levels(cells, name, table) for name in main}
    rate = next(filter(None, table.comparison["rate"]), "")
    ordered = sorted(found, key=lambda one: (len(one.factors), -abs(one.interval.mean)))
    return pd.DataFrame(
        [
            {
                "factor": " x ".join(one.factors),
                **_named(one, levels, main),
                **_decided(one, cells, table),
                "aliases": "; ".join(" x ".join(alias) for alias in one.aliases),
                "rate": rate if "train.optimizer" in one.factors else "",
            }
            for one in ordered
        ],
        columns=list(_FACTORS),
    )


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
def steps(table: TableFrames) -> pd.DataFrame:
    """Return the effect of each step of a path, and of all steps up to it together.

    Columns: `step, n, marginal, marginal_low, marginal_high, verdict, bias, p_corrected,
    cumulative, cumulative_low, cumulative_high, rate`. Empty for other designs. Marginal is against
    the step before, as `step_intervals` has it; cumulative is the difference from the baseline, as
    the comparison has it. The verdict is the interval's, unless how a variant's runs ended decides.
    """
    total = table.comparison.set_index("label")
    variants = {variant.label: variant for variant in table.plan.variants}
    rows = []
    for (now, before), step in step_intervals(table).items():
        row = total.loc[now]
        rows.append(
            {
                "step": now,
                "n": step.n,
                "marginal": step.mean,
                "marginal_low": step.low,
                "marginal_high": step.high,
                "verdict": (word := _of_step(table, step, now, before)),
                "bias": table.beside(word, step, float(variants[before].baseline)),
                "p_corrected": step.p,
                "cumulative": row["difference"],
                "cumulative_low": row["low"],
                "cumulative_high": row["high"],
                "rate": tuning.one_rate(
                    table.plan, table.experiment, variants[now], variants[before]
                ),
            }
        )
    return pd.DataFrame(rows)


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
    words = dict(zip(table.comparison["label"], table.comparison["verdict"], strict=True))
    for label in (now, before):
        if words[label] in ("failed", "pending"):
            return str(words[label])
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
        return {"effect": f"{on} instead of {off}", "changed": "", "present": "", "absent": ""}
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
