"""Tables for eyes and for papers: the same cells as text, Markdown, LaTeX, and full CSV."""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from llama_ablate.report import frames
from llama_ablate.report.steadied import UNSTABLE

_FORMULA = re.compile(r"""[=@\t\r]|[+-].*[(|!&"']""", re.DOTALL)
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
    shown["r over seeds"] = [_pairing(row) for row in frames.rows(frame)]
    if frame["point"].any():
        shown["tuned to"] = frame["point"]
    if frame["excess_nats"].notna().any():
        shown["over the floor (nats)"] = [number(v, "+.4f") for v in frame["excess_nats"]]
    shown["bits/byte"] = [number(v, ".4f") for v in frame["bits_per_byte"]]
    shown["perplexity"] = [number(v, ".3f") for v in frame["perplexity"]]
    shown["parameters"] = [f"{v:,}" for v in frame["parameters"]]
    if frame["residual"].abs().max() > 0:
        shown["matched to"] = [
            f"{row.residual:+.2%}"
            + (f" ({row.solved.removeprefix('feed-forward ')})" if row.solved else "")
            for row in frames.rows(frame)
        ]
    for name in ("train", "decode"):
        ratios = frame[f"{name}_speed_ratio"]
        if ratios.notna().any():
            shown[f"{name} speed"] = [number(v, ".2f", "x") for v in ratios]
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
    shown = frame[["claim", "source", "said"]].rename(columns={"said": "source said"})
    if frame["table"].any():
        shown.insert(1, "table", frame["table"])
    shown["measured [95% interval]"] = [measured(row) for row in frames.rows(frame)]
    shown["finding"] = [
        row.finding
        + ("" if math.isnan(row.seeds_needed) else f" ({row.seeds_needed:.0f} seeds?)")
        + (f": {row.why}" if row.why else "")
        for row in frames.rows(frame)
    ]
    return shown


def measured(row: Any) -> str:
    """Write a hypothesis' difference in its unit, with its interval."""
    if math.isnan(row.difference):
        return "not measured"
    form = "+.1f" if row.unit == "%" else "+.4f"
    ends = "" if math.isnan(row.low) else f" [{row.low:{form}}, {row.high:{form}}]"
    return f"{row.difference:{form}}{ends}" + (f" {row.unit}" if row.unit else "")


def winner_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return who wins each table, and where that flips."""
    shown = frame[["table", "winner"]].copy()
    shown["difference [95% interval]"] = _intervals(
        frame, "difference_nats", "low_nats", "high_nats"
    )
    shown["verdict"] = frame["verdict"]
    shown["flips"] = ["flips" if flips else "" for flips in frame["flips"]]
    return shown


def step_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of a path."""
    shown = frame[["step"]].copy()
    shown["this step [95% interval]"] = _intervals(
        frame, "marginal_nats", "marginal_low", "marginal_high"
    )
    shown["p (Holm)"] = [number(p, ".3f") for p in frame["p_holm"]]
    shown["all so far [95% interval]"] = _intervals(
        frame, "cumulative_nats", "cumulative_low", "cumulative_high"
    )
    return shown


def tuning_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what was tried for each variant, and what it came to."""
    shown = pd.DataFrame({"variant": frame["label"]})
    shown["trials"] = [
        ", ".join(
            [
                f"{row.finished} of {row.trials}",
                *(f"{n} {word}" for word in UNSTABLE if (n := getattr(row, word))),
            ]
        )
        for row in frames.rows(frame)
    ]
    shown["best"] = frame["chosen"]
    shown["at the edge"] = frame["edge"]
    shown["loss (nats)"] = [number(v, ".4f") for v in frame["loss_nats"]]
    shown["LR sensitivity [95% interval]"] = _intervals(
        frame, "sensitivity_nats", "low_nats", "high_nats", form=".4f"
    )
    return shown


def steadiness_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how steadily each variant trained."""
    shown = pd.DataFrame({"variant": frame["label"], "runs": frame["runs"].astype(str)})
    for outcome in UNSTABLE:
        ends = (frame[f"{outcome}_{end}"] for end in ("share", "low", "high"))
        shown[f"{outcome} [95% interval]"] = [
            f"{share:.0%} [{low:.0%}, {high:.0%}]" for share, low, high in zip(*ends, strict=True)
        ]
    shown["loss spikes"] = [number(v, ".2%") for v in frame["loss_spike_share"]]
    shown["gradient spikes"] = [number(v, ".2%") for v in frame["grad_norm_spike_share"]]
    shown["gradient norm, median"] = [number(v, ".3f") for v in frame["grad_norm_median"]]
    shown["largest"] = [number(v, ".2f") for v in frame["grad_norm_max"]]
    return shown


def law_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the laws through a ladder, and where the gap to the baseline is going."""
    shown = pd.DataFrame({"variant": frame["label"], "along": frame["axis"]})
    shown["sizes"] = frame["n"].astype(str)
    for title, name, form in (
        ("exponent", "exponent", ".3f"),
        ("floor (nats)", "floor", ".3f"),
        ("projected (nats)", "projected", ".3f"),
    ):
        shown[title] = _intervals(frame, name, f"{name}_low", f"{name}_high", form=form)
    shown["at"] = [f"{v:.3g}" for v in frame["at"]]
    if "trend" in frame:
        shown["gap"] = frame["trend"].fillna("")
        shown["per tenfold (nats)"] = _intervals(frame, "slope", "slope_low", "slope_high")
        shown["projected gap (nats)"] = _intervals(frame, "gap_at", "gap_low", "gap_high")
    return shown


def surface_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the constants of a surface in parameters and tokens."""
    shown = pd.DataFrame({"variant": frame["label"], "points": frame["n"].astype(str)})
    for name in ("E", "A", "alpha", "B", "beta"):
        shown[name] = [f"{v:.4g}" for v in frame[name]]
    return shown


def _pairing(row: Any) -> str:
    """Write a correlation, and how many times the runs it saves."""
    if math.isnan(row.correlation):
        return ""
    saved = "" if math.isnan(row.pairing_saves) else f" ({row.pairing_saves:.1f}x)"
    return f"{row.correlation:.2f}{saved}"


def _intervals(
    frame: pd.DataFrame, mean: str, low: str, high: str, form: str = "+.4f"
) -> list[str]:
    if mean not in frame:
        return [""] * len(frame)
    columns = (frame[mean], frame[low], frame[high])
    return [
        "" if math.isnan(m) else interval(m, a, b, form) for m, a, b in zip(*columns, strict=True)
    ]


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
