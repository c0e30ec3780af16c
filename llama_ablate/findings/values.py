"""Long-format table of an experiment: every measured value, and every planned run.

All findings are computed from these rows and from the plan. The rows are built once, from the
records of finished runs and the metrics of variants.
"""

import json
import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Literal, TypeVar

import numpy as np

from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence.medians import Turns
from llama_ablate.findings.rows import Row, column, grouped, keys, mean
from llama_ablate.results.plan_document import HELD_OUT, PlanDocument, PlannedTable, PlannedText
from llama_ablate.results.record import (
    TRAINING,
    Coordinate,
    Environment,
    Measurement,
    Record,
    Value,
)
from llama_ablate.results.record import row as measured_row
from llama_ablate.results.snapshot import Results

#: Type of a row that belongs to a variant of a table.
Owned = TypeVar("Owned", "AttemptRow", "MetricRow")
#: Use of a planned run, given the runs that have ended: see `RunRow.use`.
Use = Literal["reported", "next", "later", "spare", "trial", "race"]
#: Outcomes that count against a variant, the worst first; the run has no loss to compare.
UNSTABLE: tuple[Literal["diverged", "collapsed"], ...] = ("diverged", "collapsed")
#: A variant with a loss this many nats below the loss of token frequencies has learned more than
#: token frequencies.
CLEARLY_BELOW = 0.1
#: Splits that are reported as one text if nothing was chosen by the loss on one of them.
HELD_OUT_SPLITS = ("validation", "test")
#: Quantities that are averaged over two splits with token counts as weights, and the standard
#: errors of these averages.
_TOKEN_QUANTITIES = ("loss", "floor", "excess_loss")
_ERRORS = ("loss_se", "excess_loss_se")
#: Coordinates of a loss at a branch of a run; the loss at the run's end has `split` alone.
BRANCH = {"split", "share", "tokens"}


@dataclass(frozen=True, slots=True, eq=False)
class RunRow(Row):
    """Table row for a planned run: its outcome, its use, and its measured numbers."""

    label: str = column("label of the variant")
    variant: str = column("hash of the variant's architecture and train config")
    seed: int = column("seed of the run")
    id: str = column("hash of all that the run depends on; tables may share a run")
    point: str = column("tuned values, as `lr 0.001`; empty without tuning", default="")
    use: Use = column(
        "purpose: `reported`; `next`, not reported yet; `later`, for a later look; `spare`, not "
        "needed; `trial` of another tuned value; `race`, chooses a value",
        default="reported",
    )
    outcome: str = column(
        "`ok`, `diverged`, `collapsed`, `oom`, `timeout`, `error`, or `pending`",
        default="pending",
    )
    reason: str = column("why it did not end `ok`, or was too short; or empty", default="")
    baseline: bool = column("whether it is a run of the baseline", default=False)
    role: str = column("`aa` or `positive` for a run of a control, else empty", default="")
    # A column with the default NaN repeats the number of the same name, for readers of data frames.
    loss: float = column("loss on the reported split, in the unit of the table", default=math.nan)
    steps_done: float = column("optimizer steps that it took")
    train_s: float = column("seconds of training, without evaluation", default=math.nan)
    peak_memory_bytes: float = column("most memory that the run held", default=math.nan)
    too_short: bool = column(
        "whether it ended near or above the loss of token frequencies, and still fell",
        default=False,
    )
    #: All numbers measured on the run, by name; NaN for a number that only other runs of the table
    #: have. `diverged` and `collapsed` are 1 if the run ended so, else 0.
    numbers: Mapping[str, float] = keys()
    #: Tuned values, as JSON.
    tuned: str = field(default="{}", kw_only=True)

    def number(self, name: str) -> float:
        """Return a number of the run by name; NaN if the number was not measured."""
        return self.numbers.get(name, math.nan)

    @property
    def ended(self) -> str:
        """Outcome of the run; `too short` for an `ok` run that was too short."""
        return "too short" if self.too_short else self.outcome

    @property
    def is_reported(self) -> bool:
        """Reporting status: true if the comparison table includes the run."""
        return self.use == "reported"

    @property
    def is_needed(self) -> bool:
        """Scheduling status: true if the run is needed at the present stage."""
        return self.use in ("reported", "next", "trial", "race")


def mean_number(runs: Iterable[RunRow], name: str) -> float:
    """Compute the mean of a metric over runs; NaN without a value."""
    return mean(run.number(name) for run in runs)


def has_number(runs: Iterable[RunRow], name: str) -> bool:
    """Return whether any of the runs has a measured number of this name."""
    return any(name in run.numbers for run in runs)


@dataclass(frozen=True, slots=True, eq=False)
class AttemptRow(Row):
    """Table row for an attempt to measure a metric on a run or a variant.

    `run` is empty for a metric of a variant.
    """

    table: str = column("name of the table", default="")
    variant: str = column("hash of the variant")
    label: str = column("label of the variant")
    run: str = column("id of the run")
    seed: float = column("seed of the run; missing for what was tried on a variant")
    metric: str = column("name of the metric")
    error: str = column("why it failed; else empty")


@dataclass(frozen=True, slots=True, eq=False)
class MetricRow(Row):
    """Table row for a measured value of a run or a variant.

    `run` is empty for a value of a variant.
    """

    table: str = column("name of the table; empty if there is only one", default="")
    variant: str = column("hash of the variant's architecture and train config")
    label: str = column("label of the variant")
    run: str = column(
        "id of the run; empty for what was measured of a variant, such as a speed", default=""
    )
    seed: float = column(
        "seed of the run; missing for what was measured of a variant", default=math.nan
    )
    metric: str = column("name of the metric, as in `measure:`")
    name: str = column("name of the number")
    quantity: str = column("what kind of number it is, as `loss` or `decode_speed`")
    unit: str = column("unit of the value", default="")
    value: float = column("the number")
    #: Conditions of the measurement; rows with equal coordinates share one mapping.
    coordinates: Mapping[str, Coordinate] = keys()
    #: Values by document, by item, or by round of an interleaved timing pass, if any.
    samples: Sequence[float] = field(default=(), kw_only=True)
    #: For a value of a variant: the samples of each process.
    by_process: Turns = field(default=(), kw_only=True)

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest of the value's samples."""
        samples = self.samples or (self.value,)
        return min(samples), max(samples)


class MeasuredValues(tuple[MetricRow, ...]):  # noqa: SLOT001 - cached properties need a dictionary
    """Measured values of a table, of its runs and of its variants."""

    @cached_property
    def named(self) -> Mapping[str, Sequence[MetricRow]]:
        """Measured values by the name of the number."""
        return grouped(self, lambda row: row.name)

    @cached_property
    def variant_rows(self) -> Sequence[MetricRow]:
        """Measured values of variants, such as speeds."""
        return [row for row in self if not row.run]


@dataclass(frozen=True)
class Values:
    """Measured values of all tables of an experiment.

    `metrics` and `attempts` have two-part keys: a variant's id, and a run's id with the suffix of
    its document mode. The second part is empty for values of the variant itself.
    """

    environment: Environment | None
    compute: Mapping[str, object]
    #: Finished runs by id, and the hardware and software of each.
    runs: Mapping[str, RunRow]
    machines: Mapping[str, dict[str, str]]
    metrics: Mapping[tuple[str, str], Sequence[MetricRow]]
    attempts: Mapping[tuple[str, str], Sequence[AttemptRow]]

    def table_values(
        self, table: PlannedTable, behind: str
    ) -> tuple[list[MetricRow], list[AttemptRow], list[dict[str, str]]]:
        """Return the values, attempts and machines of a table's runs and variants.

        `behind` is the suffix of the document mode in which held-out text was read; "" for the
        first mode.
        """
        labels = {variant.id: variant.label for variant in table.variants}
        finished = [run for run in table.runs if run.id in self.runs]
        owners = [(run.variant, run.id + behind) for run in finished]
        owners += [(id_, "") for id_ in labels]
        return (
            relabel((row for owner in owners for row in self.metrics[owner]), labels, table.name),
            relabel((row for owner in owners for row in self.attempts[owner]), labels, table.name),
            [self.machines[run.id] for run in finished],
        )

    def planned(self, experiment: Experiment, table: PlannedTable, behind: str) -> list[RunRow]:
        """Return the planned runs of a table, with each run's measured numbers."""
        variants = {variant.id: variant for variant in table.variants}
        measured = [self.metrics.get((run.variant, run.id + behind), ()) for run in table.runs]
        every = dict.fromkeys((row.name for rows in measured for row in rows), math.nan)
        # A data frame's column with a missing value has floats.
        kind = int if all(run.id in self.runs for run in table.runs) else float
        runs = []
        for run, rows in zip(table.runs, measured, strict=True):
            variant = variants[run.variant]
            pending = RunRow(
                label="", variant=run.variant, seed=run.seed, id=run.id, steps_done=math.nan
            )
            record = self.runs.get(run.id, pending)
            lost: dict[str, float] = {
                word: math.nan if record is pending else float(record.outcome == word)
                for word in UNSTABLE
            }
            runs.append(
                replace(
                    record,
                    label=variant.label,
                    baseline=variant.baseline,
                    role=variant.role,
                    use="race" if run.seed in experiment.race_seeds else "reported",
                    steps_done=kind(record.steps_done),
                    tuned=json.dumps(run.tuned),
                    numbers={**every, **_by_name(rows), **lost},
                )
            )
        return runs


def read_values(results: Results) -> Values:
    """Read the records and metrics of all tables, each once.

    Raises ConfigError if a file is damaged.
    """
    plan = results.plan
    labels = {v.id: v.label for table in reversed(plan.tables) for v in table.variants}
    metrics: dict[tuple[str, str], list[MetricRow]] = {}
    attempts: dict[tuple[str, str], list[AttemptRow]] = {}
    coordinates: dict[Hashable, Mapping[str, Coordinate]] = {}  # shared, as most are equal

    def add(
        variant: str, measured: Mapping[str, Measurement], key: str = "", seed: float = math.nan
    ) -> None:
        run = key.partition(".")[0]
        of = {"variant": variant, "label": labels[variant], "run": run}
        attempts[variant, key] = [
            AttemptRow(**of, seed=seed, metric=intern(metric), error=rows_of_metric.error)
            for metric, rows_of_metric in measured.items()
        ]
        metrics[variant, key] = [
            MetricRow(
                **of,
                seed=seed,
                metric=intern(metric),
                name=intern(value.name),
                quantity=intern(value.quantity or value.name),
                unit=intern(value.unit),
                value=value.value,
                coordinates=coordinates.setdefault(
                    tuple(value.coordinates.items()), value.coordinates
                ),
                samples=array("d", value.samples) if value.samples else (),
                by_process=() if run else value.by_process,
            )
            for metric, measurement in measured.items()
            for value in measurement.rows
        ]

    first, runs, machines = None, {}, {}
    alike: dict[tuple[str, ...], dict[str, str]] = {}
    texts = _texts(plan)
    for id_ in results.finished:
        record = results.record(id_)
        first = first or record
        for read in plan.readings(plan.table_of(id_)):
            measured = _metrics(record, read)
            if id_ in texts:
                measured = pool_splits(measured, texts[id_])
            add(record.variant, measured, id_ + read, float(record.seed))
        runs[id_] = RunRow(
            label=labels[record.variant],
            variant=record.variant,
            seed=record.seed,
            id=id_,
            outcome=record.outcome,
            reason=record.reason,
            too_short=record.too_short,
            steps_done=record.steps_done,
        )
        machine = _machine(record)
        machines[id_] = alike.setdefault(tuple(machine.values()), machine)
    for id_ in labels:
        add(id_, results.variant_metrics[id_])
    planned = plan.compute.to_dict() if plan.compute else {}
    environment, compute = (first.environment, first.compute) if first else (None, planned)
    return Values(environment, compute, runs, machines, metrics, attempts)


def relabel(
    rows: Iterable[Owned], labels: Mapping[str, str], table: str | None = None
) -> list[Owned]:
    """Return rows with new labels of their variants, and optionally a new table name."""
    return [
        row
        if row.label == labels[row.variant] and table in (row.table, None)
        else replace(row, label=labels[row.variant], table=row.table if table is None else table)
        for row in rows
    ]


def _texts(plan: PlanDocument) -> dict[str, PlannedText]:
    """Return the text of each run, by run id; {} if the experiment tunes.

    A tuned experiment chooses by the validation loss, so its validation and test text are not
    pooled.
    """
    if plan.experiment.tune:
        return {}
    text_by_variant = {v.id: table.text_of(v) for table in plan.tables for v in table.variants}
    return {run.id: text_by_variant[run.variant] for run in plan.runs.values()}


def _metrics(record: Record, read: str) -> dict[str, Measurement]:
    """Return a run's metrics in one document mode, together with its training metrics.

    The document mode is how held-out text is read: documents kept apart, or as one text. `read` is
    the mode's suffix in metric names; "" for the first mode.
    """
    loop_metrics = record.metrics.get(TRAINING, Measurement())
    cost = (
        measured_row("peak_memory_bytes", record.peak_memory_bytes, "bytes", "peak_memory"),
        measured_row("train_s", record.train_s, "s", "train_time"),
    )
    # Branches are evaluated like the learning curve: in the first document mode.
    rows = (row for row in loop_metrics.rows if not (read and {*row.coordinates} == BRANCH))
    return {**record.read(read), TRAINING: replace(loop_metrics, rows=(*rows, *cost))}


def _by_name(measured: Sequence[MetricRow]) -> dict[str, float]:
    """Return values by name; for a repeated name, the last that is not NaN."""
    numbers: dict[str, float] = {}
    for metric_row in measured:
        if metric_row.name not in numbers or not math.isnan(metric_row.value):
            numbers[metric_row.name] = metric_row.value
    return numbers


def _machine(record: Record) -> dict[str, str]:
    """Return the hardware and software of a run."""
    compute, environment = record.compute, record.environment
    plugins: dict[str, str] = environment.get("plugins", {})
    return {
        "devices": str(compute.get("device")),
        "numbers of threads": str(compute.get("threads")),
        "precisions": str(compute.get("precision")),
        "attention kernels": str(compute.get("kernel")),
        "precisions of evaluation": str(compute.get("evaluation")),
        "training steps": "compiled" if compute.get("compiled") else "not compiled",
        "versions of torch": str(environment["packages"]["torch"]),
        "states of the code": str(environment["code"]).replace("+", " with changes"),
        "plugins": ", ".join(f"{Path(k).name} {v[:8]}" for k, v in plugins.items()) or "none",
        "processors": " with ".join(filter(None, (environment["processor"], environment["gpu"]))),
    }


def pool_splits(metrics: Mapping[str, Measurement], text: PlannedText) -> dict[str, Measurement]:
    """Add losses on pooled held-out text, validation and test together, to a run's metrics.

    The two splits are disjoint texts of one distribution. An experiment that chose nothing by the
    validation or test loss can report both splits as one text.
    """
    if not text.tokens.keys() >= {*HELD_OUT_SPLITS}:
        return dict(metrics)
    return {
        name: replace(measured, rows=(*measured.rows, *_pooled(measured.rows, text)))
        for name, measured in metrics.items()
    }


def _pooled(rows: Sequence[Value], text: PlannedText) -> Iterator[Value]:
    """Yield values averaged over both splits, weighted by tokens or bytes."""
    by_name = {row.name: row for row in rows}
    sizes = np.array([text.size(part)[:2] for part in HELD_OUT_SPLITS], float)
    tokens, size = sizes.T
    predicted = [by_name.get(f"{part}_predicted_tokens") for part in HELD_OUT_SPLITS]
    if all(predicted):
        tokens = np.array([row.value for row in predicted if row])
    for test in rows:
        twin = by_name.get(test.name.replace("test", "validation", 1))
        if test.coordinates.get("split") != "test" or twin is None:
            continue
        values = np.array([twin.value, test.value])
        if test.quantity in _TOKEN_QUANTITIES:
            value = np.average(values, weights=tokens)
        elif test.quantity == "bits_per_byte":
            value = np.average(values, weights=size)
        elif test.quantity == "perplexity":
            value = np.exp(np.average(np.log(values), weights=tokens))
        elif test.quantity in _ERRORS:
            value = np.linalg.norm(values * tokens) / tokens.sum()
        else:
            continue
        yield replace(
            test,
            name=test.name.replace("test", HELD_OUT, 1),
            value=float(value),
            coordinates=dict(test.coordinates) | {"split": HELD_OUT},
        )
