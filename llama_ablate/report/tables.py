"""Tables as text, Markdown, LaTeX and CSV, and how numbers are written in them."""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

_UNKNOWN, _POINT, _MOST = 3, 4, 6  # decimals: without an interval, of a point, at most
_FORMULA = re.compile(r"""[=@\t\r]|[+-].*[(|!&"']""", re.DOTALL)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write some names one after another, and of many how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number(value: float, form: str, unit: str = "") -> str:
    """Write a number, or a dash where it was not measured."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def decimals(low: float, high: float) -> int:
    """Return how many decimals of an estimate its interval bears out: two digits of its half-width.

    More where an end that is not 0 would be written as 0: a reader must see on which side of 0 the
    interval lies. Without an interval three, of a point four.
    """
    half = (high - low) / 2
    if not math.isfinite(half):
        return _UNKNOWN
    if half < 10.0**-_MOST:
        return _POINT
    places = max(0, 1 - math.floor(math.log10(half)))
    while places < _MOST and any(end and not round(end, places) for end in (low, high)):
        places += 1
    return min(places, _MOST)


def estimate(mean: float, low: float, high: float, sign: str = "+") -> str:
    """Write a difference with the decimals that its interval bears out, without the interval."""
    return number(mean, f"{sign}z.{decimals(low, high)}f")


def interval(mean: float, low: float, high: float, form: str = "", sign: str = "+") -> str:
    """Write a difference with its interval, or alone where there is none.

    With the decimals that the interval bears out, unless a format is given.
    """
    form = form or f"{sign}z.{decimals(low, high)}f"
    if math.isnan(mean) or math.isnan(low):
        return number(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def times(ratio: float, low: float, high: float) -> str:
    """Write a ratio with its interval, or alone where there is none."""
    if math.isnan(ratio):
        return "-"
    return f"{ratio:.2f}x" if math.isnan(low) else f"{ratio:.2f}x [{low:.2f}, {high:.2f}]"


def size(count: float, digits: int = 3) -> str:
    """Write a number of bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.{digits}g} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def text(cells: pd.DataFrame) -> str:
    """Return an aligned table for a terminal; columns of numbers stand flush right."""
    rows = [list(map(str, cells.columns)), *cells.astype(str).to_numpy().tolist()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [i > 0 and not any(r[i][:1].isalpha() for r in rows[1:]) for i in range(len(widths))]
    lines = [
        "  ".join(
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown(cells: pd.DataFrame, written: Collection[str] = ()) -> str:
    """Return a GitHub-flavoured Markdown table; `written` names columns that are Markdown."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    head = [str(column) for column in cells.columns]
    body = [
        [cell if name in written else literal(cell) for name, cell in zip(head, row, strict=True)]
        for row in cells.astype(str).to_numpy().tolist()
    ]
    head = [literal(name) for name in head]
    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in body)]) + "\n"


def literal(text: str) -> str:
    """Return text for a line of Markdown, in which it makes no tag and no link."""
    return " ".join(text.replace("<", "&lt;").replace("](", "]\\(").replace("]:", "]\\:").split())


def latex(cells: pd.DataFrame, caption: str) -> str:
    """Return a LaTeX table (needs the package booktabs)."""
    columns = "l" * 2 + "r" * (len(cells.columns) - 2)
    head = [_tex(str(column)) for column in cells.columns]
    body = [[_tex(cell) for cell in row] for row in cells.astype(str).to_numpy().tolist()]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex(cell: str) -> str:
    special = {c: "\\" + c for c in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, c) for c in cell)


def save(cells: pd.DataFrame, frame: pd.DataFrame, caption: str, base: Path) -> None:
    """Write `base.csv` (all numbers), `.md` and `.tex` (the cells people read)."""
    base.parent.mkdir(parents=True, exist_ok=True)
    frame.map(_no_formula).to_csv(base.with_name(base.name + ".csv"), index=False)
    base.with_name(base.name + ".md").write_text(markdown(cells), "utf-8")
    base.with_name(base.name + ".tex").write_text(latex(cells, caption), "utf-8")


def _no_formula(cell: Any) -> Any:
    """Quote text that a spreadsheet would compute as a formula.

    A step of a path (`+rmsnorm`) calls nothing and refers to nothing: it stays as it is.
    """
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
