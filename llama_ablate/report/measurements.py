"""Metric values in a report: means per variant, and missing values with their reasons."""

import math
from collections.abc import Sequence

import pandas as pd

from llama_ablate.evidence.written import plain
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import frame, grouped
from llama_ablate.findings.values import MetricRow
from llama_ablate.terminal import listed

_MANY = 12  # variants beyond which a table with a column for each is too wide


def find_measured(frames: Frames) -> Sequence[MetricRow]:
    """Return all metric values, or an empty sequence if no reported run has any."""
    means = (row for table in frames.tables for row in reported_rows(table))
    return frames.metrics if any(not math.isnan(row.value) for row in means) else ()


def list_missing(frames: Frames) -> list[str]:
    """List failed metrics of all tables with their reasons, one sentence each."""
    return list(dict.fromkeys(why for table in frames.tables for why in reasons(table)))


def average(frames: Frames) -> pd.DataFrame:
    """Return formatted means of all metric values over each variant's reported runs."""
    return means_of([row for table in frames.tables for row in reported_rows(table)])


def means_of(values: Sequence[MetricRow]) -> pd.DataFrame:
    """Return formatted means over runs, with metric values as rows and variants as columns.

    With more than twelve variants, the columns are the first variant, and the lowest and highest
    mean with their variants.
    """
    names = ["table", "metric", "name"]
    rows = frame(values, MetricRow).dropna(subset="value")
    for name in (*names, "label"):  # keep the order of first appearance
        rows[name] = pd.Categorical(rows[name], rows[name].unique())
    means = rows.pivot_table("value", names, "label", observed=True)
    texts = means.map(lambda value: plain(value, 5))
    if len(means.columns) > _MANY:
        texts = texts.iloc[:, :1].copy()
        for title, ends, at in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            both = zip(ends, at, strict=True)
            texts[title] = [f"{plain(value, 5)} ({label})" for value, label in both]
    places = means.index.to_frame(index=False).astype(str)
    places = places[["name", *["table"] * bool(places["table"].any()), "metric"]]
    texts.columns = [f"{title} (variant)" if title in places else title for title in texts]
    return pd.concat([places, texts.reset_index(drop=True)], axis=1)


def reported_rows(table: TableFrames) -> list[MetricRow]:
    """Return all values of per-variant metrics, and the values of reported runs that ended ok."""
    ok = _ok(table)
    return [row for row in table.metrics if row.run in ok]


def _ok(table: TableFrames) -> set[str]:
    """Return the ids of reported runs that ended ok, and "".

    The empty string is the run id of per-variant values.
    """
    return {"", *(run.id for run in table.reported if run.outcome == "ok")}


def reasons(table: TableFrames) -> list[str]:
    """List failed metrics with their variants and error messages, one sentence each."""
    ok = _ok(table)
    failed = [row for row in table.attempts if row.error and row.run in ok]
    said = []
    for (metric, error), rows in grouped(failed, lambda row: (row.metric, row.error)).items():
        labels = [f"'{label}'" for label in dict.fromkeys(row.label for row in rows)]
        said.append(f"{metric} of {listed(labels)}: {error}.")
    return said
