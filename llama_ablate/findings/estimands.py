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
from llama_ablate.findings.tasks import Samples, differences, samples, split_of
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


#: Finds the table of a name; for None the first.
Named = Callable[[str | None], EstimandTable]


def asked(plan: PlanDocument, table: PlannedTable) -> list[Asked]:
    """Return the hypotheses of a plan that need runs of one of its tables."""
    base, first = table.baseline.label, plan.tables[0].name
    arms = []
    for entry in plan.hypotheses:
        here = [part for part in entry.parts if table.name == (part.table or first)]
        others = [part.against or base for part in here if part.value is None]
        if here:
            arms.append((entry, frozenset([*others, *(part.variant for part in here)])))
    return arms


def quantities(
    table: EstimandTable, stated: Sequence[Asked], until: Callable[[int], EstimandTable]
) -> dict[str, stages.Quantity]:
    """Return the quantities of a table's hypotheses that are no row of it, as looks judge them.

    `until` returns the table with the seeds of a look alone. A difference of two differences may
    need another table's runs, which have looks of their own: it is judged at the last look.
    """
    looks = table.experiment.looks
    last, shares = len(looks) - 1, table.experiment.spend or spending(looks)
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
            test, row = test_of(entry), interval(entry, lambda _: view, times)

            def is_decided(one: Interval) -> bool:
                return test.result(one) != "undecided"

            return is_decided(row) or is_futile(row, look, looks, shares, is_decided)

        return all(stops(entry) for entry, _ in entries[key])

    found = {}
    for key, own in entries.items():
        arms = frozenset(ids[label] for _, labels in own for label in labels)
        at_last = any(entry.minus is not None for entry, _ in own)
        first, spent = (last, [1.0] * len(looks)) if at_last else (0, shares)
        found[key] = stages.Quantity(arms, first, partial(judge, key), spent)
    return found


def key_of(entry: Hypothesis, table: EstimandTable) -> str:
    """Return what a hypothesis is about; alike for those that are about the same number."""
    other = None if entry.value is not None else against(entry, table)
    pair = sorted((entry.variant, other or ""))
    return str((table.plan.name, entry.minus, entry.measure, entry.relative, pair))


def is_of_row(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a hypothesis is about a row of a table: its loss against the baseline's.

    Any other quantity is one of two other variants, another number, in percent, or two differences.
    """
    is_plain = entry.measure in (None, table.loss) and not entry.relative
    return is_plain and bool(_side(entry, table))


def _side(entry: Hypothesis, table: EstimandTable) -> int:
    """Return 1 for a variant against the baseline, -1 the other way round; 0 of all else."""
    if entry.minus is not None or entry.value is not None:
        return 0
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
    share, margin = entry.size / 100, entry.size
    if entry.relative:  # of a logarithm: 5% lower is further than 5% higher
        margin = -math.log1p(-share) if direction == "better" else math.log1p(share)
    if entry.direction.startswith("not "):  # not worse by m: better than m worse
        return evidence.Expectation("worse" if direction == "better" else "better", -margin)
    return evidence.Expectation(direction, margin)


def _differences(entry: Hypothesis, named: Named) -> Samples:
    """Return a hypothesis' differences, less those of its `minus`."""
    values, *others = (_differences_in(part, named(part.table)) for part in entry.parts)
    for less in others:
        values = {key: value - less[key] for key, value in values.items() if key in less}
    return values


def _differences_in(entry: Hypothesis, table: EstimandTable) -> Samples:
    """Return the number minus what it is compared with; of shares, the logarithm of the ratio."""
    own = samples(table, entry.variant, entry.measure)
    if entry.value is not None:
        return {key: value - entry.value for key, value in own.items()}
    other = samples(table, against(entry, table), entry.measure)
    return differences(own, other, relative=entry.relative)


def interval(entry: Hypothesis, named: Named, times: float) -> Interval:
    """Return the interval of a quantity that is no row of a table, at 5% / `times`."""
    if entry.measure in UNSTABLE:
        table = named(entry.table)
        labels = (entry.variant, against(entry, table))
        first, second = (_ended(table, label, entry.measure) for label in labels)
        return rate_difference(first, second, family=times)
    values = list(_differences(entry, named).values())
    text_errors = {"": error} if (error := _text_error(entry, named)) else None
    own = simultaneous({"": values}, text_errors=text_errors, family=times)[""]
    return own.widened(_bias(entry, named))


def _bias(entry: Hypothesis, named: Named) -> tuple[float, float]:
    """Return the ends between which lies what controls leave possible of a quantity's bias.

    Of a loss against the baseline's it is the table's. Of a speed it is how the same code differs
    under another name, which tells of either variant.
    """
    table = named(entry.table)
    if of_all := weight(entry, table):
        return scaled(table.bias.ends or NO_BIAS, of_all)
    again = [v.label for v in table.plan.variants if v.role == "aa"]
    if entry.minus is not None or entry.value is not None or not again:
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
    scale = 1.0 if entry.relative else fmean(other.values())
    return scaled((low, high), -scale if entry.variant == base else scale)


def weight(entry: Hypothesis, table: EstimandTable) -> float:
    """Return what a bias of all arms but the baseline weighs in a quantity; 0 where it cancels.

    In percent it is over the loss.
    """
    side = _side(entry, table)
    if not side or not is_loss(entry, table):
        return 0.0
    return side / _scale(entry, table, against(entry, table))


def _scale(entry: Hypothesis, table: EstimandTable, label: str) -> float:
    """Return what an error is divided by: in percent, where that is known, a variant's mean."""
    values = samples(table, label, entry.measure).values() if entry.relative else ()
    return fmean(values) if values else 1.0


def _text_error(entry: Hypothesis, named: Named) -> StandardError | None:
    """Return the error from the held-out text, or of a task's items, of a difference if known.

    Of two differences the errors are added as if their texts were different ones, which overstates
    that of the same text; in percent it is the error of the logarithm.
    """
    errors = []
    for part in entry.parts:
        table = named(part.table)
        ids = {variant.label: variant.id for variant in table.plan.variants}
        other = part.against or table.plan.baseline.label
        if part.value is not None:
            return None
        if is_loss(part, table):
            errors_of = table.text_errors(ids[other], split_of(table, part.measure))
            error = errors_of.get(ids[part.variant])
        else:
            error = tasks.error(table.answers, part.measure or "", ids[part.variant], ids[other])
        if error is not None and error.se > 0:
            errors.append(StandardError(error.se / _scale(entry, table, other), error.df))
    if not errors:
        return None
    se = math.hypot(*(error.se for error in errors))
    return StandardError(se, se**4 / sum(error.se**4 / error.df for error in errors))


def _ended(table: EstimandTable, label: str, outcome: str) -> tuple[int, int]:
    """Return how many runs of a variant ended so, of all that finished at any tuned point."""
    runs = [run for run in table.runs if run.label == label and run.outcome in FINAL]
    return sum(run.outcome == outcome for run in runs), len(runs)


def is_timed(entry: Hypothesis, table: EstimandTable) -> bool:
    """Return whether a number is a speed or a time, which several processes took."""
    measured = table.metrics.named.get(entry.measure or "", ())
    return any(len(row.by_process) > 1 for row in measured)
