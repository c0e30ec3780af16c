"""The ledger of claims beside what every experiment of a folder found of them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from llama_ablate.errors import ConfigError
from llama_ablate.report import frames, hypothesized, tables
from llama_ablate.results import folders


def findings(folder: Path) -> pd.DataFrame:
    """Return every finding of the results in a folder: of experiments, and of inquiries.

    Columns: `experiment, claim, claims, table, source, said, measured, finding, why`. `measured` is
    text, with its interval and unit.
    """
    rows: list[dict[str, Any]] = []
    for store in folders.experiments(folder):
        for row in hypothesized.hypotheses(store).itertuples():
            told: Any = row
            rows.append(
                {
                    "experiment": store.root.name,
                    **{
                        k: getattr(told, k)
                        for k in ("claim", "claims", "table", "source", "said", "finding", "why")
                    },
                    "measured": tables.measured(told),
                }
            )
    for name, asked in folders.inquiries(folder).items():
        rows += [
            {"experiment": name, "table": "", "why": "", **found, "measured": number(found)}
            for found in asked["findings"]
        ]
    return pd.DataFrame(rows)


def number(found: Mapping[str, Any]) -> str:
    """Write what an inquiry measured, with its interval where it has one."""
    value, low, high = (_float(found[key]) for key in ("measured", "low", "high"))
    if math.isnan(value):
        return "not measured"
    if low == high or math.isnan(low):
        return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
    return f"{value:.2f}x [{low:.2f}, {high:.2f}]"


def _float(given: Any) -> float:
    return math.nan if given is None else float(given)


def verdict(found: Sequence[str]) -> str:
    """Return one word for the findings of a claim.

    What is supported here and refuted there is mixed; what nothing decided is undecided, or has no
    verdict where controls failed.
    """
    decided = {f for f in found if f in ("supported", "refuted")}
    if len(decided) == 1:
        return next(iter(decided))
    if decided:
        return "mixed"
    return "undecided" if "undecided" in found else "no verdict" if found else ""


def ledger(stated: Mapping[str, Mapping[str, str]], found: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each claim: `id, kind, says, verdict, note, measured, experiments`.

    `stated` maps ids to `kind`, `says`, `settled` for what no run decides and why, and a `note` on
    how a verdict is to be read. Raises ConfigError for a finding that names a claim which is not
    there.
    """
    by_claim: dict[str, list[Any]] = {id_: [] for id_ in stated}
    for row in found.itertuples():
        told: Any = row
        for id_ in filter(None, told.claims.split(", ")):
            if id_ not in by_claim:
                raise ConfigError(
                    f"{told.experiment} tests '{id_}', which the ledger does not have"
                )
            by_claim[id_].append(told)
    rows = []
    for id_, entry in stated.items():
        of = by_claim[id_]
        rows.append(
            {
                "id": id_,
                "kind": entry["kind"],
                "says": entry["says"],
                "verdict": verdict([f.finding for f in of]) or entry.get("settled", "untested"),
                "note": entry.get("note", ""),
                "measured": "; ".join(f"{f.claim}: {f.measured} ({f.finding})" for f in of),
                "experiments": ", ".join(dict.fromkeys(f.experiment for f in of)),
            }
        )
    return pd.DataFrame(rows)


def markdown(frame: pd.DataFrame, results: str) -> str:
    """Return the ledger as Markdown; `results` is the path from the page to the results."""
    cells = pd.DataFrame(
        {
            "id": frame["id"],
            "kind": frame["kind"],
            "the source says": frame["says"],
            "verdict": [
                f"{row.verdict}: {row.note}" if row.note else row.verdict
                for row in frames.rows(frame)
            ],
            "measured": frame["measured"],
            "records": [
                ", ".join(f"[{name.split('-')[0]}]({results}/{name})" for name in said.split(", "))
                if said
                else ""
                for said in frame["experiments"]
            ],
        }
    )
    return tables.markdown(cells, written=["records"])


def counted(frame: pd.DataFrame) -> dict[str, int]:
    """Return how many empirical claims have which verdict."""
    empirical = frame[frame["kind"].str.contains("E")]
    return {str(word): int(n) for word, n in empirical["verdict"].value_counts().items()}
