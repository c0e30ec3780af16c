"""The generated parts of docs/claims.md and docs/systems.md, from the reference results."""

import json
from pathlib import Path

import pandas as pd

from analysis.claims import findings
from analysis.claims.ledger import (
    DOCUMENTS,
    counted,
    experiments,
    findings_of,
    ledger,
    markdown,
    read,
)
from llama_ablate.report import frames, tables, tested
from llama_ablate.results import Still

_LINK = "../results/reference/claims"
#: Columns as the report has them; speeds only where they were measured.
_MEASURED = ("verdict", "train speed", "decode speed", "parameters", "KV bytes/token")


def claims_parts(reference: Path) -> dict[str, str]:
    """Return the verdict on every claim, how many have which, and the experiments behind them."""
    folder = reference / "claims"
    frame = ledger(read("ledger"), findings_of(folder, read("hypotheses")))
    lines = []
    for document, title in DOCUMENTS.items():
        rows = frame[frame["id"].str.startswith(document)]
        lines += [f"### {document}: {title}", "", markdown(rows, _LINK), ""]
    counts = counted(frame)
    total = sum(counts.values())
    decided = total - counts.get("undecided", 0) - counts.get("no verdict", 0)
    listed = ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
    headline = f"Of {total} empirical claims {decided} are decided: {listed}.\n"
    return {"counts": headline, "ledger": "\n".join(lines), "experiments": _experiments(folder)}


def systems_parts(reference: Path) -> dict[str, str]:
    """Return what sources say of variants and of timings, beside what was measured of them."""
    return {"compared": _compared(reference / "systems"), "benches": _benches(reference / "bench")}


def beside(sources: dict[str, str], store: Still) -> pd.DataFrame:
    """Return a row for each variant: what sources say of its label, and what was measured."""
    comparison = frames.comparison(store)
    cells = tables.comparison_cells(comparison)
    base = comparison[comparison["baseline"]].iloc[0]
    change = comparison["perplexity"] / base["perplexity"] - 1
    return pd.DataFrame(
        {
            "variant": cells["variant"],
            "source said": [sources.get(label, "") for label in comparison["label"]],
            "loss, difference [95%]": cells["difference [95% interval]"],
            "perplexity": [tables.number(100 * c, "+.1f", "%") for c in change],
        }
        | {name: cells[name] for name in _MEASURED if name in cells}
    )


def _experiments(folder: Path) -> str:
    rows = {
        name: f"| {audit['name']} | {audit['question']} | in the check itself | "
        f"[report]({_LINK}/{name}/report.md) |"
        for name, audit in findings.measured(folder).items()
    }
    for store in experiments(folder):
        hold = [tested.believed(table)[0] for table in store.tables]
        held = f"hold in {sum(hold)} of {len(hold)}" if len(hold) > 1 else "hold"
        rows[store.root.name] = (
            f"| {store.plan['experiment']['name']} | {store.plan['question']} | "
            f"{held if any(hold) else 'fail'} | "
            f"[report]({_LINK}/{store.root.name}/report/report.md) |"
        )
    lines = ["| experiment | question | controls | report |", "|---|---|---|---|"]
    return "\n".join([*lines, *(rows[name] for name in sorted(rows))]) + "\n"


def _compared(folder: Path) -> str:
    lines = []
    by_name = {store.root.name: store for store in experiments(folder)}
    for name, sources in read("variants").items():
        if store := by_name.get(name):
            lines += [f"**{name}**: {store.plan['question']}", ""]
            lines += [tables.markdown(beside(sources, store)).rstrip(), ""]
    return "\n".join(lines)


def _benches(folder: Path) -> str:
    sources = read("benches")
    lines = []
    for file in sorted(folder.glob("*.json")):
        values = json.loads(file.read_text("utf-8"))
        setup, where = values["setup"], values["environment"]
        lines += [
            f"`llama-ablate bench {values['bench']}` on {setup['device']}, "
            f"{setup['threads']} thread, {setup['dtype']}, torch {where['packages']['torch']}",
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
