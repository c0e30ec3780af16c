"""An experiment's results as rows: every record is read once, every comparison made once."""

import json
import math
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from sys import intern
from typing import NamedTuple, TypeVar

import pandas as pd

from llama_ablate.config import margins
from llama_ablate.config.experiment import Experiment
from llama_ablate.config.schema import Looks
from llama_ablate.evidence import Interval, StandardError, Standing, verdict
from llama_ablate.evidence.sequential import spending
from llama_ablate.findings import comparison, estimands, guards, heldout, stages, tasks, tuning
from llama_ablate.findings.controls import Bias, Check, Kind, check, withheld
from llama_ablate.findings.heldout import OF_DOCUMENTS
from llama_ablate.findings.outcomes import UNSTABLE, Curves, counted
from llama_ablate.findings.rows import (
    AttemptRow,
    ComparisonRow,
    MeasuredValues,
    MetricRow,
    RunRow,
    grouped,
)
from llama_ablate.results.plan_document import (
    BITS,
    HELD_OUT,
    PlanDocument,
    PlannedTable,
    PlannedText,
    Unit,
    of_name,
)
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import TRAINING, Coordinate, Environment, Measurement, Record
from llama_ablate.results.record import row as measured_row
from llama_ablate.results.snapshot import Results

#: A row that belongs to a variant of a table.
Owned = TypeVar("Owned", AttemptRow, MetricRow)
_LOSS = "validation_loss_nats"
#: The metrics whose losses are points of a ladder: at the end of a run, and at its branches.
_LADDER = ("perplexity", TRAINING)
#: Coordinates of the loss at a branch of a run; its end has `split` alone.
_BRANCH = {"split", "share", "tokens"}
_NEAR = 0.02  # of a run, within which branches of runs of unlike length are one length


class CurvePoint(NamedTuple):
    """A held-out loss along a run."""

    run: RunRow
    #: How much text was read by then, in tokens, or in bytes where variants differ in their tokens.
    read: float
    loss: float


@dataclass(frozen=True)
class LossPoint:
    """The loss of a run at its end, or at a branch of it."""

    label: str
    baseline: bool
    role: str
    seed: int
    #: Without embeddings.
    parameters: int
    tokens: int
    #: Training FLOPs.
    compute: float
    loss: float
    branch: bool
    #: The name of its table.
    rung: str


@dataclass(frozen=True, eq=False)
class TableFrames:
    """One table of an experiment: its rows, and what follows from them."""

    plan: PlannedTable
    experiment: Experiment
    planned: Sequence[RunRow]
    metrics: MeasuredValues
    attempts: Sequence[AttemptRow]
    #: One row for each record: what the run computed with.
    machines: pd.DataFrame
    #: Reads the learning curve of a run.
    curve: Curves
    #: The hypotheses that need runs of this table, with the labels of the variants that each does.
    asked: Sequence[estimands.Asked]

    @cached_property
    def quantities(self) -> Mapping[str, stages.Quantity]:
        """What hypotheses are about that is no row, where looks decide how many seeds it takes."""
        if len(self.experiment.looks) == 1:
            return {}
        return estimands.quantities(self, self.asked, self.views.__getitem__)

    @cached_property
    def _stands(self) -> dict[str, Standing[Interval]]:
        @cache
        def guarded(look: int) -> set[str]:
            return guards.still_open(self.views[look], self.experiment.looks)

        return stages.stand(
            self.plan,
            self.experiment,
            self.planned,
            self.margin,
            self.quantities,
            self.by_document,
            guarded if self.experiment.guard else lambda _: (),
        )

    @property
    def shares(self) -> Sequence[float]:
        """The share of the error that each look spends."""
        return self.experiment.spend or spending(self.experiment.looks)

    @cached_property
    def standings(self) -> dict[str, Standing[Interval]]:
        """Where each variant but the baseline stands, by id: its look, and the interval there."""
        return {id_: at for id_, at in self._stands.items() if id_ not in self.quantities}

    @property
    def stated(self) -> dict[str, Standing[Interval]]:
        """Where each of the `quantities` stands: its look."""
        return {key: self._stands[key] for key in self.quantities}

    @cached_property
    def views(self) -> "list[TableFrames]":
        """The table as it was at each look, when no more seeds than those had run."""
        experiment, planned = self.experiment, self.planned
        return [
            replace(
                self,
                experiment=experiment.model_copy(
                    update={"seeds": list(experiment.seed_list[:seeds])}
                ),
                planned=[
                    run
                    for run in planned
                    if run.seed in (*experiment.race_seeds, *experiment.seed_list[:seeds])
                ],
                asked=(),
            )
            for seeds in experiment.looks
        ]

    def branches(self, split: str | None = None) -> dict[int, str]:
        """Return the names of the losses at the branches of the runs, by training tokens.

        They are those on a `split`, by default the reported one.
        """
        return {
            int(row.coordinates["tokens"]): row.name
            for row in (own[0] for own in self.metrics.named.values())
            if row.quantity == "loss"
            and row.coordinates.get("split") == (split or self.split)
            and {*row.coordinates} == _BRANCH
        }

    @cached_property
    def lengths(self) -> "dict[int, TableFrames]":
        """The table after fewer tokens: its reported runs, each with the loss at a branch of it.

        The level of their intervals is divided by the number of branches. Empty where variants
        differ in their tokens, of which branches tell nothing.
        """
        if self.unit == BITS:
            return {}
        names: dict[int, list[str]] = {}
        whole = self.plan.tokens_per_run
        for tokens, name in sorted(self.branches().items()):
            # Where runs differ in length, so do their branches: all of one share are one length.
            near = (of for of in names if abs(tokens - of) < _NEAR * whole)
            names.setdefault(next(near, tokens), []).append(name)
        if not names:
            return {}
        seeds = Looks.model_construct(looks=[self.experiment.looks[-1]], spend=[1 / len(names)])
        place = {seed: i for i, seed in enumerate(self.experiment.seed_list)}  # looks count seeds
        other = MeasuredValues(
            row for row in self.metrics if row.quantity not in ("loss", *OF_DOCUMENTS)
        )

        def at(run: RunRow, of: Sequence[str]) -> RunRow:
            """Return a reported run with the loss at the first branch of some that it has."""
            known = (loss for name in of if not math.isnan(loss := run.number(name)))
            numbers = {**run.numbers, self.loss: next(known, math.nan)}
            seed = place[run.seed]
            return replace(run, seed=seed, numbers=numbers, tuned="", point="", race=False)

        return {
            tokens: replace(
                self,
                experiment=self.experiment.model_copy(update={"seeds": seeds, "race": None}),
                planned=[at(run, of) for run in self.reported],
                metrics=other,
                asked=(),
            )
            for tokens, of in names.items()
        }

    @cached_property
    def marked(self) -> Sequence[RunRow]:
        """All planned runs, with marks that say which are `chosen`, `needed` and `possible`."""
        return stages.mark(self.plan, self.experiment, self.planned, self._stands, self.quantities)

    @cached_property
    def runs(self) -> Sequence[RunRow]:
        """The planned runs that are needed or have ended; those that are reported are `chosen`."""
        return [run for run in self.marked if run.needed or run.outcome != "pending"]

    @property
    def margin(self) -> float | None:
        """The experiment's margin of equivalence in the table's unit, where it states one."""
        return margins.of_loss(self.experiment.margin)

    @property
    def experiments(self) -> Mapping[str, str]:
        """The name of the experiment that each variant's row is from, by the variant's id."""
        return dict.fromkeys((variant.id for variant in self.plan.variants), self.experiment.name)

    @cached_property
    def split(self) -> str:
        """The split that is reported: all held-out text, or test where points were chosen."""
        return tuning.reported_split(self.planned)

    @property
    def split_name(self) -> str:
        """What the reported split is called in words."""
        return "held-out" if self.split == HELD_OUT else self.split

    @property
    def unit(self) -> Unit:
        """The unit in which losses are compared."""
        return self.plan.unit

    @property
    def loss(self) -> str:
        """How the reported loss of a run is called among its numbers."""
        return f"{self.split}_{self.unit.number}"

    @property
    def chance(self) -> float:
        """The loss of the baseline's model if all tokens were equally likely."""
        text = self.plan.text
        return math.log(text.vocab) * self.plan.scale(self.plan.baseline, self.split)

    @cached_property
    def reported(self) -> Sequence[RunRow]:
        """Each variant's runs at its chosen point, of the look at which it stands."""
        return [run for run in self.runs if run.chosen]

    @cached_property
    def ranked(self) -> Sequence[RunRow]:
        """The reported runs of the variants that were tried at every tuned point."""
        unfinished = tuning.unfinished(self.runs)
        return [run for run in self.reported if run.variant not in unfinished]

    @cached_property
    def losses(self) -> comparison.Losses:
        """The reported losses of ranked runs that ended ok, by variant's id and by seed."""
        return comparison.losses_by_seed(self.plan, self.ranked, self.loss)

    @cached_property
    def _pairs(self) -> dict[str, comparison.Pairs]:
        return comparison.pairs_by_seed(self.plan, self.losses)

    @cached_property
    def by_document(self) -> heldout.ByDocument:
        """The reported losses by document, by variant's id and by seed: of all that has ended."""
        return self.documents(self.split)

    def documents(self, split: str) -> heldout.ByDocument:
        """Return the losses on a split by document, by variant's id and by seed."""
        at_point = [run for run in self.planned if run.best and not run.race]
        documents = heldout.by_document(self.metrics, at_point, split)
        if self.unit == BITS:
            return heldout.in_bits(documents, self.plan, split)
        return documents

    @cached_property
    def answers(self) -> tasks.ByItem:
        """The scores of each item of a task in the ranked runs that ended ok."""
        return tasks.by_item(self.metrics, [run for run in self.ranked if run.outcome == "ok"])

    def text_errors(
        self, against: str | None = None, split: str | None = None
    ) -> dict[str, StandardError]:
        """Return the standard error of each difference over held-out texts, by variant's id.

        `against` is the id of the variant that the others are compared with, by default the
        baseline's; the loss is that on a `split`, by default the reported one.
        """
        of = self.by_document if split in (None, self.split) else self.documents(str(split))
        return heldout.text_errors(of, self.losses, against or self.plan.baseline.id)

    @property
    def intervals(self) -> dict[str, Interval]:
        """The interval that decides about each variant's difference from the baseline, by id."""
        return {id_: standing.row for id_, standing in self.standings.items()}

    @cached_property
    def comparison(self) -> list[ComparisonRow]:
        """One row for each variant: quality, paired difference, verdict, size, speed, memory."""
        return [withheld(row, self.controls) for row in self._compared]

    @cached_property
    def _compared(self) -> list[ComparisonRow]:
        """The comparison with verdicts as intervals and outcomes say, whatever controls show."""
        rows = comparison.compare(
            self.plan,
            self.runs,
            self.metrics,
            self._pairs,
            self.standings,
            len(self.experiment.looks),
            self.margin,
            self.experiment.state_contexts,
        )
        broken = guards.broken(self.guards)
        return [
            replace(
                row,
                bias=""
                if row.baseline or row.role
                else self.beside(row.verdict, self.intervals[variant.id]),
                guard=broken.get(row.label, ""),
                rate=tuning.one_rate(self.plan, self.experiment, variant, self.plan.baseline),
            )
            for variant, row in zip(self.plan.variants, rows, strict=True)
        ]

    @property
    def is_decided(self) -> bool:
        """Whether any row says something of a difference."""
        return any(row.bias for row in self.comparison)

    def beside(self, word: str, row: Interval, weight: float = 1.0) -> str:
        """Return what is known of a bias beside a verdict, where that is read off an interval."""
        if word != verdict(row, self.margin):
            return ""
        return self.bias.beside(row, lambda one: verdict(one, self.margin), weight)

    @cached_property
    def guards(self) -> list[guards.GuardRow]:
        """One row for each variant and guarded number: whether it is worse there."""
        return guards.results(self)

    @cached_property
    def controls(self) -> dict[Kind, Check]:
        """Whether the controls of each kind hold, and why."""
        return check(self.plan, self._compared, self.margin, self.runs)

    @cached_property
    def bias(self) -> Bias:
        """What is known of how far all arms but the baseline may be off alike."""
        return Bias.of(self.plan, self._pairs, self.intervals, self.unit.name)

    @cached_property
    def points(self) -> Sequence[LossPoint]:
        """The reported loss of every variant and seed, and of every branch of a run."""
        return _points(self)

    def differences(self) -> dict[str, list[float]]:
        """Return each variant's losses minus the baseline's, over the seeds that both finished."""
        return {
            variant.label: [own - base for own, base in self._pairs[variant.id]]
            for variant in self.plan.variants
            if not variant.baseline
        }

    def curves(self, labels: Collection[str]) -> list[CurvePoint]:
        """Return the held-out losses along the reported runs of some variants."""
        points = []
        for run in (run for run in self.reported if run.label in labels):
            variant = self.plan.variant(run.variant)
            text, scale = self.plan.text_of(variant), self.plan.scale(variant, "validation")
            size = text.bytes["train"] / text.tokens["train"] if self.unit == BITS else 1
            points += [
                CurvePoint(run, size * point["tokens"], loss)
                for point in self.curve(run.id)
                if math.isfinite(loss := scale * point[_LOSS])
            ]
        return points


@dataclass(frozen=True, eq=False)
class Frames:
    """All tables of an experiment: what sections and figures are made from."""

    plan: PlanDocument
    #: Where the results are, as a command is given it.
    root: str
    tables: tuple[TableFrames, ...]
    #: What the file stated before the first run had finished, and every change since.
    protocol: Sequence[Version]
    experiment_text: str
    #: Machine and software of the first run that finished.
    environment: Environment | None
    #: How it computed; before any run has finished, how the plan says that runs will.
    compute: Mapping[str, object]
    #: Finds the folder of a run; None where it has none of its own.
    folder: Callable[[str], Path | None]

    @classmethod
    def of(cls, results: Results) -> "Frames":
        """Read results into frames. Raises ConfigError where a file is damaged."""
        plan = results.plan
        read = _Read.of(results)
        tables = tuple(_table(plan.experiment, table, results, read) for table in plan.tables)
        return cls(
            plan,
            str(results.root),
            tables,
            results.protocol,
            results.experiment_text,
            read.first.environment if read.first else None,
            read.first.compute if read.first else plan.compute.to_dict() if plan.compute else {},
            results.folder,
        )

    @property
    def table(self) -> TableFrames:
        """The first table: that of a section or figure which is made for every table."""
        return self.tables[0]

    def only(self, table: TableFrames) -> "Frames":
        """Return the frames of one table alone."""
        return replace(self, tables=(table,))

    def until(self, look: int) -> "Frames":
        """Return the frames as they were at a look."""
        return replace(self, tables=tuple(table.views[look] for table in self.tables))

    @property
    def by_name(self) -> dict[str, TableFrames]:
        """The tables by their names."""
        return {table.plan.name: table for table in self.tables}

    def named(self, name: str | None) -> TableFrames:
        """Return the table of a name, the first for None. Raises ConfigError for no table's."""
        return of_name(self.by_name, name)

    @property
    def stage(self) -> stages.Stage:
        """How far the experiment is, where earlier runs decide which are needed."""
        runs = [run for table in self.tables for run in table.marked]
        return stages.stage(self.plan.experiment, runs)

    @cached_property
    def runs(self) -> Sequence[RunRow]:
        """The runs of all tables, each once."""
        every = [run for table in self.tables for run in table.runs]
        return [own[0] for own in grouped(every, lambda run: run.id).values()]

    @property
    def metrics(self) -> Sequence[MetricRow]:
        """The measured values of all tables."""
        return [row for table in self.tables for row in table.metrics]

    @property
    def rungs(self) -> list[TableFrames]:
        """The sizes of a ladder: the tables that share text, match and budget with the first."""
        if not self.plan.experiment.sizes:
            return []
        first = self.table.plan
        of_first = (first.match, first.budget, first.evaluated_on)
        return [
            table
            for table in self.tables
            if (table.plan.match, table.plan.budget, table.plan.evaluated_on) == of_first
        ]

    @cached_property
    def ladder(self) -> Sequence[LossPoint]:
        """The points of all sizes, a rung each. None for an experiment without `sizes`."""
        return [point for rung in self.rungs for point in rung.points]


@dataclass(frozen=True)
class _Read:
    """What is kept of records and of variants' metrics: of thousands, a tenth of their room."""

    first: Record | None
    #: The finished runs by id, as they count, and what each computed with.
    runs: Mapping[str, RunRow]
    machines: Mapping[str, dict[str, str]]
    #: By the variant, and the run (with the way of reading behind it, but for the first) or "".
    measured: Mapping[tuple[str, str], Sequence[MetricRow]]
    attempts: Mapping[tuple[str, str], Sequence[AttemptRow]]

    @classmethod
    def of(cls, results: Results) -> "_Read":
        """Read the records and metrics of all tables, each once."""
        tables = results.plan.tables
        labels = {v.id: v.label for table in reversed(tables) for v in table.variants}
        measured: dict[tuple[str, str], list[MetricRow]] = {}
        attempts: dict[tuple[str, str], list[AttemptRow]] = {}
        known: dict[Hashable, Mapping[str, Coordinate]] = {}  # as most are equal

        def add(
            variant: str, metrics: Mapping[str, Measurement], key: str = "", seed: float = math.nan
        ) -> None:
            run = key.partition(".")[0]
            of = {"variant": variant, "label": labels[variant], "run": run}
            attempts[variant, key] = [
                AttemptRow(**of, seed=seed, metric=intern(metric), error=own.error)
                for metric, own in metrics.items()
            ]
            measured[variant, key] = [
                MetricRow(
                    **of,
                    seed=seed,
                    metric=intern(metric),
                    name=intern(value.name),
                    quantity=intern(value.quantity or value.name),
                    unit=intern(value.unit),
                    value=value.value,
                    coordinates=known.setdefault(
                        tuple(value.coordinates.items()), value.coordinates
                    ),
                    samples=array("d", value.samples) if value.samples else (),
                    by_process=() if run else value.by_process,
                )
                for metric, own in metrics.items()
                for value in own.rows
            ]

        first, runs, machines = None, [], {}
        alike: dict[tuple[str, ...], dict[str, str]] = {}
        texts = _texts(results.plan)
        for id_ in results.finished:
            record = results.record(id_)
            first = first or record
            variant = record.variant
            for read in results.plan.readings(results.plan.table_of(id_)):
                metrics = _metrics(record, read)
                if id_ in texts:
                    metrics = heldout.pooled(metrics, texts[id_])
                add(variant, metrics, id_ + read, float(record.seed))
            runs.append(
                RunRow(
                    label=labels[variant],
                    variant=variant,
                    seed=record.seed,
                    id=id_,
                    outcome=record.outcome,
                    reason=record.reason,
                    too_short=record.too_short,
                    steps_done=record.steps_done,
                )
            )
            machine = _machine(record)
            machines[id_] = alike.setdefault(tuple(machine.values()), machine)
        ended = {run.id: run for run in counted(runs, results.curve, tables)}
        for id_ in labels:
            add(id_, results.variant_metrics(id_))
        return cls(first, ended, machines, measured, attempts)


def _texts(plan: PlanDocument) -> dict[str, PlannedText]:
    """Return the text of each run, by its id, where nothing is chosen by the validation loss."""
    if plan.experiment.tune:
        return {}
    of_variant = {v.id: table.text_of(v) for table in plan.tables for v in table.variants}
    return {run.id: of_variant[run.variant] for run in plan.runs.values()}


def relabelled(
    rows: Iterable[Owned], labels: Mapping[str, str], table: str | None = None
) -> list[Owned]:
    """Return rows with other labels of their variants, and in a table of another name."""
    return [
        row
        if row.label == labels[row.variant] and table in (row.table, None)
        else replace(row, label=labels[row.variant], table=row.table if table is None else table)
        for row in rows
    ]


def _table(
    experiment: Experiment, table: PlannedTable, results: Results, read: _Read
) -> TableFrames:
    labels = {variant.id: variant.label for variant in table.variants}
    finished = [run for run in table.runs if run.id in read.runs]
    readings = results.plan.readings(table)
    behind = next(name for name, way in readings.items() if way == table.read_as)
    owners = [(run.variant, run.id + behind) for run in finished] + [(id_, "") for id_ in labels]
    metrics = (row for owner in owners for row in read.measured[owner])
    attempts = (row for owner in owners for row in read.attempts[owner])
    return TableFrames(
        table,
        experiment,
        _runs(experiment, table, read, behind),
        MeasuredValues(relabelled(metrics, labels, table.name)),
        relabelled(attempts, labels, table.name),
        pd.DataFrame([read.machines[run.id] for run in finished]),
        results.curve,
        estimands.asked(results.plan, table),
    )


def _metrics(record: Record, read: str) -> dict[str, Measurement]:
    """Return a run's metrics of one way of reading, and what its record says of the training."""
    of_loop = record.metrics.get(TRAINING, Measurement())
    cost = (
        measured_row("peak_memory_bytes", record.peak_memory_bytes, "bytes", "peak_memory"),
        measured_row("train_s", record.train_s, "s", "train_time"),
    )
    # Branches are evaluated as the curve is: in the first way.
    own = (row for row in of_loop.rows if not (read and {*row.coordinates} == _BRANCH))
    return {**record.read(read), TRAINING: replace(of_loop, rows=(*own, *cost))}


def _runs(experiment: Experiment, table: PlannedTable, read: _Read, behind: str) -> list[RunRow]:
    """Return the planned runs, with the numbers that were measured of each."""
    variants = {variant.id: variant for variant in table.variants}
    known = [
        read.runs.get(run.id)
        or RunRow(label="", variant=run.variant, seed=run.seed, id=run.id, steps_done=math.nan)
        for run in table.runs
    ]
    measured = [read.measured.get((run.variant, run.id + behind), ()) for run in table.runs]
    every = dict.fromkeys((row.name for own in measured for row in own), math.nan)
    # A column of a frame in which one is missing is of floats.
    whole = float if any(run.outcome == "pending" for run in known) else int
    runs = []
    for own, run, rows in zip(known, table.runs, measured, strict=True):
        variant, is_pending = variants[run.variant], own.outcome == "pending"
        lost: dict[str, float] = {
            word: math.nan if is_pending else float(own.outcome == word) for word in UNSTABLE
        }
        runs.append(
            replace(
                own,
                label=variant.label,
                point=tuning.point(run.tuned),
                baseline=variant.baseline,
                role=variant.role,
                race=run.seed in experiment.race_seeds,
                steps_done=whole(own.steps_done),
                tuned=json.dumps(run.tuned),
                numbers={**every, **_numbers(rows), **lost},
            )
        )
    runs = tuning.at_best(runs, table.repeated)
    if "lr" in experiment.tune:
        return tuning.with_sensitivity(runs, math.log(table.text.vocab))
    return runs


def _numbers(measured: Sequence[MetricRow]) -> dict[str, float]:
    """Return values by name, of several of one name the last that is a number."""
    numbers: dict[str, float] = {}
    for one in measured:
        if one.name not in numbers or not math.isnan(one.value):
            numbers[one.name] = one.value
    return numbers


def _machine(record: Record) -> dict[str, str]:
    """Return what a run computed with; runs that differ in any of it are not quite comparable."""
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


def _points(table: TableFrames) -> list[LossPoint]:
    """Return the losses of one rung of a ladder: at the end of each run, and at its branches.

    A run that was too short has none: its end is no point of a curve through what was learned.
    """
    plan = table.plan
    runs = {run.id: run for run in plan.runs}
    batch, context = table.experiment.train.batch, table.experiment.model.context
    ok = {run.id for run in table.ranked if run.outcome == "ok" and not run.too_short}
    points = []
    for row in table.metrics:
        where = row.coordinates
        if row.metric not in _LADDER or row.quantity != "loss" or row.run not in ok:
            continue
        if where.get("split") != table.split or where.keys() - _BRANCH or math.isnan(row.value):
            continue  # the loss of another split, or of a part of the text
        variant, run = plan.variant(row.variant), runs[row.run]
        at_end = run.steps * run.train.get("batch", batch) * variant.model.get("context", context)
        tokens = int(where.get("tokens", at_end))
        points.append(
            LossPoint(
                label=variant.label,
                baseline=variant.baseline,
                role=variant.role,
                seed=run.seed,
                parameters=variant.non_embedding,
                tokens=tokens,
                compute=variant.flops * tokens,
                loss=plan.scale(variant, table.split) * row.value,
                branch=tokens != at_end,
                rung=plan.name,
            )
        )
    return points
