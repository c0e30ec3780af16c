"""Measured numbers in pages: an estimate before a comment is that of a row of a pack.

    -0.011 [-0.018, -0.005]<!-- prose / comparison / gelu -->

The comment names a pack, a section of its results, and cells that one row alone has: the number and
the interval before the comment are those of this row, with the decimals that are written. A number
without a sign is the size of the difference; a number may stand some words before its interval.
"""

import re
from functools import cache
from pathlib import Path

import pandas as pd

import llama_ablate as la

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
_NUMBER = r"[-+]?\d+\.\d+"
_MEASURED = re.compile(
    rf"(?P<value>{_NUMBER})(?P<words>[^\d\[\]]*)\[{_NUMBER},\s+{_NUMBER}\]"
    r"(?P<comment><!-- (?P<row>[^>]*?) -->)"
)


def fill(text: str) -> str:
    """Return a page with every estimate before a comment as its row in the pack has it."""
    return _MEASURED.sub(_fill_in, text)


def _fill_in(match: re.Match[str]) -> str:
    value, low, high = find_row(*match["row"].split(" / "))
    sign = "+" if match["value"][0] in "-+" else ""
    if not sign and value < 0:
        value, low, high = -value, -high, -low
    decimals = len(match["value"].partition(".")[2])
    shown, *ends = (f"{number:{sign}.{decimals}f}" for number in (value, low, high))
    return f"{shown}{match['words']}[{', '.join(ends)}]{match['comment']}"


def find_row(pack: str, section: str, *cells: str) -> tuple[float, float, float]:
    """Return difference and interval of the one row of a section that has all these cells.

    Raises ValueError if no row, or several rows, have them.
    """
    rows = open_section(pack, section)
    found = rows[rows.astype(str).apply(lambda row: {*cells} <= {*row}, axis=1)]
    if len(found) != 1:
        raise ValueError(f"{pack}: {len(found)} rows of {section} have {', '.join(cells)}")
    row = found.iloc[0]
    return float(row["difference"]), float(row["low"]), float(row["high"])


@cache
def open_section(pack: str, section: str) -> pd.DataFrame:
    """Open a section of a pack's results as a frame."""
    return la.open(REFERENCE / pack).section(section)
