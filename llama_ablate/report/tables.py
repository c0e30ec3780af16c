"""Output of tables as text, Markdown, LaTeX and CSV, and formats of numbers."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from llama_ablate import terminal
from llama_ablate.files import disk
from llama_ablate.files.strict_json import write_text
from llama_ablate.report import latex

_GAP = 2  # spaces between columns
_ROWS = 10_000  # rows of a CSV that are formatted at once
_LABEL = 12  # fewest terminal columns of a shortened label
_DECIDING = ("verdict", "test result")
_INTERVAL = re.compile(r" \[[^]]*]$")
_FORMULA = re.compile(r"""[=@\t\r]|[+-].*[(|!&"']""", re.DOTALL)


def text(cells: pd.DataFrame, width: int | None = None, least: int = 0) -> str:
    """Format cells as an aligned table for a terminal, with numbers aligned right.

    If `width` is given, only the leading columns that fit are shown, and a last line counts the
    omitted columns. To fit more columns, intervals are dropped from columns after the first `least`
    columns (default: up to the verdict). Long cells of the first column are shortened only if the
    first `least` columns would not fit otherwise.
    """
    heads = [[terminal.printable(str(name))] for name in cells.columns]
    rows = cells.astype(str).to_numpy().tolist()
    columns = [list(map(terminal.printable, column)) for column in zip(*rows, strict=True)]
    columns = columns or [[] for _ in heads]
    if width is not None and _width(heads, columns) > width:
        heads = [
            textwrap.wrap(head, _width([[]], [column]) or 1, break_long_words=False)
            for (head,), column in zip(heads, columns, strict=True)
        ]
        heads, columns = _fitting(heads, columns, width, least)
    lines = _aligned(heads, columns)
    if left := len(cells.columns) - len(columns):
        lines.append(f"{left} column{'s' if left > 1 else ''} left out: --wide shows all")
    return "\n".join(lines)


def _fitting(
    heads: list[list[str]], columns: list[list[str]], width: int, least: int
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the titles and cells of the leading columns that fit a width.

    Cells are shortened as described at `text`.
    """
    deciding = [i for i, head in enumerate(heads) if " ".join(head) in _DECIDING]
    least = min(least or (deciding[0] + 1 if deciding else 2), len(columns))
    brief = [*columns[:least], *([_brief(cell) for cell in col] for col in columns[least:])]
    for count in range(len(columns), least - 1, -1):
        for tried in (columns, brief):
            if _width(heads[:count], tried[:count]) <= width:
                return heads[:count], tried[:count]
    shorter = columns[0]
    for count in range(least, 0, -1):
        room = width - _width(heads[1:count], columns[1:count]) - _GAP * (count > 1)
        shorter = [terminal.shortened(cell, max(room, _LABEL)) for cell in columns[0]]
        if room >= _LABEL and len({*shorter}) == len({*columns[0]}):  # labels stay distinct
            return heads[:count], [shorter, *columns[1:count]]
    return heads[:1], [shorter]


def _brief(cell: str) -> str:
    """Remove the interval from a cell, for a narrow table."""
    return _INTERVAL.sub("", cell)


def _width(heads: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in terminal columns."""
    return sum(_widths(heads, columns)) + _GAP * (len(columns) - 1) if columns else 0


def _widths(heads: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(map(terminal.columns, [*head, *column]), default=0)
        for head, column in zip(heads, columns, strict=True)
    ]


def _aligned(heads: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of an aligned table: titles, a rule, and the rows."""
    widths = _widths(heads, columns)
    right = [i > 0 and not any(c[:1].isalpha() for c in col) for i, col in enumerate(columns)]
    height = max(map(len, heads), default=1)
    over = [[""] * (height - len(head)) + list(head) for head in heads]

    def line(row: Iterable[str]) -> str:
        padded = []
        for cell, width, flush_right in zip(row, widths, right, strict=True):
            space = " " * (width - terminal.columns(cell))
            padded.append(space + cell if flush_right else cell + space)
        return (" " * _GAP).join(padded).rstrip()

    rule = (" " * _GAP).join("-" * width for width in widths)
    rows = zip(*columns, strict=True)
    return [*map(line, zip(*over, strict=True)), rule, *map(line, rows)]


def filled(text: str, width: int | None) -> str:
    """Break lines of text between words to fit a width (None: no limit)."""
    return (
        text
        if width is None
        else "\n".join(
            "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))
            for line in text.split("\n")
        )
    )


def markdown(cells: pd.DataFrame) -> str:
    """Format cells as a GitHub-flavoured Markdown table."""

    def line(row: Iterable[object]) -> str:
        return "| " + " | ".join(literal(str(cell)).replace("|", "\\|") for cell in row) + " |"

    rows = cells.astype(str).to_numpy().tolist()
    rule = line(["---"] * len(cells.columns))
    return "\n".join([line(cells.columns), rule, *map(line, rows)]) + "\n"


def literal(text: str) -> str:
    """Escape text for a single line of Markdown."""
    text = terminal.visible(text)
    return " ".join(text.replace("<", "&lt;").replace("](", "]\\(").replace("]:", "]\\:").split())


def save(
    cells: pd.DataFrame,
    frame: pd.DataFrame,
    caption: str,
    base: Path,
    short: int = 0,
    note: str = "",
    reference: str = "",
) -> None:
    """Write a table as the files `base.csv`, `base.md` and `base.tex`.

    The CSV file has the numbers of `frame`; the Markdown and LaTeX files have the formatted
    `cells`, with the note below. The LaTeX table has the first `short` columns (0: all), and the
    label `tab:REFERENCE` (default: the file name).
    """
    save_csv([frame], base.with_name(base.name + ".csv"))
    text = markdown(cells) + (f"\n{literal(note)}\n" if note else "")
    write_text(base.with_name(base.name + ".md"), text)
    leading = cells.iloc[:, : short or None]
    text = latex.table(leading, caption, f"tab:{reference or base.name}", note)
    write_text(base.with_name(base.name + ".tex"), text)


def save_csv(parts: Iterable[pd.DataFrame], path: Path) -> None:
    """Write frames with the same columns as one CSV file.

    Cells that a spreadsheet would compute as formulas are quoted.
    """
    disk.make(path.parent)

    def write(file: disk.Writer) -> None:
        pieces = (part[at : at + _ROWS] for part in parts for at in range(0, len(part) or 1, _ROWS))
        for number, part in enumerate(pieces):
            texts = part.select_dtypes(exclude="number")
            unlike = {
                str(key): {text: _no_formula(text) for text in texts[key].unique()} for key in texts
            }
            plain = part.assign(**{key: texts[key].map(mapping) for key, mapping in unlike.items()})
            plain.columns = [_no_formula(name) for name in plain.columns]
            # With this line terminator, the csv module also quotes cells with a lone return.
            lines = plain.to_csv(index=False, header=not number, lineterminator="\r\n")
            file.write(lines.replace("\r\n", "\n").encode("utf-8"))

    disk.replace(path, write)


def _no_formula(cell: object) -> object:
    """Prefix text that looks like a spreadsheet formula with an apostrophe.

    Labels of path steps such as `+rmsnorm` are unchanged, since they call no function.
    """
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
