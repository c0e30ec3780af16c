"""Tables for a paper: LaTeX that fits the width of a column, or of a page."""

import itertools
import re
import textwrap

import pandas as pd

#: Widths in ems: what \scriptsize has room for in a column of a two-column paper (3.25 inches), and
#: \footnotesize in a page's full width (6.75 inches).
COLUMN = 28.6
PAGE = 57.0
#: What the first column takes at least, where its cells are so wide, and at most.
_LABEL = (4.8, 11.0)
_GAP = 0.75  # between two columns
#: Widths of Computer Modern's characters in ems; all others are about half an em wide.
_NARROW = dict.fromkeys(" .,:;'!|[]ijl", 0.28) | dict.fromkeys("()frst/-", 0.39)
_WIDE = dict.fromkeys("+=<>±wABCDEFGHKLNOPQRTUVXYZ", 0.75) | dict.fromkeys("mMW%&", 0.9)
_WIDTHS = _NARROW | _WIDE
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
}


def table(
    cells: pd.DataFrame, caption: str, reference: str, *, note: str = "", width: float = COLUMN
) -> str:
    """Return a LaTeX table of the leading columns that fit `width` ems; the note is a comment.

    The first column is kept whatever its width, and its cells are wrapped where they are long. One
    that is wider than a column is a `table*`.
    """
    rows = cells.astype(str).to_numpy().tolist()
    longest = [max((ems(row[i]) for row in rows), default=1) for i in range(len(cells.columns))]
    heads = [
        _wrapped(str(column), most) for column, most in zip(cells.columns, longest, strict=True)
    ]
    titles = [max(map(ems, head)) for head in heads]
    used = [_GAP + max(pair) for pair in zip(longest, titles, strict=True)]
    used[0] = max(min(longest[0], _LABEL[0]), titles[0])
    shown = max(1, sum(total <= width for total in itertools.accumulate(used)))
    label = min(longest[0], _LABEL[1], used[0] + max(0, width - sum(used[:shown])))
    columns = _columns(rows, label if label < longest[0] else 0, shown)
    environment = "table*" if width > COLUMN else "table"
    lines = [
        "% needs the packages booktabs and array",
        *(f"% {line}" for line in textwrap.wrap(note, 98)),
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


def ems(text: str) -> float:
    """Return about how wide a text is, in ems; a hyphen before a digit is a minus sign."""
    signed = _MINUS.sub("+", text)  # as wide as a minus sign
    return sum(_WIDTHS.get(c, 0.5) for c in signed)


def _wrapped(title: str, most: float) -> list[str]:
    """Return the lines of a column's title: a unit or interval has one of its own."""
    return [
        line
        for part in re.split(r" (?=\[)", title)
        for line in textwrap.wrap(part, max(8, int(2 * most)), break_long_words=False) or [""]
    ]


def _columns(rows: list[list[str]], wrapped: float, shown: int) -> str:
    """Return the alignment: labels and words flush left, numbers flush right.

    The first column is `wrapped` ems wide; 0: as wide as its cells.
    """
    first = rf">{{\raggedright\hangindent=1em}}p{{{wrapped:.1f}em}}" if wrapped else "l"
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
    return _MINUS.sub("$-$", literal)
