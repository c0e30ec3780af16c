"""Output of micro-benchmarks as tables for a terminal."""

import math
from typing import Any

import pandas as pd

from llama_ablate.evidence import written
from llama_ablate.report import tables


def text(values: dict[str, Any]) -> str:
    """Format a benchmark's values as tables for a terminal."""
    lines = []
    for table in values["tables"]:
        cases = table["cases"]
        cells = pd.DataFrame({"case": list(cases)})
        cells["median"] = [_seconds(case["median_s"]["value"]) for case in cases.values()]
        cells[f"times {table['against']}"] = [_ratio(case["ratio"]) for case in cases.values()]
        note = f" ({table['note']})" if table["note"] else ""
        lines += [f"{table['title']}{note}", "", tables.text(cells), ""]
        lines += [f"not measured: {case}: {why}" for case, why in table["failed"].items()]
        lines += [_control(kind, check) for kind, check in table["controls"].items()]
        lines += [""]
    setup, ratios = values["setup"], values["ratios"]
    if ratios:
        lines += [tables.text(pd.DataFrame(ratios, columns=["ratio", "measured"])), ""]
    lines += [
        f"{_device(values)}, {setup['threads']} threads, {setup['dtype']}; {setup['processes']} "
        f"processes of {setup['rounds']} rounds each, cases in turns; medians of each process, "
        "ratios turn by turn, and 95% intervals over processes",
    ]
    return "\n".join(lines)


def _device(values: dict[str, Any]) -> str:
    device, gpu = values["setup"]["device"], values["environment"]["gpu"]
    return f"{device} ({gpu})" if device == "cuda" else device


def _control(kind: str, check: dict[str, Any]) -> str:
    name = {"aa": "A/A", "positive": "positive control"}[kind]
    return f"{name} {'holds' if check['holds'] else 'FAILS'}: {check['why']}"


def _ratio(ratio: dict[str, float | None]) -> str:
    """Format a ratio with its interval, whose ends are None if unknown."""
    value, low, high = (ratio[key] for key in ("value", "low", "high"))
    return written.times(*(math.nan if v is None else v for v in (value, low, high)))


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.2f} s"
