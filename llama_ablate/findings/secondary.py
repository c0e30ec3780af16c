"""Metrics other than the loss: task accuracies and guarded metrics.

A guard is a metric in which no variant may be worse than the baseline by more than a stated limit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llama_ablate.config import margins
from llama_ablate.config.schema import Guard
from llama_ablate.evidence import Difference
from llama_ablate.evidence.written import measured, number, plain
from llama_ablate.findings.compare import NO_DIFFERENCE, RowFamily, compare_all
from llama_ablate.findings.paired_table import PairedTable, describes_training, samples
from llama_ablate.findings.rows import ENDS, DifferenceRow, cell, column, filled, grouped, mean
from llama_ablate.findings.tuning import first_split
from llama_ablate.results.plan_document import PlannedVariant
from llama_ablate.results.record import Coordinate

_TASK, _PRINT = "task", "fingerprint"  # names of coordinates


@dataclass(frozen=True)
class SecondaryRow(DifferenceRow):
    """Table row for a variant's difference in a secondary metric, with a guard's result."""

    ORDER = (
        *("measure", "task", "label", "n", "value", "show_value", *ENDS, "verdict", "result"),
        *("allowed", "chance", "ceiling", "show_bytes", "show_targets", "items", "cut_items"),
    )

    measure: str = column("name of the number", "metric", leading=True)
    task: str = column("name of its task; empty for a number that is none's accuracy", default="")
    label: str = column("label of the variant", "variant", leading=True)
    baseline: bool = column("whether it is the baseline")
    role: str = column("`aa` or `positive` for a control, else empty")
    n: int = column("number of pairs; of the baseline of its samples", "n", leading=True)
    unit: str = column("unit of the difference; `%` where it is compared in percent", default="")
    value: float = column("mean over seeds, or over processes")
    verdict: str = column("what the interval says", "verdict", leading=True)
    result: str = column(
        "of a guard: `worse`, `holds`, `undecided`, `pending`, `too short`, `not measured`; empty "
        "for a number that is not guarded",
        "guard",
        leading=True,
        optional=True,
        default="",
    )
    worse: str = column("of a guard: the direction that is worse", default="")
    worse_by: str = column("of a guard: by how much it may be worse", default="")
    # The following columns are filled by name: each is the mean over runs of a task's quantity.
    accuracy_norm: float = column("accuracy by loss per byte", default=math.nan)
    target_perplexity: float = column("perplexity of the targets", default=math.nan)
    chance: float = column(
        "accuracy of a guess", "chance", ".3f", leading=True, optional=True, default=math.nan
    )
    ceiling: float = column(
        "highest accuracy", "ceiling", ".3f", leading=True, optional=True, default=math.nan
    )
    items: float = column("number of items", "items", ",.0f", optional=True, default=math.nan)
    cut_items: float = column(
        "items that are longer than the context",
        "items cut",
        ",.0f",
        when=lambda row: row.cut_items > 0,
        default=math.nan,
    )

    @cell("value", leading=True)
    def show_value(self) -> str:
        """Write the mean value over seeds or processes."""
        return number(self.value, ".3f") if self.task else plain(self.value, 4)

    @cell("difference [95%]", leading=True)
    def show_difference(self) -> str:
        """Write the difference in its unit, with its interval."""
        if self.baseline:
            return ""
        return measured(self.difference, self.low, self.high, self.unit)

    @cell("worse by", optional=True)
    def allowed(self) -> str:
        """Write the guard's limit and the direction that is worse."""
        return f"{self.worse_by} {self.worse}".strip()

    @cell("accuracy per byte", optional=True)
    def show_bytes(self) -> str:
        """Write the accuracy if choices are compared by their loss per byte."""
        return number(self.accuracy_norm, ".3f")

    @cell("perplexity of targets", optional=True)
    def show_targets(self) -> str:
        """Write the perplexity of the targets."""
        return number(self.target_perplexity, ",.4g")


@dataclass(frozen=True)
class _Metric:
    """Metric to compare: a task's accuracy, or a guarded metric."""

    name: str
    task: str = ""
    guard: Guard | None = None


def judge_secondary(table: PairedTable) -> list[SecondaryRow]:
    """Compare all variants with the baseline in all secondary metrics, and test the guards.

    The intervals are simultaneous over all variants and metrics (Bonferroni); the interval of a
    control is in a family of its own. Diverged or collapsed runs have no accuracy, so a variant
    with such runs is not shown to respect a guard. In an experiment with looks (interim analyses),
    guards are judged at the last look.
    """
    by_task = {name: [task] for name, task in _tasks(table).items()}
    by_name = by_task | grouped(_guards(table), lambda one: one.name)
    metrics = [metric for group in by_name.values() for metric in group]
    variants = table.plan.variants
    ranked = [v for v in variants if not (v.baseline or v.role)]
    controls = [[v] for v in variants if v.role]
    base, size = table.plan.baseline.id, len(ranked) * len(metrics)
    rows = []
    for metric in metrics:
        relative = bool(metric.guard and metric.guard.is_relative)
        differences: dict[str, Difference] = {}
        for group, count in [(ranked, size), *((control, 1) for control in controls)]:
            family = RowFamily([(v.id, base) for v in group], count, relative)
            compared = compare_all(table, metric.name, family)
            differences |= {variant: row for (variant, _), row in compared.items()}
        means = _means_by_quantity(table, metric.task) if metric.task else {}
        for variant in variants:
            row = _row(table, metric, variant, differences.get(variant.id))
            rows.append(filled(row, means.get(variant.id, {})))
    return rows


def _row(
    table: PairedTable, one: _Metric, variant: PlannedVariant, found: Difference | None
) -> SecondaryRow:
    guard, row = one.guard, found or NO_DIFFERENCE
    interval, values = row.interval, samples(table, variant.id, one.name)
    unit = next((row.unit for row in table.metrics.named.get(one.name, ())), "")
    scale = percent if guard and guard.is_relative else float
    has_result = guard and not (variant.baseline or variant.role)
    worse = guard.worse if guard else "lower"
    word = "baseline" if found is None else _word(table, -found if worse == "lower" else found)
    if variant.id in table.plan.repeated and word == "equivalent":
        word = "equal"
    return SecondaryRow(
        measure=one.name,
        task=one.task,
        label=variant.label,
        baseline=variant.baseline,
        role=variant.role,
        n=interval.n if found else len(values),
        unit="%" if guard and guard.is_relative else unit,
        value=mean(values.values()),
        difference=scale(interval.mean),
        low=scale(interval.low),
        high=scale(interval.high),
        verdict=word,
        result=_result(table, guard, one.name, variant, row) if guard and has_result else "",
        worse=str(worse) if has_result else "",
        worse_by=guard.worse_by if guard and has_result else "",
    )


def _word(table: PairedTable, row: Difference) -> str:
    """Return the verdict on a difference if lower is better; `pending` without finished pairs."""
    is_pending = any(run.outcome == "pending" for run in table.planned)
    return "pending" if is_pending and not row.interval.n else row.judged()


def _result(
    table: PairedTable, guard: Guard, name: str, variant: PlannedVariant, row: Difference
) -> str:
    """Return the test result of a guard for a variant."""
    both = {variant.id, table.plan.baseline.id}
    ended = {run.outcome for run in table.runs if run.variant in both}
    if "pending" in ended and (not row.interval.n or len(table.experiment.looks) > 1):
        return "pending"
    if not row.interval.n:
        return "not measured"
    harm = row.interval if guard.worse == "higher" else -row.interval
    bound = _bound(guard)
    result = "worse" if harm.low > bound else "holds" if harm.high <= bound else "undecided"
    if name not in table.numbers or describes_training(table, name):
        return result
    # As for a loss: completed seeds do not show that a variant with lost runs does no harm.
    if row.own.too_short or row.other.too_short:
        return "too short"
    if (row.own.lost and result == "holds") or (row.other.lost and result == "worse"):
        return "undecided"
    return result


def _bound(guard: Guard) -> float:
    """Return the harm that a guard allows; a limit in percent becomes a log ratio."""
    size = margins.read(guard.worse_by)[0]
    if not guard.is_relative:
        return size
    return math.log1p(size / 100) if guard.worse == "higher" else -math.log1p(-size / 100)


def percent(logarithm: float) -> float:
    """Convert the logarithm of a ratio to a change in percent."""
    return 100 * math.expm1(logarithm)


def _tasks(table: PairedTable) -> dict[str, _Metric]:
    """Return the accuracy metric of each task, by metric name."""
    return {
        row.name: _Metric(row.name, str(row.coordinates[_TASK]))
        for row in table.metrics
        if row.quantity == "accuracy"
        and _TASK in row.coordinates
        and "group" not in row.coordinates
    }


def _guards(table: PairedTable) -> list[_Metric]:
    """Return the metrics that the guards cover.

    A guard covers all numbers of one quantity on one split, without values by group. The split is
    the first in the order of reporting (held-out, test, validation) with a measurement of the
    quantity. If the quantity was not measured, the guard covers one metric with the guard's own
    name.
    """
    tasks, metrics = _tasks(table), []
    for guard in table.experiment.guard:
        kind = (guard.metric, guard.quantity)
        rows = [row for row in table.metrics if (row.metric, row.quantity) == kind]
        split = first_split(row.coordinates.get("split") for row in rows)
        names = dict.fromkeys(
            row.name
            for row in rows
            if "group" not in row.coordinates and row.coordinates.get("split", split) == split
        ) or [f"{guard.metric} {guard.quantity}"]
        metrics += [
            _Metric(name, tasks[name].task if name in tasks else "", guard) for name in names
        ]
    return metrics


def _means_by_quantity(table: PairedTable, task: str) -> Mapping[str, Mapping[str, float]]:
    """Compute the mean over runs of each quantity of a task.

    The keys are the variant's id and the quantity.
    """
    ranked = {run.id for runs in table.at_point.values() for run in runs.values()}
    rows = [m for m in table.metrics if m.run in ranked and m.coordinates.get(_TASK) == task]
    return {
        id_: {
            quantity: mean(row.value for row in group)
            for quantity, group in grouped(measured, lambda row: row.quantity).items()
        }
        for id_, measured in grouped(rows, lambda row: row.variant).items()
    }


def other_items(table: PairedTable) -> list[str]:
    """List the tasks whose items differ between runs."""
    by_task: dict[str, set[Coordinate]] = {}
    for row in table.metrics:
        if row.quantity == "items" and _PRINT in row.coordinates:
            by_task.setdefault(str(row.coordinates[_TASK]), set()).add(row.coordinates[_PRINT])
    return [task for task, prints in by_task.items() if len(prints) > 1]
