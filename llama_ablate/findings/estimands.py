"""What hypotheses are about: their quantities, the intervals of those, and at which look."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from llama_ablate import evidence
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence import Interval, StandardError, simultaneous
from llama_ablate.evidence.rates import rate_difference
from llama_ablate.evidence.sequential import is_futile, spending
from llama_ablate.findings import stages, tasks
from llama_ablate.findings.comparison import NO_BIAS
from llama_ablate.findings.controls import Bias, scaled
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.rows import RunRow, grouped
from llama_ablate.findings.tasks import differences, samples, split_of
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlanDocument, PlannedTable

#: A hypothesis, and the labels of the variants of one table whose runs it needs.
Asked = tuple[Hypothesis, frozenset[str]]


class EstimandTable(tasks.TaskTable, Protocol):
    """What is measured of a table, and what its other comparisons say of its bias."""

    @property
    def planned(self) -> Sequence[RunRow]: ...  # noqa: D102
    @property
    def bias(self) -> Bias: ...  # noqa: D102


def asked(plan: PlanDocument, table: PlannedTable) -> list[Asked]:
    """Return the hypotheses of a plan that need runs of one of its tables."""
    first = plan.tables[0].name
    return [
        (entry, frozenset([entry.variant, entry.against or table.baseline.label]))
        for entry in plan.hypotheses
        if table.name == (entry.table or first)
    ]


def quantities(
    table: EstimandTable, stated: Sequence[Asked], until: Callable[[int], EstimandTable]
) -> dict[str, stages.Quantity]:
    """Return the quantities of a table's hypotheses that are no row of it, as looks judge them.

    `until` returns the table with the seeds of a look alone.
    """
    looks = table.experiment.looks
    shares = table.experiment.spend or spending(looks)
    ids = {variant.label: variant.id for variant in table.plan.variants}
    others = [
        (entry, labels)
        for entry, labels in stated
        if not is_of_row(entry, table) and (entry.measure is None or _is_of_runs(entry, table))
    ]
    entries = grouped(others, lambda one: key_of(one[0], table))

    def judge(key: str, look: int) -> bool:
        view, times = until(look), len(entries) / shares[look]

        def stops(entry: Hypothesis) -> bool:
            test, row = test_of(entry), interval(entry, view, times)

            def is_decided(one: Interval) -> bool:
                return test.result(one) != "undecided"

            return is_decided(row) or is_futile(row, look, looks, shares, is_decided)

        return all(stops(entry) for entry, _ in entries[key])

    found = {}
    for key, own in entries.items():
        arms = frozenset(ids[label] for _, labels in own for label in labels)
        found[key] = stages.Quantity(arms, partial(judge, key), shares)
    return found


def key_of(entry: Hypothesis, table: EstimandTable) -> str:
    """Return what a hypothesis is about; alike for those that are about the same number."""
    pair = sorted((entry.variant, against(entry, table)))
    return str((table.plan.name, entry.measure, pair))


def is_of_row(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a hypothesis is about a row of a table: its loss against the baseline's.

    Any other quantity is of two other variants, or another number.
    """
    return entry.measure in (None, table.loss) and bool(_side(entry, table))


def _side(entry: Hypothesis, table: EstimandTable) -> int:
    """Return 1 for a variant against the baseline, -1 the other way round; 0 of all else."""
    base = table.plan.baseline.label
    return (against(entry, table) == base) - (entry.variant == base)


def _is_of_runs(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a number is one of runs, or may be: nothing has been measured."""
    values = [run.number(entry.measure or "") for run in table.planned if run.outcome != "pending"]
    return not values or not all(map(math.isnan, values))


def is_loss(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a hypothesis is about a loss in the unit in which the table compares them."""
    return bool(split_of(table, entry.measure))


def against(entry: Hypothesis, table: EstimandTable) -> str:
    """Return the label of the variant that a hypothesis compares with."""
    return entry.against or table.plan.baseline.label


def test_of(entry: Hypothesis) -> evidence.Expectation:
    """Return what a hypothesis says of its quantity."""
    word: Any = entry.direction.removeprefix("not ")
    direction = {"lower": "better", "higher": "worse"}.get(word, word)
    if entry.direction.startswith("not "):  # not worse by m: better than m worse
        return evidence.Expectation("worse" if direction == "better" else "better", -entry.size)
    return evidence.Expectation(direction, entry.size)


def interval(entry: Hypothesis, table: EstimandTable, times: float) -> Interval:
    """Compute the interval of a quantity that is no row of a table, at 5% / `times`."""
    labels = (entry.variant, against(entry, table))
    if entry.measure in UNSTABLE:
        first, second = (_ended(table, label, entry.measure) for label in labels)
        return rate_difference(first, second, family=times)
    own, other = (samples(table, label, entry.measure) for label in labels)
    values = {"": [*differences(own, other, relative=False).values()]}
    error = _text_error(entry, table)
    text_errors = {"": error} if error and error.se > 0 else None
    found = simultaneous(values, text_errors=text_errors, family=times)[""]
    return found.widened(_bias(entry, table))


def _bias(entry: Hypothesis, table: EstimandTable) -> tuple[float, float]:
    """Return the ends between which lies what controls leave possible of a quantity's bias.

    Of a loss against the baseline's it is the table's. Of a speed it is how the same code differs
    under another name, which tells of either variant.
    """
    if of_all := weight(entry, table):
        return scaled(table.bias.ends or NO_BIAS, of_all)
    again = [v.label for v in table.plan.variants if v.role == "aa"]
    if not again:
        return NO_BIAS
    base, to = table.plan.baseline.label, against(entry, table)
    of_base, of_again, other = (
        samples(table, label, entry.measure) for label in (base, again[0], to)
    )
    noise = simultaneous({"": list(differences(of_again, of_base, relative=True).values())})[""]
    if not is_timed(entry, table) or math.isnan(noise.low):
        return NO_BIAS
    low, high = noise.low, noise.high
    if base not in (entry.variant, to):
        low, high = min(low, -high), max(high, -low)
    scale = fmean(other.values())
    return scaled((low, high), -scale if entry.variant == base else scale)


def weight(entry: Hypothesis, table: EstimandTable) -> int:
    """Return the sign with which a bias of all arms but the baseline enters; 0 if it cancels."""
    return _side(entry, table) if is_loss(entry, table) else 0


def _text_error(entry: Hypothesis, table: EstimandTable) -> StandardError | None:
    """Return the error from the held-out text, or of a task's items, of a difference if known."""
    ids = {variant.label: variant.id for variant in table.plan.variants}
    first, other = ids[entry.variant], ids[against(entry, table)]
    if is_loss(entry, table):
        return table.text_errors(other, split_of(table, entry.measure)).get(first)
    return tasks.error(table.answers, entry.measure or "", first, other)


def _ended(table: EstimandTable, label: str, outcome: str) -> tuple[int, int]:
    """Return how many runs of a variant ended so, of all that finished at any tuned point."""
    runs = [run for run in table.runs if run.label == label and run.outcome in FINAL]
    return sum(run.outcome == outcome for run in runs), len(runs)


def is_timed(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a number is a speed or a time, which several processes took."""
    measured = table.metrics.named.get(entry.measure or "", ())
    return any(len(row.by_process) > 1 for row in measured)
