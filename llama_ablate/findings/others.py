"""Metrics other than the loss: task accuracies and guarded metrics.

A guard is a metric in which no variant may be worse than the baseline by more than a stated limit.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from llama_ablate.config import margins
from llama_ablate.config.schema import Guard
from llama_ablate.evidence.verdicts import judge, negate
from llama_ablate.findings.columns import index_rows, iterate, list_means, list_rows, make_frame
from llama_ablate.findings.compare import (
    NOT_COMPARED,
    compare,
    describes_training,
    find_comparable,
    find_samples,
)
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.table import Table, first_split, once
from llama_ablate.results.plan_document import PlannedVariant


class Metric(NamedTuple):
    """Metric to compare: a task's accuracy, or a guarded metric."""

    name: str
    task: str = ""
    guard: Guard | None = None


@once
def compare_others(table: Table) -> pd.DataFrame:
    """Compare all variants with the baseline in all secondary metrics, and test the guards.

    The intervals are simultaneous over all variants and metrics (Bonferroni); the interval of a
    control is in a family of its own. Diverged or collapsed runs have no accuracy, so a variant
    with such runs is not shown to respect a guard. In an experiment with looks (interim analyses),
    guards are judged at the last look. A union has the rows of each experiment, since guards belong
    to the protocol of one experiment.
    """
    if table.parts:
        return pd.concat([compare_others(part) for part in table.parts], ignore_index=True)
    metrics, variants = _list_metrics(table), table.plan.variants
    ranked = [v.id for v in variants if not (v.baseline or v.role)]
    families = [(ranked, len(ranked) * len(metrics)), *(([v.id], 1) for v in variants if v.role)]
    rows = []
    for metric in metrics:
        relative = bool(metric.guard and metric.guard.is_relative)
        differences: dict[str, dict[str, Any]] = {}
        for ids, size in families:
            pairs = [(id_, table.base) for id_ in ids]
            compared = compare(table, metric.name, pairs, size, relative=relative) if ids else None
            if compared is not None:
                differences |= zip(ids, list_rows(compared), strict=True)
        means = _average_task(table, metric.task) if metric.task else {}
        for variant in variants:
            row = _describe(table, metric, variant, differences.get(variant.id))
            rows.append({**row, **means.get(variant.id, {})})
    return make_frame(rows, "other_metrics")


def _describe(
    table: Table, metric: Metric, variant: PlannedVariant, difference: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the row of a variant in a metric; `difference` is its difference from the baseline."""
    guard, row = metric.guard, difference or NOT_COMPARED
    values = [*find_samples(table, metric.name).get(variant.id, {}).values()]
    units = table.measured.loc[table.measured["name"].eq(metric.name), "unit"]
    is_relative = bool(guard and guard.is_relative)
    tested = None if variant.baseline or variant.role else guard
    worse = guard.worse if guard else "lower"
    word = "baseline"
    if difference:
        word = _name_verdict(table, negate(difference) if worse == "lower" else difference)
    ends = {"difference": row["mean"], "low": row["low"], "high": row["high"]}
    return {
        "measure": metric.name,
        "task": metric.task,
        "label": variant.label,
        "baseline": variant.baseline,
        "role": variant.role,
        "n": row["n"] if difference else len(values),
        "unit": "%" if is_relative else next(iter(units), ""),
        "value": pd.Series(values, dtype=float).mean(),
        **{k: 100 * math.expm1(end) if is_relative else end for k, end in ends.items()},
        "verdict": word,
        "result": _test_guard(table, tested, metric.name, variant, row) if tested else "",
        "worse": str(worse) if tested else "",
        "worse_by": tested.worse_by if tested else "",
    }


def _name_verdict(table: Table, row: Mapping[str, Any]) -> str:
    """Return the verdict on a difference if lower is better; `pending` without finished pairs."""
    is_pending = table.planned["outcome"].eq("pending").any() and not row["n"]
    return "pending" if is_pending else judge(row)


def _test_guard(
    table: Table, guard: Guard, name: str, variant: PlannedVariant, row: Mapping[str, Any]
) -> str:
    """Return the test result of a guard for a variant."""
    runs = find_runs(table)
    runs = runs[runs["variant"].isin([variant.id, table.base])]
    is_pending = runs["outcome"].eq("pending").any()
    if is_pending and (not row["n"] or len(table.experiment.looks) > 1):
        return "pending"
    if not row["n"]:
        return "not measured"
    harm = row if guard.worse == "higher" else negate(row)
    bound = _find_bound(guard)
    result = "worse" if harm["low"] > bound else "holds" if harm["high"] <= bound else "undecided"
    if name not in table.planned or describes_training(table, name):
        return result
    # As for a loss: completed seeds do not show that a variant with lost runs does no harm.
    if row["own_too_short"] or row["other_too_short"]:
        return "too short"
    may_hide = (row["own_lost"] and result == "holds") or (row["other_lost"] and result == "worse")
    return "undecided" if may_hide else result


def _find_bound(guard: Guard) -> float:
    """Return the harm that a guard allows; a limit in percent becomes a log ratio."""
    size = margins.read(guard.worse_by)[0]
    if not guard.is_relative:
        return size
    return math.log1p(size / 100) if guard.worse == "higher" else -math.log1p(-size / 100)


def _list_tasks(table: Table) -> dict[str, Metric]:
    """Return the accuracy metric of each task, by metric name."""
    values = table.measured
    rows = values[values["quantity"].eq("accuracy") & values["task"].notna()]
    rows = rows[rows["group"].isna()].drop_duplicates("name")
    return {row.name: Metric(row.name, str(row.task)) for row in iterate(rows)}


def _list_metrics(table: Table) -> list[Metric]:
    """Return the metrics that are tasks' accuracies or that guards cover.

    A guard covers all numbers of one quantity on one split, without values by group. The split is
    the first in the order of reporting (held-out, test, validation) with a measurement of the
    quantity. If the quantity was not measured, the guard covers one metric with the guard's own
    name. The metrics of a guarded accuracy are the guard's.
    """
    tasks, guarded = _list_tasks(table), dict[str, list[Metric]]()
    for guard in table.experiment.guard:
        values = table.measured
        rows = values[
            values["metric"].eq(guard.metric) & values["quantity"].eq(str(guard.quantity))
        ]
        split = first_split(rows["split"])
        rows = rows[rows["group"].isna() & (rows["split"].isna() | rows["split"].eq(split))]
        for name in [*rows["name"].unique()] or [f"{guard.metric} {guard.quantity}"]:
            task = tasks[name].task if name in tasks else ""
            guarded.setdefault(name, []).append(Metric(name, task, guard))
    by_name = {name: [task] for name, task in tasks.items()} | guarded
    return [metric for group in by_name.values() for metric in group]


def _average_task(table: Table, task: str) -> dict[str, dict[str, float]]:
    """Return the mean over runs of each quantity of a task, by variant id."""
    ids, values = find_comparable(table)["id"], table.measured
    task_rows = values[values["task"].eq(task) & values["run"].isin(ids)]
    means = task_rows.pivot_table("value", "variant", "quantity")
    means = means[[name for name in list_means("other_metrics") if name in means]]
    return index_rows(means)


def list_other_items(table: Table) -> list[str]:
    """List the tasks whose items differ between runs."""
    rows = table.measured[table.measured["quantity"].eq("items")].dropna(subset="fingerprint")
    prints = rows.groupby("task", sort=False)["fingerprint"].nunique()
    return [str(task) for task in prints.index[prints > 1]]
