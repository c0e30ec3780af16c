"""Rows of intervals from differences by seed, and the tolerance of simulated shares."""

import math

import pandas as pd

from llama_ablate.evidence.intervals import simultaneous
from llama_ablate.findings.columns import list_rows


def rows_of(differences, errors=None, **options):
    """Return the intervals of rows, whose errors from a text are (se, df) or None."""
    table = pd.DataFrame([dict(enumerate(row)) for row in differences], dtype=float)
    none = math.nan, math.nan
    if errors is not None:
        errors = pd.DataFrame([of or none for of in errors], columns=["se", "df"])
    return list_rows(simultaneous(table, errors, **options))


def row_of(differences, error=None, **options):
    """Return the interval of one row alone."""
    (row,) = rows_of([differences], [error], **options)
    return row


def most(share, tables):
    """A share with three Monte Carlo standard errors on top."""
    return share + 3 * math.sqrt(share * (1 - share) / tables)
