"""Micro-benchmarks as tables for a terminal."""

import math
from typing import Any

import pandas as pd

from llama_ablate.report import tables


def text(values: dict[str, Any]) -> str:
    """Return a benchmark's values for a terminal."""
    lines = []
    for table in values["tables"]:
        cases = table["cases"]
        cells = pd.DataFrame({"case": list(cases)})
        cells["median"] = [_seconds(found["median_s"]["value"]) for found in cases.values()]
        cells[f"times {table['against']}"] = [_interval(found["ratio"]) for found in cases.values()]
        note = f" ({table['note']})" if table["note"] else ""
        lines += [f"{table['title']}{note}", "", tables.text(cells), ""]
        lines += [f"not measured: {case}: {why}" for case, why in table["failed"].items()]
    setup = values["setup"]
    lines += [
        tables.text(pd.DataFrame(values["ratios"], columns=["ratio", "measured"])),
        "",
        f"{setup['device']}, {setup['threads']} threads, {setup['rounds']} rounds, cases in turns; "
        "medians with 95% intervals, ratios turn by turn",
    ]
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.2f} s"


def _interval(found: dict[str, float]) -> str:
    alone = found["low"] is None or math.isnan(found["low"])
    return f"{found['value']:.2f}x" + (
        "" if alone else f" [{found['low']:.2f}, {found['high']:.2f}]"
    )
