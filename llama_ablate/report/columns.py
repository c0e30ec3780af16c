"""Tidy data frames of `llama_ablate.open`, `runs.csv` and `curves.csv`.

The descriptions of their columns here are the source of the documentation's list of columns, and a
test compares the frames with them. Column names are stable; new columns are added after the
existing ones.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import Row, filled
from llama_ablate.findings.rows import columns as described
from llama_ablate.findings.rows import frame as of_rows
from llama_ablate.findings.values import MetricRow, RunRow
from llama_ablate.results import CURVE

#: Descriptions of a frame's columns by name, in the order of the columns.
Columns = Mapping[str, str]

#: Names for users, in Python and in CSV files, of the columns that identify a variant.
RENAMED = {"variant": "variant_id", "label": "variant"}
_OWNER: Columns = {
    "experiment": "name of the experiment",
    "table": "name of the table; empty if there is only one",
    "variant": "label of the variant",
    "variant_id": "hash of the variant's architecture and train config",
}
#: Names of row fields in frames that start with the columns of `_OWNER`.
_NAMES = {**RENAMED, "id": "run"}


def _named(kind: type[Row], *first: str) -> Columns:
    """Return the descriptions of a row class's columns, by column name.

    The order is: the columns of `_OWNER`, the columns named in `first`, all other columns.
    """
    row_columns = {_NAMES.get(name, name): about for name, about in described(kind).items()}
    return {**_OWNER, **{name: row_columns[name] for name in first}, **row_columns, **_OWNER}


TABLES: Columns = {
    "experiment": _OWNER["experiment"],
    "table": _OWNER["table"],
    "baseline": "label of the variant that the others are compared with",
    "corpus": "where the text comes from",
    "text": "fingerprint of the text as tokens: equal where the tokens are",
    "vocab": "entries of the vocabulary",
    "dim": "width of the model",
    "layers": "layers of the model",
    "heads": "query heads of the model",
    "context": "training context in tokens",
    "unit": "unit of losses: `nats` per token, or `bits/byte`",
    "match": "what is held equal to the baseline's: `parameters`, `flops`, ..., or `none`",
    "budget": "what a run's length is counted in: `tokens`, `flops` or `seconds`",
    "steps": "optimizer steps of the baseline's runs",
    "tokens_per_run": "training tokens of the baseline's runs",
    "variants": "number of variants, the baseline and controls included",
    "runs": "number of runs that are needed or have ended",
    "finished": "number of them that ended `ok`, `diverged` or `collapsed`",
}
RUNS: Columns = _named(RunRow)
_RUN = ("seed", "run", "point", "use", "outcome")
CURVES: Columns = {
    **_OWNER,
    **{name: RUNS[name] for name in _RUN},
    "step": "optimizer steps so far",
    "tokens": "training tokens so far",
    "lr": "learning rate of the step",
    "train_loss_nats": "cross-entropy of the training batch, nats per token",
    "grad_norm": "norm of the gradient before clipping",
    "validation_loss_nats": "loss on the first 8,192 tokens of the validation split",
    "train_s": "seconds of training so far",
}
METRICS: Columns = {
    **_named(MetricRow, "seed", "run"),
    "samples": "number of values behind it: turns of a timing, documents of a loss, or 1",
    "lowest": "lowest of them",
    "highest": "highest of them",
}
COMPARISON: Columns = _named(ComparisonRow)


def tables(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table."""
    return _frame([_table(frames, table) for table in frames.tables], TABLES)


def runs(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table and run.

    The columns of `RUNS` are followed by a column for each metric value.
    """
    return _joined([_runs(frames, table) for table in frames.tables], RUNS)


def curves(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table, run and learning-curve point.

    The columns of `CURVES` are followed by a column for each further loss.
    """
    return pd.concat(curve_parts(frames), ignore_index=True)


def curve_parts(frames: Frames) -> Iterator[pd.DataFrame]:
    """Yield the frame of `curves` in parts, to limit memory.

    For thousands of runs, the whole frame would take a gigabyte.
    """
    tables = [(_runs(frames, table), *_points(table)) for table in frames.tables]
    names = {name: None for _, _, points in tables for name in points}
    for about, places, points in tables:
        for at in range(0, max(1, len(places)), _MANY):
            part = about[[*_OWNER, *_RUN]].take(places[at : at + _MANY]).reset_index(drop=True)
            for name in names:
                part[name] = points[name][at : at + _MANY] if name in points else math.nan
            yield _frame(part.astype({"step": int, "tokens": int}), CURVES)


def metrics(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per measured value.

    The columns of `METRICS` are followed by a column for each coordinate, such as `layer`.
    """
    return _joined([_metrics(frames, table) for table in frames.tables], METRICS)


def comparison(frames: Frames) -> pd.DataFrame:
    """Return a frame with one row per comparison table and variant, and columns `COMPARISON`."""
    return _joined([_comparison(frames, table) for table in frames.tables], COMPARISON)


#: Functions that yield the parts of a report's further CSV files, by file name.
FILES: Mapping[str, Callable[[Frames], Iterable[pd.DataFrame]]] = {
    "runs": lambda frames: [runs(frames)],
    "curves": curve_parts,
}
_MANY = 10_000  # curve points per part


def _table(frames: Frames, table: TableFrames) -> dict[str, object]:
    plan, text = table.plan, table.plan.text
    return {
        "experiment": frames.plan.experiment.name,
        "table": plan.name,
        "baseline": plan.baseline.label,
        "corpus": text.corpus,
        "text": text.fingerprint,
        "vocab": text.vocab,
        **plan.size,
        "context": frames.plan.experiment.model.context,
        "unit": table.unit.name,
        "match": plan.match,
        "budget": plan.budget,
        "steps": plan.steps,
        "tokens_per_run": plan.tokens_per_run,
        "variants": len(plan.variants),
        "runs": len(table.runs),
        "finished": sum(row.finished for row in table.comparison),
    }


def _runs(frames: Frames, table: TableFrames) -> pd.DataFrame:
    columns = described(RunRow)

    def plain(run: RunRow) -> RunRow:
        """Move a run's numbers that are fields of RunRow from `numbers` to these fields."""
        numbers = {**run.numbers, "loss": run.number(table.loss)}
        run = replace(run, numbers={name: numbers[name] for name in numbers if name not in columns})
        return filled(run, numbers)

    return _owned(frames, of_rows([plain(run) for run in table.runs], RunRow), table)


def _points(table: TableFrames) -> "tuple[array[int], dict[str, array[float]]]":
    """Return all curve points of a table: run indices, and values by column."""
    places, points = array("q"), {name: array("d") for name in CURVE}
    for place, run in enumerate(table.runs):
        for point in table.curve(run.id):
            for name in point.keys() - points.keys():
                points[name] = array("d", [math.nan]) * len(places)
            places.append(place)
            for name, values in points.items():
                values.append(point.get(name, math.nan))
    return places, points


def _metrics(frames: Frames, table: TableFrames) -> pd.DataFrame:
    ends = [row.ends for row in table.metrics]
    frame = _owned(frames, of_rows(table.metrics, MetricRow), table)
    return frame.astype({"seed": "Int64"}).assign(
        samples=[len(row.samples) or 1 for row in table.metrics],
        lowest=[low for low, _ in ends],
        highest=[high for _, high in ends],
    )


def _comparison(frames: Frames, table: TableFrames) -> pd.DataFrame:
    ids = [variant.id for variant in table.plan.variants]
    frame = _owned(frames, of_rows(table.comparison).assign(variant=ids), table)
    return frame.assign(experiment=[table.experiments[id_] for id_ in ids])


def _owned(frames: Frames, frame: pd.DataFrame, table: TableFrames) -> pd.DataFrame:
    """Add the columns `experiment` and `table` to a frame, and rename columns by `_NAMES`."""
    named = frame.rename(columns=_NAMES)
    return named.assign(experiment=frames.plan.experiment.name, table=table.plan.name)


def _joined(parts: Sequence[pd.DataFrame], columns: Columns) -> pd.DataFrame:
    """Concatenate the frames of all comparison tables, with the documented columns first."""
    filled = [part for part in parts if len(part)]
    return _frame(pd.concat(filled, ignore_index=True) if filled else parts[0], columns)


def _frame(values: pd.DataFrame | Sequence[Mapping[str, object]], columns: Columns) -> pd.DataFrame:
    """Return a frame with the documented columns first, followed by all others."""
    frame = pd.DataFrame(values)
    others = [column for column in frame.columns if column not in columns]
    return frame.reindex(columns=[*columns, *others])
