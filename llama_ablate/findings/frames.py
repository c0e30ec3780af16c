"""Results of an experiment: its tables with their rows, and derived rows computed once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from llama_ablate.config.schema import Looks
from llama_ablate.evidence import Difference, Standing
from llama_ablate.findings import comparison, stages, tuning
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.outcomes import counted
from llama_ablate.findings.paired_table import DOCUMENT_QUANTITIES, PairedTable
from llama_ablate.findings.rows import grouped
from llama_ablate.findings.secondary import SecondaryRow, judge_secondary
from llama_ablate.findings.values import (
    BRANCH,
    MeasuredValues,
    MetricRow,
    RunRow,
    Values,
    read_values,
)
from llama_ablate.results.plan_document import (
    BITS,
    PlanDocument,
    PlannedTable,
    find_table,
)
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import TRAINING, Environment
from llama_ablate.results.snapshot import Results

#: Metrics with the losses at the end of a run and at its branches, for curves over model size.
_LADDER = ("perplexity", TRAINING)
#: Branches of runs of different length count as one length if their tokens differ by less than this
#: share of a run.
_SAME_LENGTH = 0.02


@dataclass(frozen=True)
class LossPoint:
    """Loss of a run at its end, or at a branch.

    A branch is a copy of the run that is cooled down early.
    """

    label: str
    baseline: bool
    role: str
    seed: int
    #: Number of parameters without embeddings.
    parameters: int
    tokens: int
    #: Training FLOPs up to this point.
    compute: float
    loss: float
    branch: bool
    #: Name of the run's table.
    rung: str


@dataclass(frozen=True, eq=False)
class TableFrames(PairedTable):
    """Table of an experiment, with derived rows that are computed once."""

    @cached_property
    def standings(self) -> dict[str, Standing[Difference]]:
        """Last look of each variant except the baseline, and difference there, by variant id."""
        return stages.find_standings(self)

    @cached_property
    def marked_runs(self) -> Sequence[RunRow]:
        """All planned runs, each marked with its use at the current stage."""
        return stages.mark(self)

    @cached_property
    def comparison(self) -> list[ComparisonRow]:
        """Rows of the comparison: quality, difference, verdict, size, speed, memory."""
        return comparison.compare_variants(self, self.guards)

    @cached_property
    def secondary(self) -> list[SecondaryRow]:
        """Rows of metrics other than the loss: task accuracies, and guarded metrics."""
        return judge_secondary(self)

    @property
    def guards(self) -> list[SecondaryRow]:
        """Rows of guarded metrics, with the guards' results."""
        return [row for row in self.secondary if row.result]

    def branches(self, split: str | None = None) -> dict[int, str]:
        """Return the metric names of the losses at branches, by number of training tokens.

        A branch is a copy of a run that is cooled down early. `split` is the split of the losses,
        by default the reported split.
        """
        return {
            int(row.coordinates["tokens"]): row.name
            for row in (rows[0] for rows in self.metrics.named.values())
            if row.quantity == "loss"
            and row.coordinates.get("split") == (split or self.split)
            and {*row.coordinates} == BRANCH
        }

    @cached_property
    def lengths(self) -> "dict[int, TableFrames]":
        """Tables of the same comparison at shorter training lengths, by number of tokens.

        The losses come from branches, which are copies of runs that are cooled down early. The
        error level of the intervals is divided by the number of lengths. The mapping is empty if
        variants have different tokenizers, since losses at branches are then not comparable.
        """
        if self.unit == BITS:
            return {}
        names: dict[int, list[str]] = {}
        run_tokens = self.plan.tokens_per_run
        for tokens, name in sorted(self.branches().items()):
            # Runs of different length have branches of different length: one share is one length.
            near = (of for of in names if abs(tokens - of) < _SAME_LENGTH * run_tokens)
            names.setdefault(next(near, tokens), []).append(name)
        if not names:
            return {}
        seeds = Looks.model_construct(looks=[self.experiment.looks[-1]], spend=[1 / len(names)])
        place = {seed: i for i, seed in enumerate(self.experiment.seed_list)}  # looks count seeds
        other = MeasuredValues(
            row for row in self.metrics if row.quantity not in ("loss", *DOCUMENT_QUANTITIES)
        )

        def at(run: RunRow, of: Sequence[str]) -> RunRow:
            """Return a reported run with its loss replaced by the loss of a branch."""
            losses = (loss for name in of if not math.isnan(loss := run.number(name)))
            numbers = {**run.numbers, self.loss: next(losses, math.nan)}
            return replace(run, seed=place[run.seed], numbers=numbers, tuned="", point="")

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
    def points(self) -> Sequence[LossPoint]:
        """Reported losses of all variants and seeds, at the ends and branches of runs.

        A run that was too short has no points, since its final loss is unknown.
        """
        plan = self.plan
        runs = {run.id: run for run in plan.runs}
        variants = {variant.id: variant for variant in plan.variants}
        batch, context = self.experiment.train.batch, self.experiment.model.context
        ok = {run.id for run in self.ranked if run.outcome == "ok" and not run.too_short}
        points = []
        for row in self.metrics:
            where = row.coordinates
            if row.metric not in _LADDER or row.quantity != "loss" or row.run not in ok:
                continue
            if where.get("split") != self.split or where.keys() - BRANCH or math.isnan(row.value):
                continue  # the loss of another split, or of a part of the text
            variant, run = variants[row.variant], runs[row.run]
            step = run.train.get("batch", batch) * variant.model.get("context", context)
            tokens = int(where.get("tokens", run.steps * step))
            points.append(
                LossPoint(
                    label=variant.label,
                    baseline=variant.baseline,
                    role=variant.role,
                    seed=run.seed,
                    parameters=variant.non_embedding,
                    tokens=tokens,
                    compute=variant.flops * tokens,
                    loss=plan.scale(variant, self.split) * row.value,
                    branch=tokens != run.steps * step,
                    rung=plan.name,
                )
            )
        return points

    def differences(self) -> dict[str, list[float]]:
        """Return each variant's paired loss differences from the baseline, of reported runs."""
        base, seeds = self.plan.baseline.id, dict[str, list[int]]()
        for run in self.reported:
            seeds.setdefault(run.variant, []).append(run.seed)
        return {
            variant.label: self.pair(
                self.loss, variant.id, base, seeds.get(variant.id, [])
            ).differences()
            for variant in self.plan.variants
            if not variant.baseline
        }


@dataclass(frozen=True, eq=False)
class Frames:
    """All tables of an experiment: the input of report sections and figures."""

    plan: PlanDocument
    #: Path of the results, as given to the command.
    root: str
    tables: tuple[TableFrames, ...]
    #: Versions of the experiment file: before the first run had finished, and every change since.
    protocol: Sequence[Version]
    experiment_text: str
    #: Machine and software of the first run that finished.
    environment: Environment | None
    #: Compute settings of that run; before any run has finished, the planned settings.
    compute: Mapping[str, object]
    #: Function that returns the folder of a run; None for a run without a folder on disk.
    folder: Callable[[str], Path | None]

    @classmethod
    def of(cls, results: Results) -> "Frames":
        """Read results into frames. Raises ConfigError if a file is damaged."""
        plan, values = results.plan, read_values(results)
        ended = counted([*values.runs.values()], results.curve, plan.tables)
        values = replace(values, runs={run.id: run for run in ended})
        return cls(
            plan,
            str(results.root),
            tuple(_table(plan, table, results, values) for table in plan.tables),
            results.protocol,
            results.experiment_text,
            values.environment,
            values.compute,
            results.folder,
        )

    @property
    def table(self) -> TableFrames:
        """First table of the experiment.

        Frames for a report section or figure have a single table.
        """
        return self.tables[0]

    def only(self, table: TableFrames) -> "Frames":
        """Return frames that contain only the given table."""
        return replace(self, tables=(table,))

    def at_level(self, level: float) -> "Frames":
        """Return frames whose comparisons have intervals at another two-sided error level."""
        return replace(self, tables=tuple(replace(table, level=level) for table in self.tables))

    @property
    def by_name(self) -> dict[str, TableFrames]:
        """The tables by their names."""
        return {table.plan.name: table for table in self.tables}

    def named(self, name: str | None) -> TableFrames:
        """Return the table of a given name; the first table for None.

        Raises ConfigError for an unknown name.
        """
        return find_table(self.by_name, name)

    @property
    def stage(self) -> stages.Stage:
        """Current stage of an experiment with a race or looks."""
        runs = [run for table in self.tables for run in table.marked_runs]
        return stages.find_stage(self.plan.experiment, runs)

    @cached_property
    def runs(self) -> Sequence[RunRow]:
        """The runs of all tables, each once."""
        every = [run for table in self.tables for run in table.runs]
        return [runs[0] for runs in grouped(every, lambda run: run.id).values()]

    @property
    def metrics(self) -> Sequence[MetricRow]:
        """Measured values of all tables."""
        return [row for table in self.tables for row in table.metrics]

    @property
    def rungs(self) -> list[TableFrames]:
        """Tables of the model sizes, one table for each size.

        Each table has the evaluation text, size matching and budget of the first table. The list is
        empty for an experiment without `sizes`.
        """
        if not self.plan.experiment.sizes:
            return []
        first = self.table.plan
        first_key = (first.match, first.budget, first.evaluated_on)
        return [
            table
            for table in self.tables
            if (table.plan.match, table.plan.budget, table.plan.evaluated_on) == first_key
        ]

    @cached_property
    def ladder(self) -> Sequence[LossPoint]:
        """Loss points of all model sizes; empty for an experiment without `sizes`."""
        return [point for rung in self.rungs for point in rung.points]


def _table(
    plan: PlanDocument, table: PlannedTable, results: Results, values: Values
) -> TableFrames:
    readings = plan.readings(table)
    behind = next(name for name, way in readings.items() if way == table.read_as)
    metrics, attempts, machines = values.table_values(table, behind)
    runs = tuning.mark_trials(values.planned(plan.experiment, table, behind), table.repeated)
    if "lr" in plan.experiment.tune:
        runs = tuning.with_sensitivity(runs, math.log(table.text.vocab))
    return TableFrames(
        table,
        plan.experiment,
        runs,
        MeasuredValues(metrics),
        attempts,
        pd.DataFrame(machines),
        results.curve,
        _hypothesis_labels(plan, table),
    )


def _hypothesis_labels(plan: PlanDocument, table: PlannedTable) -> set[str]:
    """Return the labels of variants in hypotheses that no row of the table answers.

    Such a hypothesis states a metric, or compares two variants of which neither is the baseline.
    """
    base, first = table.baseline.label, plan.tables[0].name
    return {
        label
        for hypothesis in plan.hypotheses
        if table.name == (hypothesis.table or first)
        and (hypothesis.measure or base not in (hypothesis.variant, hypothesis.against or base))
        for label in (hypothesis.variant, hypothesis.against or base)
    }
