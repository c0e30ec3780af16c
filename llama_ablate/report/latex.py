"""Tables for a paper: LaTeX that fits the width of a column, or of a page.

pandas' Styler would replace the line that joins cells and no other: it has neither minus signs nor
`adjustbox`, and takes 2.7 ms a table, where this takes 0.8, and 0.1 s to import.
"""

import re
import textwrap

import pandas as pd

COLUMNS, OF_PAGE = 5, 9  # leading columns in a paper's column, and in its page's width
_LABEL = 24  # characters of the first column beyond which its cells are wrapped
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_WORD = re.compile(r"[^\W\d]")
_SPECIAL = str.maketrans(
    {c: "\\" + c for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "·": r"$\cdot$",
        "\N{MINUS SIGN}": "$-$",
    }
)
#: What pdflatex has no glyph for, even in the encoding T1.
_LACKING = re.compile("[^ -~\xa0-ĥĨ-ķĹ-ľŁ-ňŊ-ťŨ-ž\u2010-\u201e\u2026€←→]")


def table(
    cells: pd.DataFrame, caption: str, reference: str, *, note: str = "", wide: bool = False
) -> str:
    """Return a LaTeX table of the leading columns, `COLUMNS` or `OF_PAGE`; the note is a comment.

    One that is wider than its column, or as a `table*` than its page, is scaled down to it. Long
    cells of the first column are wrapped.
    """
    shown = cells.iloc[:, : OF_PAGE if wide else COLUMNS].astype(str)
    columns = [list(shown.iloc[:, i]) for i in range(shown.shape[1])]
    long = any(len(cell) > _LABEL for cell in columns[0])
    kinds = ["l" if any(map(_WORD.match, column)) else "r" for column in columns]
    kinds[0] = r">{\raggedright\hangindent=1em}p{11em}" if long else "l"
    heads = [
        _head(str(name), column, kind)
        for name, column, kind in zip(shown, columns, kinds, strict=True)
    ]
    rows = [[_label(row[0]), *map(escaped, row[1:])] for row in shown.to_numpy().tolist()]
    environment = "table*" if wide else "table"
    lines = [
        "% needs the packages booktabs, array and adjustbox; for accents also fontenc with T1",
        *(f"% {line}" for line in textwrap.wrap(note, 98)),
        rf"\begin{{{environment}}}",
        r"\centering",
        r"\footnotesize" if wide else r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{{reference}}}",
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _head(title: str, column: list[str], kind: str) -> str:
    """Return a column's title, in several lines where it is wider than the cells."""
    most = max(8, *map(len, column)) if column else 8
    lines = [
        escaped(line)
        for part in re.split(r" (?=\[)", title)  # a unit or an interval has a line of its own
        for line in textwrap.wrap(part, most, break_long_words=False)
    ]
    if len(lines) < 2:
        return "".join(lines)
    stacked = r"\\{}".join(lines)  # the braces keep a bracket from being read as an option
    return rf"\shortstack[{kind if kind == 'r' else 'l'}]{{{stacked}}}"


def _label(cell: str) -> str:
    """Write a cell of the first column, which may be broken behind signs that join its parts.

    One that begins like an option of the row before is none.
    """
    option = "{}" * cell.startswith(("[", "*"))
    return option + re.sub(r"(?<=[+=/,_-])(?=\S)", r"\\allowbreak{}", escaped(cell))


def escaped(text: str) -> str:
    """Escape text for LaTeX, and turn hyphens before numbers into minus signs.

    A character that pdflatex cannot print stands as its number, `[U+4E2D]`.
    """
    literal = " ".join(text.split()).translate(_SPECIAL)
    printed = _LACKING.sub(lambda match: f"[U+{ord(match[0]):04X}]", literal)
    return _MINUS.sub("$-$", printed)
