"""Controls of an experiment: the repeated baseline and the positive control.

The repeated baseline is the baseline trained again under another name; its difference from the
baseline bounds the bias that all other variants may share. A positive control is a variant that is
known to be worse; it shows whether the experiment would detect a harm as large as the margin. A
control changes no verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llama_ablate.evidence.written import interval
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import Row, column
from llama_ablate.findings.values import UNSTABLE

#: Largest harm of a useful positive control, in margins.
_MAX_MARGINS = 10
_TOO_STRONG = "it does not show that small harm would be noticed"
_TOO_WEAK = "a harm so small decides nothing"


@dataclass(frozen=True)
class ControlRow(Row):
    """Table row for a control, with the result of its check."""

    control: str = column("`repeat`, `positive` or `redraw`", "control")
    label: str = column("label of the variant", "variant")
    result: str = column("`holds` or `fails`; empty for one that cannot fail", "result")
    why: str = column("what it shows", "what it shows")


def check_controls(table: TableFrames) -> list[ControlRow]:
    """Check the controls of a table; return one row for each control.

    A repeated baseline holds (passes) if its losses equal the baseline's bit for bit, or if its
    difference from the baseline has a finite interval. A positive control holds if its own 95%
    interval lies above 0 and its mean difference is from one to ten margins. A baseline with other
    random draws is reported only, and cannot fail.
    """
    rows = zip(table.plan.variants, table.comparison, strict=True)
    return [
        _check_positive(row, table.margin)
        if variant.role == "positive"
        else _check_repeat(row)
        if variant.id in table.plan.repeated
        else _show_redraw(row)
        for variant, row in rows
        if variant.role
    ]


def failing(rows: Sequence[ControlRow]) -> list[str]:
    """Return one sentence for each failing control, without a full stop."""
    return [f"'{row.label}' {row.why}" for row in rows if row.result == "fails"]


def _control(name: str, row: ComparisonRow, holds: bool | None, why: str) -> ControlRow:
    result = "" if holds is None else "holds" if holds else "fails"
    return ControlRow(control=name, label=row.label, result=result, why=why)


def _check_repeat(row: ComparisonRow) -> ControlRow:
    if row.difference == row.low == row.high == 0:
        why = "equals the baseline bit for bit: the harness adds no difference between arms"
        return _control("repeat", row, holds=True, why=why)
    if why := _without_loss(row):
        return _control("repeat", row, holds=False, why=why)
    if math.isinf(row.low) or math.isnan(row.low):
        why = f"differs by {row.difference:+.2g} {row.unit} in its one seed: nothing bounds that"
        return _control("repeat", row, holds=False, why=why)
    by = interval(row.difference, row.low, row.high)
    why = f"differs by {by} {row.unit}: every row is wider by that"
    return _control("repeat", row, holds=True, why=why)


def _check_positive(row: ComparisonRow, margin: float | None) -> ControlRow:
    if why := _without_loss(row):
        too_strong = f": {_TOO_STRONG}" if row.verdict in UNSTABLE else ""
        return _control("positive", row, holds=False, why=why + too_strong)
    if not row.low > 0:
        by = interval(row.difference, row.low, row.high)
        why = f"was not seen to harm: {by} {row.unit}"
        return _control("positive", row, holds=False, why=why)
    why = f"harms by {row.difference:.2g} {row.unit}"
    if margin is None:
        return _control("positive", row, holds=True, why=f"{why}; the experiment states no margin")
    margins = row.difference / margin
    strong, weak = margins > _MAX_MARGINS, margins < 1
    times = f"{margins:,.0f}" if strong else f"{margins:.2g}"
    why += f", {times} times the margin" + f": {_TOO_STRONG}" * strong + f": {_TOO_WEAK}" * weak
    return _control("positive", row, holds=not (strong or weak), why=why)


def _show_redraw(row: ComparisonRow) -> ControlRow:
    if why := _without_loss(row):
        return _control("redraw", row, holds=None, why=why)
    by = f"{interval(row.difference, row.low, row.high)} {row.unit}"
    leaves = "leaves out" if row.low > 0 or row.high < 0 else "holds"
    return _control("redraw", row, holds=None, why=f"{by}, {leaves} 0")


def _without_loss(row: ComparisonRow) -> str:
    if row.verdict in (*UNSTABLE, "failed"):
        return str(row.verdict)
    if row.verdict == "too short":
        return "is too short"
    return "has not finished" if math.isnan(row.difference) else ""
