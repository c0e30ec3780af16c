"""Tables for a paper: LaTeX that fits the width of a column, or of a page."""

import itertools
import re
import textwrap

import pandas as pd

#: Characters of \scriptsize that a column of a two-column paper holds (3.25 inches), and those of
#: \footnotesize of a page's full width (6.75 inches).
COLUMN = 62
PAGE = 116
#: Characters that the first column takes at least, where its cells have them, and at most.
_LABEL = (11, 22)
_GAP = 1.5  # characters that the space between two columns takes
_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
}


def table(cells: pd.DataFrame, caption: str, reference: str, *, width: int = COLUMN) -> str:
    """Return a LaTeX table of the leading columns that fit `width` characters.

    The first column is kept whatever its width, and its cells are wrapped where they are long. One
    that is wider than a column is a `table*`.
    """
    rows = cells.astype(str).to_numpy().tolist()
    longest = [max((len(row[i]) for row in rows), default=1) for i in range(len(cells.columns))]
    heads = [
        [
            line
            for part in re.split(r" (?=\[)", str(column))  # a unit or interval in a row of its own
            for line in textwrap.wrap(part, max(n, 8), break_long_words=False) or [""]
        ]
        for column, n in zip(cells.columns, longest, strict=True)
    ]
    used = [_GAP + max(n, *map(len, head)) for n, head in zip(longest, heads, strict=True)]
    used[0] = least = max(min(longest[0], _LABEL[0]), *map(len, heads[0]))
    shown = max(1, sum(total <= width for total in itertools.accumulate(used)))
    label = min(longest[0], _LABEL[1], int(least + max(0, width - sum(used[:shown]))))
    columns = _columns(rows, label if label < longest[0] else 0, shown)
    environment = "table*" if width > COLUMN else "table"
    lines = [
        "% needs the packages booktabs and array",
        rf"\begin{{{environment}}}",
        r"\centering",
        r"\footnotesize" if width > COLUMN else r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{{reference}}}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *_head(heads[:shown]),
        r"\midrule",
        *(
            " & ".join(_cell(cell, i) for i, cell in enumerate(row[:shown])) + r" \\"
            for row in rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _columns(rows: list[list[str]], wrapped: int, shown: int) -> str:
    """Return the alignment: labels and words flush left, numbers flush right.

    The first column is `wrapped` characters wide; 0: as wide as its cells.
    """
    # A character is about half an em wide. Words of a label are not hyphenated.
    first = rf">{{\raggedright\hangindent=1em}}p{{{wrapped / 2:g}em}}" if wrapped else "l"
    letters = re.compile(r"[^\W\d]")
    kinds = ["l" if any(letters.match(row[i]) for row in rows) else "r" for i in range(1, shown)]
    return "".join([first, *kinds])


def _head(heads: list[list[str]]) -> list[str]:
    """Return the header: a long title stands in several rows, the last of them in the last."""
    height = max(map(len, heads))
    rows = [[""] * (height - len(head)) + head for head in heads]
    return [" & ".join(escaped(row[i]) for row in rows) + r" \\" for i in range(height)]


def _cell(cell: str, column: int) -> str:
    """Write a cell; a label may be broken behind the signs that join its parts."""
    text = escaped(cell)
    return text if column else re.sub(r"(?<=[+=/,_-])(?=\S)", r"\\allowbreak{}", text)


def escaped(text: str) -> str:
    """Return text as LaTeX prints it: nothing of it is a command, a minus sign is one."""
    literal = "".join(_SPECIAL.get(c, c) for c in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", literal)
