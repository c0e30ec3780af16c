"""The ledger of claims: every claim of the sources beside all that was found of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.claims import findings
from llama_ablate.errors import ConfigError
from llama_ablate.report import cells, hypotheses, tables
from llama_ablate.report.frames import Frames, rows
from llama_ablate.results import folders

HERE = Path(__file__).parent
#: The sources by the first three digits of a claim's id.
DOCUMENTS = {
    "000": "Llama 2 by hand",
    "001": "From Transformer to GPT",
    "002": "LLaMA 1 to 3",
    "003": "Llama 3 from scratch",
    "004": "LLM Foundry architecture guide",
}


def read(name: str) -> dict[str, Any]:
    """Return a YAML file of this folder: `ledger`, `hypotheses`, `variants` or `benches`."""
    values: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text("utf-8"))
    return values


def experiments(folder: Path) -> dict[str, Frames]:
    """Return the results of every experiment in a folder, by its folder's name."""
    return {results.root.name: Frames.of(results) for results in folders.experiments(folder)}


def findings_of(folder: Path, sources: Mapping[str, Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Return what experiments and audits of a folder of results found, one row a finding.

    `sources` says by experiment what its hypotheses test, as hypotheses.yaml does. Columns:
    `experiment, claim, claims, measured, finding`; `claims` are ids, `measured` is text with
    interval and unit. Raises ConfigError where an experiment has other hypotheses.
    """
    all_findings: list[dict[str, Any]] = []
    for name, frames in experiments(folder).items():
        all_findings += _of_experiment(name, frames, sources.get(name, ()))
    for name, audit in findings.measured(folder).items():
        for row in audit["findings"]:
            claims = [id_ for id_ in row["claims"].split(", ") if id_]
            result = {"claim": row["claim"], "claims": claims, "finding": row["finding"]}
            all_findings.append({"experiment": name, "measured": findings.written(row), **result})
    return pd.DataFrame(
        all_findings, columns=["experiment", "claim", "claims", "measured", "finding"]
    )


def _of_experiment(
    name: str, frames: Frames, sources: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    experiment = frames.plan.experiment
    check_variants(name, [entry.variant for entry in experiment.hypotheses], sources)
    # A source is not refuted by an experiment that might have seen nothing, or anything.
    controlled = experiment.controls.aa and experiment.controls.positive
    return [
        {
            "experiment": name,
            "claim": row.hypothesis,
            "claims": source.get("claims", []),
            "measured": cells.measured(row),
            "finding": row.result if controlled else "no verdict",
        }
        for row, source in zip(rows(hypotheses.results(frames)), sources, strict=True)
    ]


def check_variants(
    experiment: str, variants: Sequence[str], sources: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ConfigError where the hypotheses of an experiment are not those that sources name."""
    named = [source["variant"] for source in sources]
    if named != list(variants):
        raise ConfigError(
            f"hypotheses.yaml: {experiment} has hypotheses on {', '.join(variants) or 'nothing'}; "
            f"the file names {', '.join(named) or 'none'}"
        )


def verdict(verdicts: Sequence[str]) -> str:
    """Return one word for the findings of a claim.

    What is supported here and refuted there is mixed; what nothing decided is undecided, or has no
    verdict where controls failed.
    """
    decided = {word for word in verdicts if word in ("supported", "refuted")}
    if len(decided) == 1:
        return next(iter(decided))
    if decided:
        return "mixed"
    return "undecided" if "undecided" in verdicts else "no verdict" if verdicts else ""


def ledger(claims: Mapping[str, Mapping[str, str]], results: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each claim: `id, kind, says, verdict, note, measured, experiments`.

    `claims` maps ids to `kind`, `says`, `settled` for what no run decides and why, and a `note` on
    how a verdict is to be read. Raises ConfigError for a finding that names a claim which is not
    there.
    """
    by_claim: dict[str, list[Any]] = {id_: [] for id_ in claims}
    for row in rows(results):
        for id_ in row.claims:
            if id_ not in by_claim:
                raise ConfigError(f"{row.experiment} tests '{id_}', which the ledger does not have")
            by_claim[id_].append(row)
    return pd.DataFrame(
        {
            "id": id_,
            "kind": claim["kind"],
            "says": claim["says"],
            "verdict": verdict([row.finding for row in by_claim[id_]])
            or claim.get("settled", "untested"),
            "note": claim.get("note", ""),
            "measured": "; ".join(
                f"{row.claim}: {row.measured} ({row.finding})" for row in by_claim[id_]
            ),
            "experiments": list(dict.fromkeys(row.experiment for row in by_claim[id_])),
        }
        for id_, claim in claims.items()
    )


def markdown(frame: pd.DataFrame, results: str) -> str:
    """Return the ledger as Markdown; `results` is the path from the page to the results."""
    cells = pd.DataFrame(
        {
            "id": frame["id"],
            "kind": frame["kind"],
            "the source says": frame["says"],
            "verdict": [
                f"{row.verdict}: {row.note}" if row.note else row.verdict for row in rows(frame)
            ],
            "measured": frame["measured"],
            "records": [
                ", ".join(f"[{name.split('-')[0]}]({results}/{name})" for name in names)
                for names in frame["experiments"]
            ],
        }
    )
    return tables.markdown(cells, written=["records"])


def counted(frame: pd.DataFrame) -> dict[str, int]:
    """Return how many empirical claims have which verdict."""
    empirical = frame[frame["kind"].str.contains("E")]
    return {str(word): int(n) for word, n in empirical["verdict"].value_counts().items()}
