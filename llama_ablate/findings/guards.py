"""Guards of the experiment file: numbers in which no variant may be worse, whatever its loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from llama_ablate.config import margins
from llama_ablate.config.schema import Guard
from llama_ablate.evidence import Interval, StandardError, simultaneous
from llama_ablate.evidence.intervals import FEWEST_SEEDS
from llama_ablate.evidence.sequential import FUTILE, chance_to_decide
from llama_ablate.evidence.written import measured
from llama_ablate.findings import tasks
from llama_ablate.findings.outcomes import sides
from llama_ablate.findings.rows import DIFFERENCE, Row, cell, column, grouped, has_number
from llama_ablate.findings.tasks import TaskTable, differences, of_training, samples
from llama_ablate.findings.tuning import first_split
from llama_ablate.results.plan_document import PlannedVariant


@dataclass(frozen=True)
class GuardRow(Row):
    """How a variant differs in a guarded number, and whether it is worse there."""

    label: str = column("label of the variant", "variant")
    measure: str = column("name of the number", "guarded")
    unit: str = column("unit of the number; `%` where it is compared in percent")
    worse: str = column("the direction that is worse: `higher` or `lower`")
    worse_by: str = column("by how much it may be worse")
    n: int = column("number of pairs", "n")
    difference: float = column("mean difference from the baseline")
    low: float = column("lower end of its interval, which holds for all rows at once")
    high: float = column("upper end of it")

    @cell(DIFFERENCE)
    def of_difference(self) -> str:
        """Write the difference in its unit, with its interval."""
        return measured(self.difference, self.low, self.high, self.unit)

    @cell("worse by")
    def allowed(self) -> str:
        """Write what is allowed."""
        return f"{self.worse_by} {self.worse}"

    result: str = column(
        "`worse`, `holds`, `undecided`, `pending`, `too short`, `not measured`", "test result"
    )


def results(table: TaskTable) -> list[GuardRow]:
    """Return one row for each variant and guarded number: how it differs, and whether it is worse.

    `worse` where the whole interval lies beyond what the guard allows, `holds` where it lies
    within, else `undecided`; `pending` where runs are missing, `too short` where any were that have
    the number, `not measured` where there is no number. Runs that diverged or collapsed have none:
    an arm that lost some is not shown to hold. The intervals of all rows hold at once, over all
    looks (Bonferroni). Of a number with items they have the error of the items, of the reported
    loss that of the text.
    """
    guards = [
        (guard, name)
        for guard in table.experiment.guard
        for name in _names(table, guard) or [f"{guard.metric} {guard.quantity}"]
    ]
    variants = [v for v in table.plan.variants if not (v.baseline or v.role)]
    base = table.plan.baseline
    family = len(guards) * len(variants) * len(table.experiment.looks)
    rows = []
    for guard, name in guards:
        found = _intervals(table, guard, name, variants, family)
        unit = next((row.unit for row in table.metrics.named.get(name, ())), "")
        size, is_share = margins.read(guard.worse_by)[0], guard.is_relative
        scale = percent if is_share else float
        for variant in variants:
            interval = found[variant.id]
            ended = {run.outcome for run in table.runs if run.variant == variant.id}
            harm = interval if guard.worse == "higher" else -interval
            result = _result(harm, _bound(guard, size))
            if not interval.n:
                result = "pending" if "pending" in ended else "not measured"
            elif has_number(table.ranked, name) and not of_training(table, name):
                own, other = sides(table.ranked, {variant.id}, {base.id})
                # As of a loss: the seeds that an arm kept do not show that it does no harm.
                if own.too_short or other.too_short:
                    result = "too short"
                elif (own.lost and result == "holds") or (other.lost and result == "worse"):
                    result = "undecided"
            rows.append(
                GuardRow(
                    label=variant.label,
                    measure=name,
                    unit="%" if is_share else unit,
                    worse=str(guard.worse),
                    worse_by=guard.worse_by,
                    n=interval.n,
                    difference=scale(interval.mean),
                    low=scale(interval.low),
                    high=scale(interval.high),
                    result=result,
                )
            )
    return rows


def still_open(table: TaskTable, looks: Sequence[int]) -> set[str]:
    """Return the variants, by id, with a guard that is undecided and that more seeds may decide.

    `table` is as it was at one of the looks. What has less than a 10% predicted chance of being
    decided at the last look is not gone on for (`sequential.chance_to_decide`).
    """
    guards = [(guard, name) for guard in table.experiment.guard for name in _names(table, guard)]
    variants = [v for v in table.plan.variants if not (v.baseline or v.role)]
    found: set[str] = set()
    for guard, name in guards:
        bound = _bound(guard, margins.read(guard.worse_by)[0])

        def is_decided(harm: Interval, bound: float = bound) -> bool:
            return _result(harm, bound) != "undecided"

        family = len(guards) * len(variants) * len(looks)
        for id_, interval in _intervals(table, guard, name, variants, family).items():
            harm = interval if guard.worse == "higher" else -interval
            if not harm.n or is_decided(harm):
                continue
            few = harm.n < FEWEST_SEEDS or not harm.seed_se > 0
            if few or chance_to_decide(harm, looks[-1], harm.alpha, is_decided) >= FUTILE:
                found.add(id_)
    return found


def broken(guarded: Sequence[GuardRow]) -> dict[str, str]:
    """Say of each variant that is worse in what is guarded, in what, by its label."""
    worse = grouped((row for row in guarded if row.result == "worse"), lambda row: row.label)
    return {label: f"worse in {', '.join(r.measure for r in own)}" for label, own in worse.items()}


def _names(table: TaskTable, guard: Guard) -> list[str]:
    """Return the numbers of a guard: all of its quantity on the reported split, without groups.

    Of what was not measured there, those on the split that would be reported of the others.
    """
    rows = [
        row for row in table.metrics if (row.metric, row.quantity) == (guard.metric, guard.quantity)
    ]
    split = first_split(row.coordinates.get("split") for row in rows)
    return [
        *dict.fromkeys(
            row.name
            for row in rows
            if "group" not in row.coordinates and row.coordinates.get("split", split) == split
        )
    ]


def _intervals(
    table: TaskTable, guard: Guard, name: str, variants: Sequence[PlannedVariant], family: int
) -> dict[str, Interval]:
    base = table.plan.baseline
    other = samples(table, base.label, name)
    each: dict[str, list[float]] = {}
    errors: dict[str, StandardError] = {}
    for variant in variants:
        own = samples(table, variant.label, name)
        if name in table.answers:
            seeds = tasks.shared_seeds(table.answers, name, variant.id, base.id)
            own = {seed: value for seed, value in own.items() if seed in seeds}
        each[variant.id] = [*differences(own, other, relative=guard.is_relative).values()]
        error = tasks.error(table.answers, name, variant.id, base.id)
        if name == table.loss:
            error = table.text_errors().get(variant.id)
        if error is not None and other:
            scale = fmean(other.values()) if guard.is_relative else 1.0
            errors[variant.id] = StandardError(error.se / scale, error.df)
    found = simultaneous(each, text_errors=errors, family=family)
    if any(one.is_accuracy for of in table.answers.get(name, {}).values() for one in of.values()):
        found = {id_: tasks.bounded(interval) for id_, interval in found.items()}
    rows = table.metrics.named.get(name, ())
    if any(row.run or len(row.samples) > 1 for row in rows):
        return found
    # A variant's own, which was counted once, as bytes are: it is exact.
    return {id_: replace(one, low=one.mean, high=one.mean) for id_, one in found.items()}


def _bound(guard: Guard, size: float) -> float:
    """Return how much harm is allowed; of a share the logarithm of the ratio."""
    if not guard.is_relative:
        return size
    return math.log1p(size / 100) if guard.worse == "higher" else -math.log1p(-size / 100)


def _result(harm: Interval, bound: float) -> str:
    if harm.low > bound:
        return "worse"
    return "holds" if harm.high <= bound else "undecided"


def percent(logarithm: float) -> float:
    """Return the logarithm of a ratio as what it is above 1, in percent."""
    return 100 * math.expm1(logarithm)
