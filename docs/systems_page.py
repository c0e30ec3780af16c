"""Generated parts of results/reference/systems.md, from stored results and benchmarks."""

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analysis.claims import controls_of_check, read_ledger
from llama_ablate.evidence import written
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.report import tables
from llama_ablate.report.columns import DIFFERENCE, cells
from llama_ablate.results import Results

#: Beginnings of the titles of a report's columns to show; speeds only if they were measured.
MEASURED_COLUMNS = ("verdict", "train speed", "decode speed", "parameters", "bytes/token at")


def parts(reference: Path) -> dict[str, str]:
    """Return Markdown tables that compare sources' statements with measurements.

    `compared` is on variants of experiments, and `benches` on timings of components.
    """
    ledger, lines = read_ledger(), []
    for name, sources in ledger["systems"].items():
        frames = Frames.of(Results.open(reference / "systems" / name))
        lines += [f"**{name}**: {frames.plan.experiment.question}", ""]
        lines += [tables.markdown(beside(sources, frames)).rstrip(), ""]
    return {
        "compared": "\n".join(lines),
        "benches": benches(reference / "bench", ledger["benches"]),
    }


def beside(sources: Mapping[str, str], frames: Frames) -> pd.DataFrame:
    """Return a row per variant with its source's statement and the measured values.

    `sources` has the statements by variant label.
    """
    rows = compare_variants(frames.table)
    shown, perplexity = cells(rows, "comparison"), rows["perplexity"]
    growth = 100 * (perplexity / perplexity[rows["baseline"]].item() - 1)
    return pd.DataFrame(
        {
            "variant": shown["variant"],
            "source said": [sources.get(label, "") for label in rows["label"]],
            "loss, difference [95%]": shown[DIFFERENCE],
            "perplexity": [written.number(percent, "+.1f", "%") for percent in growth],
        }
        | {
            name: shown[name]
            for column in MEASURED_COLUMNS
            for name in shown
            if name.startswith(column)
        }
    )


def benches(folder: Path, sources: Mapping[str, str]) -> str:
    """Return a Markdown table for each stored benchmark of components."""
    lines = []
    for file in sorted(folder.glob("*.json")):
        values = json.loads(file.read_text("utf-8"))
        setup, where = values["setup"], values["environment"]
        lines += [
            f"`python -m benchmarks.components {values['bench']}` on {setup['device']}, "
            f"{setup['threads']} thread, {setup['dtype']}, torch {where['packages']['torch']}; "
            f"processes: {setup.get('processes', 1)}, rounds in each: {setup['rounds']}; "
            f"timing controls: {controls_of_check(values)}",
            "",
            "| claim | source said | measured |",
            "|---|---|---|",
            *(
                f"| {row['ratio']} | {sources[row['ratio']]} | {row['measured']} |"
                for row in values["ratios"]
            ),
            "",
        ]
    return "\n".join(lines)
