"""Answers to the items of tasks: differences between variants, paired by seed and item."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence import Interval, StandardError, Verdict, judged, simultaneous
from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.evidence.written import Estimate, number
from llama_ablate.findings.outcomes import UNSTABLE, sides
from llama_ablate.findings.rows import (
    DIFFERENCE,
    MeasuredValues,
    MetricRow,
    Row,
    RunRow,
    cell,
    column,
    filled,
    grouped,
    has_number,
    mean,
)
from llama_ablate.findings.tuning import SPLITS
from llama_ablate.results.plan_document import PlannedTable, Unit
from llama_ablate.results.record import TRAINING, Coordinate

_DECIDES = "accuracy"  # what a task's interval is about
_TASK, _PRINT = "task", "fingerprint"  # coordinates


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores of the items in one run, with a hash of the items."""

    scores: NDArray[np.float64]
    fingerprint: str
    #: Whether a score is 1 where the item is right, and 0 or a share where it is not.
    is_accuracy: bool
    #: Group index of each item; None without groups.
    groups: NDArray[np.float64] | None


#: Answers by the name of the number, the variant's id, and the seed.
ByItem = Mapping[str, Mapping[str, Mapping[int, Answers]]]


class TaskTable(Protocol):
    """Interface of a table's measurements, documented in `frames.TableFrames`."""

    @property
    def plan(self) -> PlannedTable: ...  # noqa: D102
    @property
    def experiment(self) -> Experiment: ...  # noqa: D102
    @property
    def loss(self) -> str: ...  # noqa: D102
    @property
    def unit(self) -> Unit: ...  # noqa: D102
    @property
    def chance(self) -> float: ...  # noqa: D102
    @property
    def runs(self) -> Sequence[RunRow]: ...  # noqa: D102
    @property
    def ranked(self) -> Sequence[RunRow]: ...  # noqa: D102
    @property
    def metrics(self) -> MeasuredValues: ...  # noqa: D102
    @property
    def answers(self) -> ByItem: ...  # noqa: D102
    def text_errors(  # noqa: D102
        self, against: str | None = None, split: str | None = None
    ) -> dict[str, StandardError]: ...


def by_item(metrics: MeasuredValues, runs: Sequence[RunRow]) -> ByItem:
    """Return the scores of each item in some runs, by the name of their mean."""
    seeds = {run.id: run.seed for run in runs}
    rows = [row for row in metrics if _TASK in row.coordinates and row.run in seeds]
    known = {
        (row.run, row.coordinates[_TASK]): str(row.coordinates[_PRINT])
        for row in rows
        if _PRINT in row.coordinates
    }
    groups = _groups(rows)
    found: dict[str, dict[str, dict[int, Answers]]] = {}
    for row in rows:
        if len(row.samples) > 1 and row.quantity != "groups":
            items = known.get((row.run, row.coordinates[_TASK]), "")
            is_accuracy = row.quantity.startswith(_DECIDES)
            of = groups.get((row.run, row.coordinates[_TASK]))
            own = of if of is not None and len(of) == len(row.samples) else None
            answers = Answers(np.array(row.samples, float), items, is_accuracy, own)
            found.setdefault(row.name, {}).setdefault(row.variant, {})[seeds[row.run]] = answers
    return found


def _groups(rows: Sequence[MetricRow]) -> dict[tuple[str, Coordinate], NDArray[np.float64]]:
    """Return the groups of the items of each run and task."""
    return {
        (row.run, row.coordinates[_TASK]): np.array(row.samples, float)
        for row in rows
        if row.quantity == "groups"
    }


def shared_seeds(answers: ByItem, name: str, variant: str, against: str) -> list[int]:
    """Return the seeds with which both variants have answered the same items."""
    own, other = (answers.get(name, {}).get(id_, {}) for id_ in (variant, against))
    return sorted(s for s in own if s in other and own[s].fingerprint == other[s].fingerprint)


def error(answers: ByItem, name: str, variant: str, against: str) -> StandardError | None:
    """Compute the standard error of a difference due to items; None without items.

    It is also None where the runs of different seeds have answered different items.
    """
    seeds = shared_seeds(answers, name, variant, against)
    own, other = (answers.get(name, {}).get(id_, {}) for id_ in (variant, against))
    if not seeds or len({own[seed].fingerprint for seed in seeds}) > 1:
        return None
    one = own[seeds[0]]
    least = least_error(len(one.scores)) if one.is_accuracy else 0.0
    differences = np.array([own[seed].scores - other[seed].scores for seed in seeds])
    if one.groups is not None and len(set(one.groups)) > 1:
        differences = by_group(differences, one.groups)
    return item_error(differences, least=least)


def bounded(row: Interval) -> Interval:
    """Clip the interval of a difference of two shares to the range from -1 to 1."""
    return replace(row, low=max(row.low, -1.0), high=min(row.high, 1.0))


def other_items(table: TaskTable) -> list[str]:
    """Name the tasks that runs of a table have answered with different items."""
    of_task: dict[str, set[Coordinate]] = {}
    for row in table.metrics:
        if row.quantity == "items" and _PRINT in row.coordinates:
            of_task.setdefault(str(row.coordinates[_TASK]), set()).add(row.coordinates[_PRINT])
    return [task for task, prints in of_task.items() if len(prints) > 1]


@dataclass(frozen=True)
class TaskRow(Row):
    """Accuracy of a variant in a task, with its difference from the baseline."""

    task: str = column("name of the task", "task", leading=True)
    label: str = column("label of the variant", "variant", leading=True)
    baseline: bool = column("whether it is the baseline")
    role: str = column("`aa` or `positive` for a control, else empty")
    n: int = column("number of pairs; of the baseline of its seeds", "n", leading=True)
    accuracy: float = column(
        "share of items that are answered right, mean over seeds", "accuracy", ".3f", leading=True
    )
    difference: float = column("mean difference from the baseline; above 0 is better")
    low: float = column("lower end of its interval, which holds for all rows at once")
    high: float = column("upper end of it")

    @cell(DIFFERENCE, leading=True)
    def of_difference(self) -> str:
        """Write the difference with its interval."""
        return str(Estimate(self.difference, self.low, self.high))

    verdict: str = column("what the interval says", "verdict", leading=True)
    # The following columns are filled by name: each is the mean over runs of a task's quantity.
    accuracy_norm: float = column("accuracy by loss per byte", default=math.nan)
    target_perplexity: float = column("perplexity of the targets", default=math.nan)
    chance: float = column(
        "accuracy of a guess", "chance", ".3f", leading=True, optional=True, default=math.nan
    )
    ceiling: float = column(
        "highest accuracy", "ceiling", ".3f", leading=True, optional=True, default=math.nan
    )

    @cell("accuracy per byte", optional=True)
    def of_bytes(self) -> str:
        """Write the accuracy by loss per byte."""
        return number(self.accuracy_norm, ".3f")

    @cell("perplexity of targets", optional=True)
    def of_targets(self) -> str:
        """Write the perplexity of the targets."""
        return number(self.target_perplexity, ",.4g")

    items: float = column("number of items", "items", ",.0f", optional=True, default=math.nan)

    cut_items: float = column(
        "items that are longer than the context",
        "items cut",
        ",.0f",
        when=lambda row: row.cut_items > 0,
        default=math.nan,
    )


def accuracies(table: TaskTable) -> list[TaskRow]:
    """Return a row per task and variant: accuracy and difference from the baseline.

    The intervals of all rows hold simultaneously and at all looks; a control's interval holds
    alone. They include the error of seeds and the error of items, between groups for grouped items.
    The list is empty where no task was measured.
    """
    names = {
        str(row.coordinates[_TASK]): row.name
        for row in table.metrics
        if row.quantity == _DECIDES and _TASK in row.coordinates and "group" not in row.coordinates
    }
    ranked = [variant for variant in table.plan.variants if not (variant.role or variant.baseline)]
    rows = []
    for task, name in names.items():
        looks = len(table.experiment.looks)
        found = _intervals(table, name, len(ranked) * len(names) * looks)
        beside = _beside(table, task)
        for variant in table.plan.variants:
            row = found.get(variant.id)
            of_seeds = table.answers.get(name, {}).get(variant.id, {}).values()
            scores = [answers.scores.mean() for answers in of_seeds]
            ids = {variant.id, table.plan.baseline.id}
            ended = {run.outcome for run in table.ranked if run.variant in ids}
            word: Verdict = "pending"
            if row is not None and (row.n or "pending" not in ended):
                both = sides(table.ranked, {variant.id}, {table.plan.baseline.id})
                word = judged(-row, None, *both)
            made = TaskRow(
                task=task,
                label=variant.label,
                baseline=variant.baseline,
                role=variant.role,
                n=row.n if row else len(scores),
                accuracy=float(np.mean(scores)) if scores else math.nan,
                difference=row.mean if row else math.nan,
                low=row.low if row else math.nan,
                high=row.high if row else math.nan,
                verdict="baseline" if variant.baseline else word,
            )
            rows.append(filled(made, beside.get(variant.id, {})))
    return rows


def _intervals(table: TaskTable, name: str, family: int) -> dict[str, Interval]:
    """Compute the interval of each variant's difference in a task, by id."""
    base, answers = table.plan.baseline.id, table.answers.get(name, {})
    differences: dict[str, Sequence[float]] = {}
    errors = {}
    for variant in table.plan.variants:
        if not variant.baseline:
            own, other = (answers.get(id_, {}) for id_ in (variant.id, base))
            differences[variant.id] = [
                float(own[seed].scores.mean() - other[seed].scores.mean())
                for seed in shared_seeds(table.answers, name, variant.id, base)
            ]
            if (of_items := error(table.answers, name, variant.id, base)) is not None:
                errors[variant.id] = of_items
    roles = {variant.id: variant.role for variant in table.plan.variants}
    controls = [{id_: own} for id_, own in differences.items() if roles[id_]]
    ranked = {id_: own for id_, own in differences.items() if not roles[id_]}
    found = simultaneous(ranked, text_errors=errors, family=family)
    for control in controls:
        found |= simultaneous(control, text_errors=errors)
    return {id_: bounded(row) for id_, row in found.items()}


def _beside(table: TaskTable, task: str) -> dict[str, dict[str, float]]:
    """Return the means over runs of a task's quantities, by variant's id and by quantity."""
    ranked = {run.id for run in table.ranked}
    rows = [m for m in table.metrics if m.run in ranked and m.coordinates.get(_TASK) == task]
    return {
        id_: {
            quantity: mean(row.value for row in own)
            for quantity, own in grouped(of_variant, lambda row: row.quantity).items()
        }
        for id_, of_variant in grouped(rows, lambda row: row.variant).items()
    }


#: Numbers by seed, or medians by process of an interleaved pass.
Samples = dict[int, float]


def samples(table: TaskTable, label: str, name: str | None) -> Samples:
    """Return a variant's samples of a number: per seed, or per process for variant metrics.

    Empty where no number with that name was measured, and where the variant was not tried at every
    tuned point. Only runs at the chosen point count. A diverged run has the loss of chance, and a
    collapsed run at most that loss: both count against their variant, and divergence never improves
    a loss. Such runs have no other number that depends on learning.
    """
    name = name or table.loss
    if not has_number(table.ranked, name):
        own = [row for row in table.metrics.named.get(name, ()) if not row.run]
        turns = next((row.by_process for row in own if row.label == label), ())
        return dict(enumerate(map(median, turns)))
    found = {}
    for run in (run for run in table.ranked if run.label == label):
        value = run.number(name)
        if run.outcome in UNSTABLE and split_of(table, name):
            value = min(table.chance, table.chance if math.isnan(value) else value)
        elif run.outcome in UNSTABLE and not of_training(table, name):
            continue
        if not math.isnan(value):
            found[run.seed] = value
    return found


def split_of(table: TaskTable, name: str | None) -> str:
    """Return the split of a loss by its name; "" for any other number."""
    return next((s for s in SPLITS if (name or table.loss) == f"{s}_{table.unit.number}"), "")


def of_training(table: TaskTable, name: str) -> bool:
    """Return whether a number of runs describes training, not the trained model."""
    own = table.metrics.named.get(name, ())
    return all(row.metric == TRAINING for row in own if row.run)


def differences(own: Samples, other: Samples, *, relative: bool) -> Samples:
    """Compute paired differences of samples; with `relative`, logs of their ratios.

    With `relative`, pairs with a value that is not positive are left out.
    """
    shared = [key for key in own if key in other]
    if relative:  # the ratio is defined for positive values only
        positive = [key for key in shared if own[key] > 0 and other[key] > 0]
        return {key: math.log(own[key] / other[key]) for key in positive}
    return {key: own[key] - other[key] for key in shared}
