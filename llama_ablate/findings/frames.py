"""An experiment's results as data frames: every record is read once, every comparison made once."""

import json
import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from sys import intern
from typing import Any

import pandas as pd

from llama_ablate.config import margins
from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import entry_text
from llama_ablate.config.schema import Looks
from llama_ablate.evidence import Interval, StandardError, Standing, verdict
from llama_ablate.evidence.sequential import spending
from llama_ablate.findings import (
    comparison,
    estimands,
    guards,
    heldout,
    stages,
    tasks,
    tuning,
)
from llama_ablate.findings.controls import Bias, Check, Kind, check, withheld
from llama_ablate.findings.heldout import OF_DOCUMENTS
from llama_ablate.findings.outcomes import UNSTABLE, Curves, milder_outcomes
from llama_ablate.findings.rows import ComparisonRow
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
from llama_ablate.results.record import TRAINING, Measurement, Record, Value
from llama_ablate.results.record import row as measured_row
from llama_ablate.results.snapshot import Results

_LOSS = "validation_loss_nats"
#: The metrics whose losses are points of a ladder: at the end of a run, and at its branches.
_LADDER = ("perplexity", TRAINING)
#: Coordinates of the loss at a branch of a run; its end has `split` alone.
_BRANCH = {"split", "share", "tokens"}
_NEAR = 0.02  # of a run, within which branches of runs of unlike length are one length
_OWNER = ("table", "variant", "label", "run", "seed")
_VALUE = ("metric", "name", "quantity", "unit", "value", "coordinates", "samples", "by_process")
_ATTEMPT = ("metric", "error")
_ENDED = ("outcome", "reason", "too_short", "steps_done")
_READ = ("label", "seed", "outcome", "read", "loss")
_POINT = (
    "label",
    "baseline",
    "role",
    "seed",
    "parameters",
    "tokens",
    "compute",
    "loss",
    "branch",
    "rung",
)


@dataclass(frozen=True, eq=False)
class TableFrames:
    """One table of an experiment as data frames."""

    plan: PlannedTable
    experiment: Experiment
    #: One row for each planned run: id, variant, label, seed, outcome as it counts (`pending`
    #: without a record), whether it was `too_short`, what it was tuned to, whether that is its
    #: variant's `best` point, whether it belongs to a `race` of the points, and the run's values by
    #: name.
    planned: pd.DataFrame
    #: One row for each measured value, of runs and of variants (then `run` is empty). `samples` are
    #: the values by document or by round of an interleaved pass, if any; `by_process`, of variants,
    #: those of each process; `coordinates` a dictionary, shared by the rows that are equal in it.
    metrics: pd.DataFrame
    #: One row for each metric that was tried, of runs and of variants: why it failed, or "".
    attempts: pd.DataFrame
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
                experiment=experiment.model_copy(update={"seeds": seeds}),
                planned=planned[
                    planned["seed"].isin([*experiment.race_seeds, *experiment.seed_list[:seeds]])
                ],
                asked=(),
            )
            for seeds in experiment.looks
        ]

    def branches(self, split: str | None = None) -> dict[int, str]:
        """Return the names of the losses at the branches of the runs, by training tokens.

        They are those on a `split`, by default the reported one.
        """
        of_runs = self.metrics[self.metrics["quantity"] == "loss"]
        return {
            int(row.coordinates["tokens"]): row.name
            for row in rows(of_runs.drop_duplicates("name"))
            if row.coordinates.get("split") == (split or self.split)
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
        ended = self.reported[self.planned.columns].assign(tuned="", point="", race=False)
        return {
            tokens: replace(
                self,
                experiment=self.experiment.model_copy(update={"seeds": seeds, "race": None}),
                planned=ended.assign(**{self.loss: ended[of].bfill(axis="columns").iloc[:, 0]}),
                metrics=self.metrics[~self.metrics["quantity"].isin(["loss", *OF_DOCUMENTS])],
                asked=(),
            )
            for tokens, of in names.items()
        }

    @cached_property
    def marked(self) -> pd.DataFrame:
        """All planned runs, with columns that say which are `chosen`, `needed` and `possible`."""
        return stages.mark(self.plan, self.experiment, self.planned, self._stands, self.quantities)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The planned runs that are needed or have ended; those that are reported are `chosen`."""
        return self.marked[self.marked["needed"] | (self.marked["outcome"] != "pending")]

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
    def reported(self) -> pd.DataFrame:
        """Each variant's runs at its chosen point, of the look at which it stands."""
        return self.runs[self.runs["chosen"]]

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """The reported runs of the variants that were tried at every tuned point."""
        return self.reported[~self.reported["variant"].isin(tuning.unfinished(self.runs))]

    @cached_property
    def losses(self) -> comparison.Losses:
        """The reported losses of ranked runs that ended ok, by variant's id and by seed."""
        return comparison.losses_by_seed(self.plan, self.ranked)

    @cached_property
    def _pairs(self) -> dict[str, comparison.Pairs]:
        return comparison.pairs_by_seed(self.plan, self.losses)

    @cached_property
    def by_document(self) -> heldout.ByDocument:
        """The reported losses by document, by variant's id and by seed: of all that has ended."""
        return self.documents(self.split)

    def documents(self, split: str) -> heldout.ByDocument:
        """Return the losses on a split by document, by variant's id and by seed."""
        at_point = self.planned[self.planned["best"] & ~self.planned["race"]]
        documents = heldout.by_document(self.metrics, at_point, split)
        if self.unit == BITS:
            return heldout.in_bits(documents, self.plan, split)
        return documents

    @cached_property
    def answers(self) -> tasks.ByItem:
        """The scores of each item of a task in the ranked runs that ended ok."""
        return tasks.by_item(self.metrics, self.ranked[self.ranked["outcome"] == "ok"])

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
        return check(self.plan, self._compared, self.margin)

    @cached_property
    def bias(self) -> Bias:
        """What is known of how far all arms but the baseline may be off alike."""
        return Bias.of(self.plan, self._pairs, self.intervals, self.unit.name)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The reported loss of every variant and seed, and of every branch of a run.

        Columns: `label, baseline, role, seed, parameters, tokens, compute, loss, branch,
        rung`. Parameters are non-embedding, compute is in training FLOPs.
        """
        return pd.DataFrame(_points(self), columns=list(_POINT))

    def differences(self) -> dict[str, list[float]]:
        """Return each variant's losses minus the baseline's, over the seeds that both finished."""
        return {
            variant.label: [own - base for own, base in self._pairs[variant.id]]
            for variant in self.plan.variants
            if not variant.baseline
        }

    def curves(self, labels: Collection[str]) -> pd.DataFrame:
        """Return the held-out losses along the reported runs of some variants, one row a point.

        Columns: `label, seed, outcome, read, loss`: `read` is how much text, in tokens, or in bytes
        where variants differ in their tokens.
        """
        points: dict[str, list[Any]] = {key: [] for key in _READ}
        for run in (run for run in rows(self.reported) if run.label in labels):
            variant = self.plan.variant(run.variant)
            text, scale = self.plan.text_of(variant), self.plan.scale(variant, "validation")
            size = text.bytes["train"] / text.tokens["train"] if self.unit == BITS else 1
            for point in self.curve(run.id):
                if math.isfinite(loss := scale * point[_LOSS]):
                    read = size * point["tokens"]
                    _append(points, (run.label, run.seed, run.outcome, read, loss))
        return pd.DataFrame(points)


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
    environment: Mapping[str, Any] | None
    #: How it computed; before any run has finished, how the plan says that runs will.
    compute: Mapping[str, Any]
    #: Finds the folder of a run; None where it has none of its own.
    folder: Callable[[str], Path | None]

    @classmethod
    def of(cls, results: Results) -> "Frames":
        """Read results into frames. Raises ConfigError where a file is damaged."""
        plan = results.plan
        with pd.option_context("mode.string_storage", "python"):  # equal texts are then one object
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
        return stages.stage(self.plan.experiment, [table.marked for table in self.tables])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs of all tables, each once."""
        return pd.concat([table.runs for table in self.tables]).drop_duplicates("id")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The measured values of all tables."""
        return pd.concat([table.metrics for table in self.tables], ignore_index=True)

    @property
    def rungs(self) -> list[TableFrames]:
        """The sizes of a ladder: the tables that share text, match and budget with the first."""
        if not self.plan.experiment.sizes:
            return []
        first = self.table.plan
        of_first = (first.match, first.budget, first.text.identity)
        return [
            table
            for table in self.tables
            if (table.plan.match, table.plan.budget, table.plan.text.identity) == of_first
        ]

    @cached_property
    def ladder(self) -> pd.DataFrame:
        """The points of all sizes, a rung each. Empty for an experiment without `sizes`."""
        points = [point for rung in self.rungs for point in _points(rung)]
        return pd.DataFrame(points, columns=list(_POINT))


def rows(frame: pd.DataFrame) -> list[Any]:
    """Return a frame's rows as named tuples."""
    return list(frame.itertuples())


def ends(samples: Sequence[float], value: float) -> tuple[float, float]:
    """Return the lowest and the highest of what a value stands for."""
    return (min(samples), max(samples)) if samples else (value, value)


def spread(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return measured values with a column for each coordinate, as a CSV has them.

    A coordinate that is called as another column is has an underscore behind its name.
    """
    plain = metrics.drop(columns=["samples", "by_process", "coordinates"])
    known: dict[int, tuple[int, Any]] = {}  # most rows share theirs
    places = [known.setdefault(id(at), (len(known), at))[0] for at in metrics["coordinates"]]
    coordinates = pd.DataFrame([at for _, at in known.values()]).iloc[places]
    coordinates.index = metrics.index
    return plain.join(coordinates.rename(columns={c: f"{c}_" for c in plain.columns}))


@dataclass(frozen=True)
class _Read:
    """What is kept of records and of variants' metrics: of thousands, a tenth of their room."""

    first: Record | None
    #: How each finished run counts, and what it computed with, by its id.
    outcomes: Mapping[str, dict[str, Any]]
    machines: Mapping[str, dict[str, str]]
    #: The last columns of `TableFrames.metrics` and `attempts`, indexed by the run or variant.
    measured: pd.DataFrame
    attempts: pd.DataFrame

    @classmethod
    def of(cls, results: Results) -> "_Read":
        """Read the records and metrics of all tables, each once."""
        values: dict[str, list[Any]] = {key: [] for key in ("of", *_VALUE)}
        attempts: dict[str, list[Any]] = {key: [] for key in ("of", *_ATTEMPT)}
        known: dict[Any, Any] = {}  # coordinates and machines, as most are equal

        def add(of: str, metrics: Mapping[str, Measurement], *, turns: bool) -> None:
            for metric, measurement in metrics.items():
                _append(attempts, (of, intern(metric), measurement.error))
                for value in measurement.rows:
                    _append(values, (of, intern(metric), *_cells(value, known, turns=turns)))

        first, outcomes, machines = None, {}, {}
        texts = _texts(results.plan)
        for id_ in results.finished:
            record = results.record(id_)
            first = first or record
            metrics = _metrics(record)
            if id_ in texts:
                metrics = heldout.pooled(metrics, texts[id_])
            add(id_, metrics, turns=False)
            outcomes[id_] = {key: getattr(record, key) for key in _ENDED}
            machine = _machine(record)
            machines[id_] = known.setdefault(tuple(machine.values()), machine)
        finished = [run for run in results.statuses if run.id in outcomes]
        milder = milder_outcomes(finished, results.curve, results.plan.tables)
        for id_, (outcome, reason) in milder.items():
            outcomes[id_] |= {"outcome": outcome, "reason": reason, "too_short": outcome == "ok"}
        for id_ in {
            variant.id: None for table in results.plan.tables for variant in table.variants
        }:
            add(_of_variant(id_), results.variant_metrics(id_), turns=True)
        frames = (pd.DataFrame(columns).set_index("of") for columns in (values, attempts))
        return cls(first, outcomes, machines, *frames)


def _texts(plan: PlanDocument) -> dict[str, PlannedText]:
    """Return the text of each run, by its id, where nothing is chosen by the validation loss."""
    if plan.experiment.tune:
        return {}
    of_variant = {v.id: table.text_of(v) for table in plan.tables for v in table.variants}
    return {run.id: of_variant[run.variant] for run in plan.runs.values()}


def _of_variant(id_: str) -> str:
    return f"variant {id_}"


def _append(columns: Mapping[str, list[Any]], row: Sequence[Any]) -> None:
    for column, cell in zip(columns.values(), row, strict=True):
        column.append(cell)


def _cells(value: Value, known: dict[Any, Any], *, turns: bool) -> tuple[Any, ...]:
    return (
        intern(value.name),
        intern(value.quantity or value.name),
        intern(value.unit),
        value.value,
        known.setdefault(tuple(value.coordinates.items()), value.coordinates),
        array("d", value.samples) if value.samples else (),
        value.by_process if turns else (),
    )


def _table(
    experiment: Experiment, table: PlannedTable, results: Results, read: _Read
) -> TableFrames:
    labels = {variant.id: variant.label for variant in table.variants}
    finished = [run for run in table.runs if run.id in read.outcomes]
    owners: dict[str, tuple[str, str, str, float]] = {
        run.id: (run.variant, labels[run.variant], run.id, run.seed) for run in finished
    }
    owners |= {_of_variant(id_): (id_, label, "", math.nan) for id_, label in labels.items()}
    cells = [(table.name, *owner) for owner in owners.values()]
    owned = pd.DataFrame(cells, columns=list(_OWNER), index=list(owners))
    planned = _runs(experiment, table, read)
    return TableFrames(
        table,
        experiment,
        planned,
        owned.join(read.measured, how="inner").reset_index(drop=True),
        owned.join(read.attempts, how="inner").reset_index(drop=True),
        pd.DataFrame([read.machines[run.id] for run in finished]),
        results.curve,
        estimands.asked(results.plan, table),
    )


def _metrics(record: Record) -> dict[str, Measurement]:
    """Return a run's metrics; what every record says of the training itself is among them."""
    of_loop = record.metrics.get(TRAINING, Measurement())
    cost = (
        measured_row("peak_memory_bytes", record.peak_memory_bytes, "bytes", "peak_memory"),
        measured_row("train_s", record.train_s, "s", "train_time"),
    )
    return {**record.metrics, TRAINING: replace(of_loop, rows=(*of_loop.rows, *cost))}


def _runs(experiment: Experiment, table: PlannedTable, read: _Read) -> pd.DataFrame:
    """Return one row for each planned run, with the numbers that were measured of it."""
    labels = {variant.id: variant.label for variant in table.variants}
    pending = {"outcome": "pending", "reason": "", "too_short": False, "steps_done": math.nan}
    planned = [
        {
            "id": run.id,
            "variant": run.variant,
            "label": labels[run.variant],
            "seed": run.seed,
            "tuned": json.dumps(run.tuned),
            "point": tuning.point(run.tuned),
            "race": run.seed in experiment.race_seeds,
            **read.outcomes.get(run.id, pending),
        }
        for run in table.runs
    ]
    of_runs = read.measured[read.measured.index.isin([run.id for run in table.runs])]
    numbers = of_runs.pivot_table("value", "of", "name", aggfunc="last", dropna=False, sort=False)
    frame = pd.DataFrame(planned).join(numbers, on="id")
    for outcome in UNSTABLE:
        frame[outcome] = (frame["outcome"] == outcome).astype(float)
        frame.loc[frame["outcome"] == "pending", outcome] = math.nan
    frame["best"] = tuning.choose(frame, table.repeated)
    if "lr" in experiment.tune:
        frame["lr_sensitivity_nats"] = tuning.sensitivity_of_runs(frame, math.log(table.text.vocab))
    return frame


def _machine(record: Record) -> dict[str, str]:
    """Return what a run computed with; runs that differ in any of it are not quite comparable."""
    compute, environment = record.compute, record.environment
    return {
        "devices": str(compute.get("device")),
        "numbers of threads": str(compute.get("threads")),
        "precisions": str(compute.get("precision")),
        "attention kernels": str(compute.get("kernel")),
        "precisions of evaluation": str(compute.get("evaluation")),
        "training steps": "compiled" if compute.get("compiled") else "not compiled",
        "versions of torch": str(environment["packages"]["torch"]),
        "states of the code": str(environment["code"]).replace("+", " with changes"),
        "plugins": entry_text(environment.get("plugins", {})),
        "processors": " with ".join(filter(None, (environment["processor"], environment["gpu"]))),
    }


def _points(table: TableFrames) -> list[dict[str, Any]]:
    """Return the losses of one rung of a ladder: at the end of each run, and at its branches.

    A run that was too short has none: its end is no point of a curve through what was learned.
    """
    plan = table.plan
    runs = {run.id: run for run in plan.runs}
    per_step = table.experiment.train.batch * table.experiment.model.context
    ok = table.ranked[(table.ranked["outcome"] == "ok") & ~table.ranked["too_short"]]
    of_runs = table.metrics["metric"].isin(_LADDER) & (table.metrics["quantity"] == "loss")
    losses = table.metrics[of_runs].dropna(subset="value")
    losses = losses[losses["run"].isin(ok["id"])]
    points = []
    for row in rows(losses):
        where = row.coordinates
        if where.get("split") != table.split or where.keys() - _BRANCH:
            continue  # the loss of another split, or of a part of the text
        variant, run = plan.variant(row.variant), runs[row.run]
        at_end = run.steps * per_step
        tokens = where.get("tokens", at_end)
        points.append(
            {
                "label": variant.label,
                "baseline": variant.baseline,
                "role": variant.role,
                "seed": run.seed,
                "parameters": variant.non_embedding,
                "tokens": tokens,
                "compute": variant.flops * tokens,
                "loss": plan.scale(variant, table.split) * row.value,
                "branch": tokens != at_end,
                "rung": plan.name,
            }
        )
    return points
