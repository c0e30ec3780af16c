"""Metric values in a report: means per variant, and missing values with their reasons."""

import numpy as np
import pandas as pd

from llama_ablate.evidence.written import ends, plain
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_reported
from llama_ablate.findings.table import Table
from llama_ablate.report import columns
from llama_ablate.terminal import listed

_MAX_VARIANTS = 12  # most variants that each have a column in the table of metrics


def find_measured(frames: Frames) -> pd.DataFrame:
    """Return all metric values, or an empty frame if no reported run has any."""
    values = columns.metrics(frames)
    return values if select_reported(frames)["value"].notna().any() else values.iloc[:0]


def select_reported(frames: Frames) -> pd.DataFrame:
    """Return the values of variants, and of each table's reported runs that ended ok."""
    values = columns.metrics(frames)
    places = zip(values["table"], values["run"], strict=True)
    ok = {(table.plan.name, run) for table in frames.tables for run in _list_ok(table)}
    return values[np.array([place in ok for place in places], dtype=bool)]


def _list_ok(table: Table) -> list[str]:
    """Return the ids of reported runs that ended ok, and "", the run id of variants' values."""
    runs = find_reported(table)
    return ["", *runs.loc[runs["outcome"].eq("ok"), "id"]]


def average(frames: Frames) -> pd.DataFrame:
    """Return formatted means over each variant's reported runs, with variants as columns.

    The column `n` counts the finite values of runs behind a mean. With more than twelve variants,
    the columns are the first variant, and the lowest and highest mean with their variants.
    """
    names = ["table", "metric", "name"]
    rows = select_reported(frames).dropna(subset="value")
    for name in (*names, "variant"):  # keep the order of first appearance
        rows[name] = pd.Categorical(rows[name], rows[name].unique())
    means = rows.pivot_table("value", names, "variant", observed=True)
    texts = means.map(lambda value: plain(value, 5))
    if len(means.columns) > _MAX_VARIANTS:
        texts = texts.iloc[:, :1].copy()
        for title, extremes, at in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            both = zip(extremes, at, strict=True)
            texts[title] = [f"{plain(value, 5)} ({label})" for value, label in both]
    places = means.index.to_frame(index=False).astype(str)
    places = places[["name", *["table"] * bool(places["table"].any()), "metric"]]
    counts = rows[rows["run"].ne("")].groupby([*names, "variant"], observed=True)["value"].count()
    ranges = counts.groupby(names, observed=True).agg(["min", "max"]).reindex(means.index)
    places["n"] = [
        "" if np.isnan(of).any() else ends(of, "{:.0f}".format) for of in ranges.to_numpy(float)
    ]
    texts.columns = [f"{title} (variant)" if title in places else title for title in texts]
    return pd.concat([places, texts.reset_index(drop=True)], axis=1)


def list_missing(frames: Frames) -> list[str]:
    """List failed metrics of all tables with their reasons, one sentence each."""
    sentences = []
    for table in frames.tables:
        by_reason = list_failed(table).groupby(["metric", "error"], sort=False)["label"]
        for (metric, error), labels in by_reason:
            names = [f"'{label}'" for label in labels.unique()]
            sentences.append(f"{metric} of {listed(names)}: {error}.")
    return [*dict.fromkeys(sentences)]


def list_failed(table: Table) -> pd.DataFrame:
    """Return the failed attempts to measure variants, and reported runs that ended ok."""
    attempts = table.attempts
    return attempts[attempts["error"].ne("") & attempts["run"].isin(_list_ok(table))]
