"""Effects of the factors in a factorial design, and of steps along a path.

A path is a sequence of variants in which each variant adds one change to the variant before it. A
step is the comparison of a variant with the variant before it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.config.labels import entry_text, name_level
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence.factorial import FactorEffect, contrasts, every_effect, weights
from llama_ablate.evidence.intervals import ALPHA, NO_BIAS, NOTHING, scale_ends, widen
from llama_ablate.evidence.text_error import StandardError
from llama_ablate.evidence.verdicts import count_sides, judge
from llama_ablate.evidence.written import decimals
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import index_rows, list_rows, make_frame
from llama_ablate.findings.compare import (
    Pair,
    compare,
    find_bias,
    find_documents,
    find_losses,
    find_text_error,
    loss_split,
)
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.stages import find_differences, find_reported
from llama_ablate.findings.table import Table, once
from llama_ablate.results.plan_document import PlannedVariant

_WIDE = 2  # a row wider than this multiple of the median width states the reason
#: Verdict of an interaction by the verdict on its interval, since no variant is better or worse.
_TOGETHER = {
    "better": "lower together",
    "worse": "higher together",
    "equivalent": "add up",
    "equal": "add up",
}
NOT_ESTIMABLE = "not estimable"
#: Levels of each factor by name.
LevelNames = Mapping[str, Mapping[int, str]]


@once
def estimate_factors(table: Table) -> pd.DataFrame:
    """Return a row for each main effect and two-way interaction of a factorial design.

    Main effects come first, then interactions, each sorted by size. An effect that the runs do not
    determine has the verdict `not estimable`. The frame is empty for other designs, and until every
    variant has finished a run or failed.
    """
    estimated = list_rows(find_contrasts(table))
    if not estimated:
        return make_frame([], "factors")
    estimates = {row["effect"]: row for row in estimated}
    names, cells = name_levels(table), _list_cells(table)
    rates = compare_variants(table)["rate"]
    rate = next((text for text in rates if text), "")
    size = {effect: abs(row["mean"]) for effect, row in estimates.items()}
    largest = {effect.factors: size[effect] for effect in sorted(size, key=lambda of: size[of])}
    usual = float(np.median([row["high"] - row["low"] for row in estimates.values()]))

    def place(effect: FactorEffect) -> tuple[object, ...]:
        magnitude = largest.get(effect.factors, 0.0)
        return len(effect.factors), -magnitude, effect.factors, -size.get(effect, 0.0)

    levels = {cell.id: [cell.levels[name] for name in names] for cell in cells}
    rows = [
        {
            "factor": " x ".join(effect.factors),
            **_name_effect(effect, names, estimates),
            **_judge(table, effect, cells, estimates.get(effect), usual),
            "rate": rate if "train.optimizer" in effect.factors else "",
        }
        for effect in sorted(every_effect(levels, [*names]), key=place)
    ]
    return make_frame(rows, "factors")


def _judge(
    table: Table,
    effect: FactorEffect,
    cells: Sequence[PlannedVariant],
    estimates: Mapping[str, Any] | None,
    usual: float,
) -> dict[str, Any]:
    """Return the interval of an effect, its verdict, and why the interval is wide."""
    row = estimates or {**NOTHING, "aliases": ()}
    word, why = NOT_ESTIMABLE, "its combinations were not run, or failed"
    if estimates:
        runs = find_reported(table)
        ended = [runs.loc[runs["variant"].isin(ids), "ended"] for ids in _sides(effect, cells)]
        word = judge({**row, **count_sides(*ended)}, table.equivalence)
        is_wide = row["high"] - row["low"] > _WIDE * usual
        reason = "the text" if row["text_se"] > row["seed_se"] else "few runs"
        why = reason if is_wide else ""
    names = ("low", "high", "alpha", "df", "seed_se", "text_se", "pooled")
    return {
        "difference": row["mean"],
        **{name: row[name] for name in names},
        "verdict": _TOGETHER.get(word, word) if len(effect.factors) > 1 else word,
        "why": why,
        "aliases": "; ".join(" x ".join(alias) for alias in row["aliases"]),
    }


def _sides(effect: FactorEffect, cells: Sequence[PlannedVariant]) -> tuple[list[str], list[str]]:
    """Return the ids of the variants that an effect counts as positive and as negative."""
    by_sign: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for variant in cells:
        at = [variant.levels[name] for name in effect.factors]
        signs = [(a == on) - (a == off) for a, (off, on) in zip(at, effect.levels, strict=True)]
        by_sign[math.prod(signs)].append(variant.id)
    return by_sign[1], by_sign[-1]


def _name_effect(
    effect: FactorEffect, names: LevelNames, estimates: Mapping[FactorEffect, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the columns that name an effect.

    For an interaction, they also describe the first factor's change, and the effect of this change
    at two levels of the second factor.
    """
    (off, on), *other = effect.levels
    words = names[effect.factors[0]]
    if not other:
        both = f"{words[on]} instead of {words[off]}"
        return {"effect": both, "changed": "", "present": "", "absent": ""}
    # Averaged over the levels of the other factor, the first change has its main effect.
    (base, level), second = other[0], names[effect.factors[1]]
    beyond = {base: 0.0} | {
        of.levels[1][1]: row["mean"]
        for of, row in estimates.items()
        if of.factors == effect.factors and of.levels[0] == (off, on)
    }
    alone = [
        row["mean"] * (1 if of.levels == ((off, on),) else -1)
        for of, row in estimates.items()
        if of.factors == effect.factors[:1] and {*of.levels[0]} == {off, on}
    ]
    is_known = alone and beyond.keys() == second.keys()
    without = alone[0] - sum(beyond.values()) / len(beyond) if is_known else math.nan
    return {
        "effect": f"{words[on]} with {second[level]}",
        "changed": words[on],
        "present": second[level],
        "with_present": without + beyond.get(level, math.nan),
        "absent": second[base],
        "with_absent": without,
    }


@once
def compare_axes(table: Table) -> pd.DataFrame:
    """Return one row for each factor, with the range of the loss over its levels.

    The rows are sorted by range, the largest first. The intervals of the differences between all
    pairs of levels are simultaneous, and so are the intervals of the ranges. The lower end of a
    range is the largest lower end of any pair (at least 0), the upper end of a range the largest
    upper end of any pair. If the intervals of two factors' ranges do not overlap, the factor with
    the larger range has the larger effect. A factor is left out if the difference between any two
    of its levels is not estimable.
    """
    estimated, rows = list_rows(find_contrasts(table)), []
    for name, labels in name_levels(table).items():
        estimates = [row for row in estimated if row["effect"].factors == (name,)]
        if not estimates or len(estimates) < math.comb(len(labels), 2):
            continue
        above, surely = (dict.fromkeys(labels, -math.inf) for _ in range(2))
        for row in estimates:
            ((off, on),) = row["effect"].levels
            above[on], above[off] = max(above[on], row["mean"]), max(above[off], -row["mean"])
            surely[on], surely[off] = max(surely[on], row["low"]), max(surely[off], -row["high"])
        first, *others = sorted(labels, key=lambda level: above[level])
        low = max(0.0, *surely.values())
        high = max(max(row["high"], -row["low"]) for row in estimates)
        form = f"+.{decimals(low, high)}f"
        order = [labels[first], *(f"{labels[level]} {above[level]:{form}}" for level in others)]
        lowest = [labels[level] for level in (first, *others) if not surely[level] > 0]
        rows.append(
            {
                "axis": name,
                "levels": len(labels),
                "range": max(above.values()),
                "low": low,
                "high": high,
                "lowest": ", ".join(lowest),
                "order": ", ".join(order),
            }
        )
    for row in rows:
        less = (other["axis"] for other in rows if other["high"] < row["low"])
        row["more_than"] = ", ".join(map(str, less))
    return make_frame(sorted(rows, key=lambda row: -row["range"]), "axes")


def describe_confounding(table: Table) -> str:
    """Describe in a sentence which effects of a factorial design are confounded."""
    estimated = find_contrasts(table)
    cells = [cell for cell in _list_cells(table) if find_losses(table).get(cell.id)]
    every = math.prod(len({cell.levels[name] for cell in cells}) for name in cells[0].levels)
    if len(cells) == every:
        return f"All {every} combinations were run: no effect is confounded with another."
    run = f"{len(cells)} of {every} combinations were run: "
    aliases: dict[int, list[int]] = {1: [], 2: []}
    is_aliased = dict.fromkeys(aliases, False)
    for effect, aliases_of_effect in zip(estimated["effect"], estimated["aliases"], strict=True):
        aliases[len(effect.factors)] += map(len, aliases_of_effect)
        is_aliased[len(effect.factors)] = bool(aliases_of_effect)
    if not all(is_aliased.values()):
        return run + (
            "an effect is that of least squares over those, an interaction that is not fitted "
            "beside it (for a factor of any two, for two of any three) is taken to be nil."
        )
    return run + (
        f"a main effect is confounded with an interaction of {min(aliases[1])} factors, an "
        f"interaction of two with one of {min(aliases[2])}; those are taken to be nil."
    )


@once
def find_contrasts(table: Table) -> pd.DataFrame:
    """Estimate the effects of a factorial design: a row for each, as from `contrasts`.

    A cell is a variant of the design: one combination of factor levels. The frame is empty for
    other designs, while a cell without a loss has a pending run, and, in an experiment with looks
    (interim analyses), while any cell has a pending run. The estimates use each seed for which at
    least two cells have a loss, and each cell that has a loss for such a seed. Each interval is
    widened by the bias bound of the repeated baseline.
    """
    experiment, base = table.experiment, table.plan.baseline
    names, losses = list(base.levels), find_losses(table)
    cells = {v.id: [v.levels[name] for name in names] for v in table.plan.variants if v.levels}
    planned = table.planned[table.planned["use"].eq("reported")]
    waiting = {*planned.loc[planned["outcome"].eq("pending"), "variant"]}
    has_looks = len(experiment.looks) > 1
    is_open = any(c in waiting and (has_looks or not losses.get(c)) for c in cells)
    count = Counter(seed for cell in cells for seed in losses.get(cell, ()))
    seeds = sorted(seed for seed, runs in count.items() if runs > 1)
    levels = {cell: at for cell, at in cells.items() if losses.get(cell, {}).keys() & {*seeds}}
    if is_open or not levels:
        return pd.DataFrame()
    each = [[losses[cell].get(seed, math.nan) for seed in seeds] for cell in levels]
    estimated = contrasts(
        levels,
        names,
        each,
        text_errors=_find_text_errors(table, levels, seeds),
        alpha=ALPHA * (1.0 if has_looks else (experiment.spend or (1.0,))[0]),
    )
    ends, places = find_bias(table) or NO_BIAS, [*levels]
    if ends == NO_BIAS or base.id not in levels:
        return estimated
    at = places.index(base.id)
    parts = [
        widen(estimated.iloc[[i]], scale_ends(ends, -weight[at]))
        for i, weight in enumerate(estimated["weights"])
    ]
    return pd.concat(parts) if parts else estimated


def _find_text_errors(
    table: Table, levels: Mapping[str, Sequence[int]], seeds: Sequence[int]
) -> dict[FactorEffect, StandardError]:
    """Return the error from held-out text of each effect, from the cells of each seed."""
    names, losses = list(table.plan.baseline.levels), find_losses(table)
    by_effect: dict[FactorEffect, dict[int, Mapping[str, float]]] = {
        effect: {} for effect in weights(levels, names)
    }
    for seed in seeds:
        there = {cell: at for cell, at in levels.items() if seed in losses[cell]}
        for effect, weight in weights(there, names).items():
            by_effect.get(effect, {})[seed] = dict(zip(there, weight, strict=True))
    documents = find_documents(table, loss_split(table, table.loss))
    errors = {effect: find_text_error(of, documents) for effect, of in by_effect.items()}
    return {effect: error for effect, error in errors.items() if error}


@once
def compare_steps(table: Table) -> dict[Pair, dict[str, Any]]:
    """Compare each variant of a path with the variant before it; return rows by ids of both.

    The intervals are simultaneous over all steps. The first step is a comparison with the baseline,
    and therefore keeps its interval from the comparison table. The mapping is empty for other
    designs.
    """
    if table.experiment.variants.design != "path":
        return {}
    pairs = [(now.id, before.id) for before, now in itertools.pairwise(_list_cells(table))]
    rows = list_rows(compare(table, table.loss, pairs))
    differences = index_rows(find_differences(table))
    return {
        (now, before): differences[now] if before == table.base else row
        for (now, before), row in zip(pairs, rows, strict=True)
    }


@once
def describe_steps(table: Table) -> pd.DataFrame:
    """Return a row for each step of a path, with its marginal and its cumulative effect.

    The marginal effect is the difference from the variant before, the cumulative effect the
    difference from the baseline, as in the comparison table. The verdict follows from the marginal
    effect's interval, unless lost or missing runs of the two variants determine the verdict. The
    frame is empty for other designs.
    """
    total = index_rows(compare_variants(table), "label")
    plan, rows = table.plan, []
    for (now, before), step in compare_steps(table).items():
        variant, other = plan.variant(now), plan.variant(before)
        cumulative = total[variant.label]
        words = total[other.label]["verdict"], cumulative["verdict"]
        rows.append(
            {
                "step": variant.label,
                "n": step["n"],
                "marginal": step["mean"],
                "marginal_low": step["low"],
                "marginal_high": step["high"],
                "verdict": _name_verdict(table, step, words),
                "cumulative": cumulative["difference"],
                "cumulative_low": cumulative["low"],
                "cumulative_high": cumulative["high"],
                "rate": tuning.one_rate(plan, table.experiment, variant, other),
            }
        )
    return make_frame(rows, "steps")


def _name_verdict(table: Table, step: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the verdict on a step of a path.

    `words` holds the verdicts of the step's two variants in the comparison table; a verdict
    `failed` or `pending` also applies to the step.
    """
    for word in words:
        if word in ("failed", "pending"):
            return word
    if not (step["n"] or step["own_lost"] or step["other_lost"]):
        return "pending"
    return judge(step, table.equivalence)


def _list_cells(table: Table) -> list[PlannedVariant]:
    return [variant for variant in table.plan.variants if not variant.role]


def name_factors(effect: FactorEffect, names: LevelNames) -> str:
    """Return the name of an effect: its factors, joined by `x`.

    A factor with more than two levels is named with the two levels of the change.
    """
    named = [
        name if len(names[name]) == 2 else f"{name} {names[name][on]} for {names[name][off]}"
        for name, (off, on) in zip(effect.factors, effect.levels, strict=True)
    ]
    return " x ".join(named)


def name_levels(table: Table) -> LevelNames:
    """Return names for the levels of each factor, such as `gelu` or `lr=0.003`."""
    cells, names = _list_cells(table), {}
    for name in table.plan.baseline.levels:
        values = {cell.levels[name]: _find_value(cell, name, table) for cell in cells}
        labels = {cell.levels[name]: cell.level_labels.get(name) for cell in cells}
        texts = _write_levels(name, values)
        names[name] = {level: labels[level] or texts[level] for level in sorted(values)}
    return names


def _find_value(cell: PlannedVariant, name: str, table: Table) -> object:
    """Return the value of a factor in a variant.

    A factor is a component slot, a size, a component option, or a key of `data` or `train`.
    """
    key, _, inner = name.partition(".")
    if key == "train":
        return cell.train.get(inner, getattr(table.experiment.train, inner))
    if key == "data":
        return cell.data.get(inner, getattr(table.plan.text_of(cell).source, inner))
    return cell.model[key][inner] if inner else cell.model[key]


def _write_levels(name: str, values: Mapping[int, object]) -> dict[int, str]:
    if name not in (*SLOTS, "train.optimizer", "data.tokenizer"):
        return {level: name_level(name, value) for level, value in values.items()}
    short = {level: entry_text(value, options=False) for level, value in values.items()}
    if len({*short.values()}) == len(short):
        return short
    return {level: entry_text(value) for level, value in values.items()}
