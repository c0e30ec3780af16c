"""Results of an experiment as frames: a row for each run, and a row for each measured value."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.intervals import Array
from llama_ablate.findings import stages, tuning
from llama_ablate.findings.columns import COLUMNS
from llama_ablate.findings.outcomes import UNSTABLE, correct_outcomes
from llama_ablate.findings.table import HELD_OUT_SPLITS, Table
from llama_ablate.results.plan_document import (
    HELD_OUT,
    PlanDocument,
    PlannedTable,
    find_table,
)
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import TRAINING, Environment, Measurement, Record, Value
from llama_ablate.results.record import row as measured_row
from llama_ablate.results.snapshot import Results

#: Coordinates of a loss at a branch of a run, in the column `where`; a branch is a copy of the run
#: that is cooled down early.
BRANCH = "share split tokens"
#: Coordinates that findings read; a frame of values has their columns in any case.
_COORDINATES = (
    *("split", "task", "fingerprint", "cluster", "group", "share", "tokens"),
    *("cache", "batch", "context"),
)
#: Quantities that are averaged over two splits with token counts as weights, and the standard
#: errors of these averages.
_TOKEN_QUANTITIES = ("loss", "floor", "excess_loss")
_ERRORS = ("loss_se", "excess_loss_se")
_RECORD_FIELDS = ("id", "outcome", "reason", "too_short", "steps_done")


@dataclass(frozen=True, eq=False)
class Frames:
    """All tables of an experiment: the input of report sections and figures."""

    plan: PlanDocument
    #: Path of the results, as given to the command.
    root: str
    tables: tuple[Table, ...]
    #: Versions of the experiment file: before the first run began, and every change since.
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
        plan = results.plan
        tables, record = read_tables(results)
        planned = plan.compute.to_dict() if plan.compute else {}
        return cls(
            plan,
            str(results.root),
            tables,
            results.protocol,
            results.experiment_text,
            record.environment if record else None,
            record.compute if record else planned,
            results.folder,
        )

    @property
    def table(self) -> Table:
        """First table of the experiment.

        Frames for a report section or figure have a single table.
        """
        return self.tables[0]

    def only(self, table: Table) -> "Frames":
        """Return frames that contain only the given table."""
        return replace(self, tables=(table,))

    def at_level(self, level: float) -> "Frames":
        """Return frames whose comparisons have intervals at another two-sided error level."""
        return replace(self, tables=tuple(replace(table, level=level) for table in self.tables))

    @property
    def by_name(self) -> dict[str, Table]:
        """The tables by their names."""
        return {table.plan.name: table for table in self.tables}

    def named(self, name: str | None) -> Table:
        """Return the table of a given name; the first table for None.

        Raises ConfigError for an unknown name.
        """
        return find_table(self.by_name, name)

    @property
    def stage(self) -> stages.Stage:
        """Current stage of an experiment with a race or looks."""
        return stages.find_stage(self.tables)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs of all tables that are needed or have ended, each once."""
        every = pd.concat([stages.find_runs(table) for table in self.tables], ignore_index=True)
        return every.drop_duplicates("id", ignore_index=True)

    @property
    def rungs(self) -> list[Table]:
        """Tables of the model sizes, one table for each size.

        Each table has the evaluation text, size matching and budget of the first table. The list is
        empty for an experiment without `sizes`.
        """
        if not self.plan.experiment.sizes:
            return []

        def key(table: Table) -> tuple[object, ...]:
            return table.plan.match, table.plan.budget, table.plan.evaluated_on

        return [table for table in self.tables if key(table) == key(self.table)]


def read_tables(results: Results) -> tuple[tuple[Table, ...], Record | None]:
    """Read each record of an experiment once; return its tables and the first record.

    Raises ConfigError if a file is damaged.
    """
    plan, first = results.plan, None
    reader = _Reader(plan)
    machines: dict[str, dict[str, str]] = {}
    runs: list[dict[str, Any]] = []
    label_of = {v.id: v.label for table in reversed(plan.tables) for v in table.variants}
    for id_ in results.finished:
        record = results.record(id_)
        first = first or record
        for reading in plan.readings(plan.table_of(id_)):
            reader.add(_list_metrics(record, reading), record.variant, id_, record.seed, reading)
        run = {name: getattr(record, name) for name in _RECORD_FIELDS}
        runs.append({**run, "label": label_of[record.variant], "seed": record.seed})
        machines[id_] = _describe_machine(record)
    for id_ in label_of:
        reader.add(results.variant_metrics[id_], id_)
    ended = correct_outcomes(
        pd.DataFrame(runs, columns=[*_RECORD_FIELDS, "label", "seed"]), results.curve, plan.tables
    )
    values, attempts = reader.values(), reader.attempts()
    ended = ended.set_index("id")
    tables = (
        _make_table(plan, table, ended, values, attempts, machines, results)
        for table in plan.tables
    )
    return tuple(tables), first


class _Reader:
    """Collector of measured values, in lists that become the columns of a frame."""

    _OWNER = ("reading", "variant", "run", "seed", "metric")
    _VALUE = ("name", "quantity", "unit", "value", "samples", "turns", "place")

    def __init__(self, plan: PlanDocument) -> None:
        self._texts = _find_pooled_texts(plan)
        self._rows: list[tuple[Any, ...]] = []
        self._attempts: list[tuple[Any, ...]] = []
        #: Coordinates of values, and their places; most are equal.
        self._places: dict[tuple[tuple[str, Any], ...], int] = {}

    def add(
        self,
        metrics: Mapping[str, Measurement],
        variant: str,
        run: str = "",
        seed: float = math.nan,
        reading: str = "",
    ) -> None:
        """Add the measurements of a run, or of a variant."""
        weights = _weigh_splits(metrics, *self._texts[run]) if run in self._texts else ()
        for metric, measured in metrics.items():
            owner = reading, variant, run, seed, metric
            self._attempts.append((*owner, measured.error))
            pooled = _pool_splits(measured.rows, *weights) if weights else ()
            for value in (*measured.rows, *pooled):
                place = self._places.setdefault(tuple(value.coordinates.items()), len(self._places))
                samples = np.array(value.samples) if value.samples else ()
                turns = () if run else value.by_process
                quantity = value.quantity or value.name
                numbers = value.value, samples, turns, place
                self._rows.append((*owner, value.name, quantity, value.unit, *numbers))

    def attempts(self) -> pd.DataFrame:
        """Return a row for each attempt to measure a metric of a run or variant."""
        return pd.DataFrame(self._attempts, columns=[*self._OWNER, "error"])

    def values(self) -> pd.DataFrame:
        """Return a row for each value, with a column for each coordinate.

        A coordinate with the name of another column gets an underscore.
        """
        frame = pd.DataFrame(self._rows, columns=[*self._OWNER, *self._VALUE])
        taken = {*self._OWNER, *self._VALUE, *COLUMNS["metrics"]}
        rows = [
            {f"{key}_" if key in taken else key: value for key, value in place}
            for place in self._places
        ]
        where = pd.DataFrame(rows, index=range(len(rows)))
        where = where.reindex(columns=[*dict.fromkeys((*where, *_COORDINATES))])
        where["where"] = [" ".join(sorted(dict(place))) for place in self._places]
        return frame.join(where, on="place").drop(columns="place")


def _make_table(
    plan: PlanDocument,
    table: PlannedTable,
    ended: pd.DataFrame,
    values: pd.DataFrame,
    attempts: pd.DataFrame,
    machines: Mapping[str, Mapping[str, str]],
    results: Results,
) -> Table:
    """Return a table of an experiment, with the rows of its runs and variants."""
    readings = plan.readings(table)
    reading = next(name for name, way in readings.items() if way == table.read_as)
    variants, ids = {v.id: v for v in table.variants}, [run.id for run in table.runs]
    label_of = {id_: variant.label for id_, variant in variants.items()}

    def select(rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the table's runs and variants."""
        run_rows = rows["run"].isin(ids) & rows["reading"].eq(reading)
        variant_rows = rows["run"].eq("") & rows["variant"].isin(label_of)
        rows = rows[run_rows | variant_rows].drop(columns="reading")
        return rows.assign(label=rows["variant"].map(label_of), table=table.name)

    values = select(values)
    runs = pd.DataFrame(
        {
            "label": label_of[run.variant],
            "variant": run.variant,
            "seed": run.seed,
            "id": run.id,
            "point": "",
            "use": "race" if run.seed in plan.experiment.race_seeds else "reported",
            "baseline": variants[run.variant].baseline,
            "role": variants[run.variant].role,
            "tuned": json.dumps(run.tuned),
        }
        for run in table.runs
    )
    runs = runs.join(ended.drop(columns=["label", "seed"]), on="id")
    runs = runs.fillna({"outcome": "pending", "reason": ""})
    runs = mark_ends(runs.assign(too_short=runs["too_short"].eq(True)))
    runs = runs.join(_spread_numbers(values), on="id")
    is_open = runs["outcome"].eq("pending")
    lost = {w: runs["outcome"].eq(w).astype(float).mask(is_open) for w in UNSTABLE}
    runs = tuning.mark_trials(runs.assign(**lost), table.repeated)
    if "lr" in plan.experiment.tune:
        runs = tuning.add_sensitivity(runs, math.log(table.text.vocab))
    return Table(
        table,
        plan.experiment,
        runs,
        values,
        select(attempts),
        pd.DataFrame([machines[id_] for id_ in ids if id_ in machines]),
        results.curve,
        _hypothesis_labels(plan, table),
    )


def mark_ends(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the column `ended`: the outcome, or `too short` for an `ok` run that was too short."""
    return runs.assign(ended=runs["outcome"].mask(runs["too_short"], "too short"))


def _spread_numbers(values: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of runs in columns, by run id.

    Of a number with several values, the last that is not NaN is returned.
    """
    run_rows = values[values["run"].ne("")]
    wide = run_rows.pivot_table("value", "run", "name", aggfunc="last", dropna=False)
    return wide.reindex(columns=run_rows["name"].unique())


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


def _list_metrics(record: Record, reading: str) -> dict[str, Measurement]:
    """Return a run's metrics in one document mode, with its training metrics and costs."""
    loop = record.metrics.get(TRAINING, Measurement())
    costs = (
        measured_row("peak_memory_bytes", float(record.peak_memory_bytes), "bytes", "peak_memory"),
        measured_row("train_s", record.train_s, "s", "train_time"),
    )
    # Branches are evaluated in the first document mode alone.
    training_rows = [
        v for v in loop.rows if not (reading and " ".join(sorted(v.coordinates)) == BRANCH)
    ]
    return {**record.read(reading), TRAINING: replace(loop, rows=(*training_rows, *costs))}


def _describe_machine(record: Record) -> dict[str, str]:
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


#: Tokens, and bytes, of the two held-out splits of a text.
_Sizes = tuple[Array, Array]


def _find_pooled_texts(plan: PlanDocument) -> dict[str, _Sizes]:
    """Return the sizes of the held-out splits that are reported as one text, by run id.

    An experiment that chose nothing by the validation or test loss can report both splits as one
    text. The mapping is empty for any other experiment.
    """
    texts = {
        run.id: table.text_of(variants[run.variant])
        for table in plan.tables
        for variants in [{variant.id: variant for variant in table.variants}]
        for run in table.runs
    }
    has_both = all(text.tokens.keys() >= {*HELD_OUT_SPLITS} for text in texts.values())
    if plan.experiment.tune or not has_both:
        return {}
    sizes = {
        id(text): np.array([text.size(part)[:2] for part in HELD_OUT_SPLITS], float)
        for text in texts.values()
    }
    return {id_: (*sizes[id(text)].T,) for id_, text in texts.items()}


def _weigh_splits(metrics: Mapping[str, Measurement], tokens: Array, size: Array) -> _Sizes:
    """Return the weights of both splits of a run: its predicted tokens, if known, and its bytes."""
    numbers = {name: value for of in metrics.values() for name, value in of.numbers.items()}
    predicted = [numbers.get(f"{part}_predicted_tokens") for part in HELD_OUT_SPLITS]
    return (tokens if None in predicted else np.array(predicted, float)), size


def _pool_splits(rows: Sequence[Value], tokens: Array, size: Array) -> Iterator[Value]:
    """Yield a metric's values averaged over both held-out splits, weighted by tokens or bytes."""
    by_name = {row.name: row for row in rows}
    for test in rows:
        twin = by_name.get(test.name.replace("test", "validation", 1))
        if test.coordinates.get("split") != "test" or twin is None or twin is test:
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
        name = test.name.replace("test", HELD_OUT, 1)
        coordinates = dict(test.coordinates) | {"split": HELD_OUT}
        yield replace(test, name=name, value=float(value), coordinates=coordinates)
