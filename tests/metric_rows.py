"""Measured values as a table has them, made by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from llama_ablate.findings.columns import iterate

#: Columns of a frame of values with their empty cells; coordinates are empty where none is given.
_COLUMNS = {
    **dict.fromkeys(("variant", "run", "metric", "name", "quantity", "unit", "label"), ""),
    **dict.fromkeys(("seed", "value", "share", "tokens", "batch", "context"), math.nan),
    **dict.fromkeys(("split", "task", "fingerprint", "cluster", "group", "cache"), None),
    **dict.fromkeys(("samples", "turns"), ()),
    **dict.fromkeys(("where", "table"), ""),
}


def make_values(rows=()):
    """A table's frame of values, from the columns of each that are not empty."""
    each = [{**_COLUMNS, **row} for row in rows]
    columns = {name: [row[name] for row in each] for name in _COLUMNS}
    return pd.DataFrame({name: pd.Series(of, dtype=_type(name)) for name, of in columns.items()})


def _type(name):
    return float if isinstance(_COLUMNS[name], float) else object


def of_run(run, metric, quantity, samples=(), value=1.0, name="", **coordinates):
    """Return one number of a run, with the samples behind it."""
    owner = {"variant": run.variant, "label": run.label, "run": run.id, "seed": run.seed}
    number = {"metric": metric, "name": name or quantity, "quantity": quantity, "value": value}
    where = " ".join(sorted(coordinates))
    return {**owner, **number, "samples": np.array(samples), "where": where, **coordinates}


def with_documents(table, nats, tokens):
    """Add to runs of a table their losses by document, from the nats and tokens of each.

    `nats` are by label and seed, `tokens` by label; those of validation text are others.
    """
    by_run = [
        (run, nats[run.label][run.seed], tokens[run.label])
        for run in iterate(table.planned)
        if (run.label in nats) and run.seed in nats[run.label]
    ]
    rows = [
        of_run(run, "perplexity", quantity, samples, name=f"{split} {quantity}", split=split)
        for run, loss, count in by_run
        for split, times in (("validation", 7.0), ("test", 1.0))
        for quantity, samples in (
            ("loss_by_document", loss * times),
            ("tokens_by_document", count),
        )
    ]
    return replace(table, measured=make_values(rows))
