"""LaTeX tables for a paper, in the width of a column or page.

pandas' Styler is not used: it has neither minus signs nor `adjustbox`, takes 2.7 ms per table
instead of 0.8 ms, and 0.1 s to import.
"""

import re
import textwrap
from itertools import groupby

import pandas as pd

MAX_COLUMNS = 9  # most columns of a table without column groups; further columns are left out
_MAX_NARROW = 5  # most table columns in one column of the paper; more take the page's width
_LABEL = 24  # characters beyond which cells of the first column are wrapped
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_WORD = re.compile(r"[^\W\d]")
_SPECIAL = str.maketrans(
    {c: "\\" + c for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"$\sim$",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "·": r"$\cdot$",
        "†": r"$^\dagger$",
        "\N{MINUS SIGN}": "$-$",
    }
)
#: Characters for which pdflatex has no glyph, even in the encoding T1.
_LACKING = re.compile("[^ -~\xa0-ĥĨ-ķĹ-ľŁ-ňŊ-ťŨ-ž\u2010-\u201e\u2026€←→]")


def table(cells: pd.DataFrame, caption: str, label: str, note: str = "") -> str:
    """Return a LaTeX table with a note below it.

    The table has the first `MAX_COLUMNS` columns. If the columns have two index levels, all columns
    are kept, and are grouped under the names of the first level. A table that is wider than the
    paper's column, or a `table*` wider than the page, is scaled down.
    """
    groups: list[str] = []
    if isinstance(cells.columns, pd.MultiIndex):
        groups = [str(group) for group, _ in cells.columns]
        cells = cells.set_axis([str(head) for _, head in cells.columns], axis=1)
    visible = (cells if groups else cells.iloc[:, :MAX_COLUMNS]).astype(str)
    columns = [list(visible.iloc[:, at]) for at in range(visible.shape[1])]
    long = any(len(cell) > _LABEL for cell in columns[0])
    kinds = ["l" if any(map(_WORD.match, column)) else "r" for column in columns]
    kinds[0] = r">{\raggedright\hangindent=1em}p{11em}" if long else "l"
    heads = [
        _head(str(name), column, kind)
        for name, column, kind in zip(visible, columns, kinds, strict=True)
    ]
    rows = [[_label(row[0]), *map(escaped, row[1:])] for row in visible.to_numpy().tolist()]
    wide = len(columns) > _MAX_NARROW
    environment = "table*" if wide else "table"
    lines = [
        "% needs the packages booktabs, array and adjustbox; for accents also fontenc with T1",
        rf"\begin{{{environment}}}",
        r"\centering",
        r"\footnotesize" if wide else r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{{label}}}",
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}",
        r"\toprule",
        *_group_heads(groups),
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        *([rf"\par\smallskip\raggedright {escaped(note)}"] if note else []),
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _group_heads(groups: list[str]) -> list[str]:
    """Return the lines above column titles: names of column groups, and rules below."""
    heads, rules, at = [], [], 1
    for name, group in groupby(groups):
        count = len([*group])
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(name)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + count - 1}}}"] * bool(name)
        at += count
    return [" & ".join(heads) + r" \\", "".join(rules)] if rules else []


def _head(title: str, column: list[str], kind: str) -> str:
    """Return a column's title as LaTeX, in several lines if wider than the cells."""
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
    """Return a first-column cell as LaTeX, with line breaks allowed after signs.

    The signs are `+`, `=`, `/`, `,`, `_` and `-`. Empty braces precede a cell that starts with `[`
    or `*`, which LaTeX would otherwise read as an option of the preceding row's end.
    """
    option = "{}" * cell.startswith(("[", "*"))
    return option + re.sub(r"(?<=[+=/,_-])(?=\S)", r"\\allowbreak{}", escaped(cell))


def escaped(text: str) -> str:
    """Escape text for LaTeX, and turn hyphens before numbers into minus signs.

    A character that pdflatex cannot print is replaced by its code point, such as `[U+4E2D]`.
    """
    literal = " ".join(text.split()).translate(_SPECIAL)
    printed = _LACKING.sub(lambda match: f"[U+{ord(match[0]):04X}]", literal)
    return _MINUS.sub("$-$", printed)
