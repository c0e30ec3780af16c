"""Stability of training: outcomes of runs, rates of divergence and collapse, spikes, norms."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llama_ablate.evidence import written
from llama_ablate.evidence.rates import share
from llama_ablate.findings.rows import Row, column, filled, grouped, means
from llama_ablate.findings.values import UNSTABLE, RunRow, mean_number
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedTable
from llama_ablate.results.snapshot import RunStatus

#: Function that returns the learning curve of a run, by its id.
Curves = Callable[[str], Sequence[Mapping[str, float]]]
#: Run with its outcome.
Ran = RunStatus | RunRow
_LOSS = "validation_loss_nats"


def milder_outcomes(
    runs: Iterable[Ran], curve: Curves, tables: Sequence[PlannedTable]
) -> dict[str, tuple[str, str]]:
    """Return corrected outcomes, with reasons, for runs whose outcome is too harsh, by run id.

    The outcome in a run's record is determined from the run's own learning curve. A run that stays
    flat near chance may therefore be recorded as `collapsed`, although its losses are lower
    throughout than the losses of an `ok` run that falls from above chance. So that such a run never
    ranks as worse, its outcome is corrected to the mildest outcome of all runs of the same seed
    whose losses are as high or higher at every evaluation. `ok` is milder than `collapsed`, and
    `collapsed` is milder than `diverged`. A run that is corrected to `ok` was too short. Losses on
    other tokens or at other steps are not comparable. Each of `runs` belongs to one of `tables`.
    """
    text_of: dict[str, str] = {}
    for table in tables:
        texts = {variant.id: table.text_of(variant).fingerprint for variant in table.variants}
        text_of |= {run.id: texts[run.variant] for run in table.runs}
    outcomes: dict[str, tuple[str, str]] = {}
    final = (run for run in runs if run.outcome in FINAL)
    for seed_runs in grouped(final, lambda run: run.seed).values():
        if len({run.outcome for run in seed_runs}) == 1:
            continue  # no curve needs to be read
        alike: dict[tuple[object, ...], list[tuple[Ran, list[float]]]] = {}
        for run in seed_runs:
            points = [point for point in curve(run.id) if math.isfinite(point[_LOSS])]
            kind = (text_of[run.id], *(point["step"] for point in points))
            if points:
                alike.setdefault(kind, []).append((run, [point[_LOSS] for point in points]))
        for group in alike.values():
            outcomes |= _milder_of(group)
    return outcomes


def _milder_of(group: Sequence[tuple[Ran, list[float]]]) -> dict[str, tuple[str, str]]:
    """Return corrected outcomes for a group of runs with comparable loss curves."""
    outcomes = {}
    for run, curve in group:
        milder = [
            other
            for other, losses in group
            if _severity(other) < _severity(run) and all(map(operator.ge, losses, curve))
        ]
        if milder:
            mildest = min(milder, key=_severity)
            reason = f"{run.reason}; '{mildest.label}' lies no lower at any evaluation"
            outcomes[run.id] = (mildest.outcome, reason)
    return outcomes


def _severity(run: Ran) -> int:
    return ("ok", "collapsed", "diverged").index(run.outcome)


def counted(runs: Sequence[RunRow], curve: Curves, tables: Sequence[PlannedTable]) -> list[RunRow]:
    """Return the planned runs with outcomes corrected by `milder_outcomes`."""
    milder = milder_outcomes(runs, curve, tables)
    return [
        replace(run, outcome=outcome[0], reason=outcome[1], too_short=outcome[0] == "ok")
        if (outcome := milder.get(run.id))
        else run
        for run in runs
    ]


class Lost(NamedTuple):
    """Number and share of runs with a certain outcome, with the share's confidence interval."""

    value: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, each: Sequence[bool]) -> "Lost":
        """Count the runs with an outcome, given a true or false entry for every run."""
        return cls(sum(each), sum(each) / len(each), *share(sum(each), len(each)))

    def __format__(self, form: str) -> str:
        """Format the share with its interval; the format string is ignored."""
        return written.share(self.share, self.low, self.high)


@dataclass(frozen=True)
class StabilityRow(Row):
    """Table row for the stability of a variant's finished runs at all tuning points."""

    label: str = column("label of the variant", "variant")
    runs: int = column("finished runs", "runs")
    diverged: Lost = column(
        "how many of them diverged, their share, and its exact 95% interval",
        "diverged [95% interval]",
        when=lambda row: bool(row.diverged.value),
    )
    collapsed: Lost = column(
        "the same of those that collapsed",
        "collapsed [95% interval]",
        when=lambda row: bool(row.collapsed.value),
    )
    # The following columns are filled by name: each is the mean over runs of a training metric.
    loss_spike_share: float = column(
        "share of the steps at which the loss spiked", "loss spikes", ".2%", default=math.nan
    )
    grad_norm_spike_share: float = column(
        "share of the steps at which the gradient norm spiked",
        "gradient spikes",
        ".2%",
        default=math.nan,
    )
    grad_norm_median: float = column(
        "median gradient norm", "gradient norm, median", ".3f", default=math.nan
    )
    grad_norm_max: float = column("largest gradient norm", "largest", ".2f", default=math.nan)


def stability(runs: Sequence[RunRow]) -> list[StabilityRow]:
    """Return one row for each variant, over its finished runs at all tuning points."""
    finished = [run for run in runs if run.outcome in FINAL]
    rows = []
    for label, label_runs in grouped(finished, lambda run: run.label).items():
        diverged, collapsed = (
            Lost.of([run.outcome == word for run in label_runs]) for word in UNSTABLE
        )
        row = StabilityRow(
            label=label, runs=len(label_runs), diverged=diverged, collapsed=collapsed
        )
        rows.append(
            filled(row, {name: mean_number(label_runs, name) for name in means(StabilityRow)})
        )
    return rows
