"""Tables as text, Markdown, LaTeX and CSV, and how numbers are written in them."""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from llama_ablate.report import latex

_FORMULA = re.compile(r"""[=@\t\r]|[+-].*[(|!&"']""", re.DOTALL)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write some names one after another, and of many how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number(value: float, form: str, unit: str = "") -> str:
    """Write a number, or a dash where it was not measured."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def interval(mean: float, low: float, high: float, form: str = "+.4f") -> str:
    """Write a difference with its interval, or alone where there is none."""
    if math.isnan(mean):
        return "-"
    return f"{mean:{form}}" if math.isnan(low) else f"{mean:{form}} [{low:{form}}, {high:{form}}]"


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


def save(
    cells: pd.DataFrame, frame: pd.DataFrame, caption: str, base: Path, short: int = 0
) -> None:
    """Write `base.csv` (all numbers), `.md` (the cells people read), and `.tex`.

    LaTeX has the leading columns: in `.tex` as many as a paper's column holds, in `-wide.tex` as
    many as its page; of more than `short` columns, those alone (0: all).
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    frame.map(_no_formula).to_csv(base.with_name(base.name + ".csv"), index=False)
    base.with_name(base.name + ".md").write_text(markdown(cells), "utf-8")
    leading = cells.iloc[:, : short or None]
    for ending, width in (("", latex.COLUMN), ("-wide", latex.PAGE)):
        text = latex.table(leading, caption, f"tab:{base.name}{ending}", width=width)
        base.with_name(f"{base.name}{ending}.tex").write_text(text, "utf-8")


def _no_formula(cell: Any) -> Any:
    """Quote text that a spreadsheet would compute as a formula.

    A step of a path (`+rmsnorm`) calls nothing and refers to nothing: it stays as it is.
    """
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
