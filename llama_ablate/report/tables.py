"""Tables for eyes and for papers: the same cells as text, Markdown, LaTeX, and full CSV."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from llama_ablate.report import frames

Rows = Sequence[Sequence[str]]


def comparison_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison with its numbers written as people read them."""
    shown = pd.DataFrame({"variant": frame["label"]})
    shown["runs"] = frame["outcome"]
    shown["loss (nats)"] = [number(v, ".4f") for v in frame["loss_nats"]]
    shown["difference [95% interval]"] = [
        "" if row.baseline else interval(row.difference_nats, row.low_nats, row.high_nats)
        for row in frames.rows(frame)
    ]
    shown["verdict"] = [
        row.verdict + ("" if math.isnan(row.seeds_needed) else f" ({row.seeds_needed:.0f} seeds?)")
        for row in frames.rows(frame)
    ]
    if frame["excess_nats"].notna().any():
        shown["over the floor (nats)"] = [number(v, "+.4f") for v in frame["excess_nats"]]
    shown["bits/byte"] = [number(v, ".4f") for v in frame["bits_per_byte"]]
    shown["perplexity"] = [number(v, ".3f") for v in frame["perplexity"]]
    shown["parameters"] = [f"{v:,}" for v in frame["parameters"]]
    if frame["residual"].abs().max() > 0:
        shown["matched to"] = [f"{v:+.2%}" for v in frame["residual"]]
    shown["train speed"] = [number(v, ".2f", "x") for v in frame["train_speed_ratio"]]
    shown["decode speed"] = [number(v, ".2f", "x") for v in frame["decode_speed_ratio"]]
    shown["KV bytes/token"] = [f"{v:,}" for v in frame["kv_bytes_per_token"]]
    return shown


def factor_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return effects of factors with their numbers written as people read them."""
    shown = frame[["factor", "levels"]].copy()
    shown["effect [95% interval]"] = [
        interval(row.difference_nats, row.low_nats, row.high_nats) for row in frames.rows(frame)
    ]
    shown["p (Holm)"] = [number(p, ".3f") for p in frame["p_holm"]]
    return shown


def hypothesis_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return hypotheses: what was said beside what was measured."""
    if frame.empty:
        return frame
    shown = frame[["claim", "source", "said"]].rename(columns={"said": "source said"})
    shown["measured [95% interval]"] = [
        interval(row.difference_nats, row.low_nats, row.high_nats) for row in frames.rows(frame)
    ]
    shown["finding"] = [
        row.finding + ("" if math.isnan(row.seeds_needed) else f" ({row.seeds_needed:.0f} seeds?)")
        for row in frames.rows(frame)
    ]
    return shown


def number(value: float, form: str, unit: str = "") -> str:
    """Write a number, or a dash where it was not measured."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"


def interval(mean: float, low: float, high: float) -> str:
    """Write a difference with its interval, or alone where there is none."""
    if math.isnan(mean):
        return "-"
    return f"{mean:+.4f}" if math.isnan(low) else f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"


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


def markdown(cells: pd.DataFrame) -> str:
    """Return a GitHub-flavoured Markdown table."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    head = [str(column) for column in cells.columns]
    body = cells.astype(str).to_numpy().tolist()
    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in body)]) + "\n"


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


def save(frame: pd.DataFrame, caption: str, folder: Path) -> None:
    """Write `comparison.csv` (all numbers), `.md` and `.tex` (the cells people read)."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = comparison_cells(frame)
    frame.to_csv(folder / "comparison.csv", index=False)
    (folder / "comparison.md").write_text(markdown(cells), "utf-8")
    (folder / "comparison.tex").write_text(latex(cells, caption), "utf-8")
