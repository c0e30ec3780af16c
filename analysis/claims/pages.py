"""The generated parts of results/reference/claims.md and systems.md, from the packs there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.claims import findings
from analysis.claims.changes import Change, changed
from analysis.claims.experiments import evidence, experiments, machine, scale_of
from analysis.claims.ledger import DOCUMENTS, Evidence, Row, claims, counted, ledger, read
from llama_ablate.evidence import written
from llama_ablate.findings import controls
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import DIFFERENCE, cells
from llama_ablate.report import tables

_LINK = "claims"
#: Columns as the report has them; speeds only where they were measured.
_MEASURED = ("verdict", "train speed", "decode speed", "parameters", "KV bytes/token")


def claims_parts(reference: Path) -> dict[str, str]:
    """Return the verdict on every claim, how many have which, what changed, and the experiments."""
    folder = reference / "claims"
    trained, audits = experiments(folder), findings.measured(folder)
    rows = ledger(claims(), evidence(trained, audits, read("hypotheses")))
    scales = {name: scale_of(frames) for name, frames in trained.items()}
    scales |= {name: _scale_of_audit(audit) for name, audit in audits.items()}
    lines = []
    for document, title in DOCUMENTS.items():
        own = [row for row in rows if row.id.startswith(document)]
        lines += [f"### {document}: {title}", ""]
        lines += [line for row in own for line in _claim(row, scales)]
        lines += [""]
    return {
        "counts": _counts(rows),
        "ledger": "\n".join(lines),
        "changes": _changes(rows),
        "rules": _rules(rows),
        "experiments": _experiments(trained, audits, scales),
    }


def systems_parts(reference: Path) -> dict[str, str]:
    """Return what sources say of variants and of timings, beside what was measured of them."""
    return {"compared": _compared(reference / "systems"), "benches": _benches(reference / "bench")}


def beside(sources: dict[str, str], frames: Frames) -> pd.DataFrame:
    """Return a row for each variant: what sources say of its label, and what was measured."""
    rows = frames.table.comparison
    shown = cells(rows)
    base = next(row for row in rows if row.baseline)
    return pd.DataFrame(
        {
            "variant": shown["variant"],
            "source said": [sources.get(row.label, "") for row in rows],
            "loss, difference [95%]": shown[DIFFERENCE],
            "perplexity": [
                written.number(100 * (row.perplexity / base.perplexity - 1), "+.1f", "%")
                for row in rows
            ],
        }
        | {name: shown[name] for name in _MEASURED if name in shown}
    )


def _counts(rows: Sequence[Row]) -> str:
    empirical, every = counted(rows, "E"), counted(rows)
    behind = {
        word: [r for r in rows if "E" in r.claim.kind and r.verdict == word] for word in every
    }
    lines = [
        "| verdict | empirical claims | from experiments | with different findings | all claims |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {word} | {empirical.get(word, 0)} | {len(experiments_of(own))} | {_findings(own)} "
        f"| {every[word]} |"
        for word, own in behind.items()
    ]
    whole = [row for own in behind.values() for row in own]
    lines += [
        f"| together | {sum(empirical.values())} | {len(experiments_of(whole))} "
        f"| {_findings(whole)} | {sum(every.values())} |"
    ]
    return "\n".join(lines) + "\n"


def experiments_of(rows: Sequence[Row]) -> set[str]:
    """Return the experiments and audits that the verdicts of some claims rest on."""
    return {name for row in rows for name in row.experiments}


def _findings(rows: Sequence[Row]) -> int:
    """Count what was found for some claims, each finding once whatever rests on it."""
    every = (one for row in rows for of_part in row.evidence.values() for one in of_part)
    return len({(one.experiment, one.statement) for one in every})


def _claim(row: Row, scales: Mapping[str, str]) -> Iterator[str]:
    """Yield a claim as a list: the verdict first, then what was found, at what scale, what not."""
    claim = row.claim
    document = row.id[:3]
    yield f"- **{row.verdict}** · {row.id} ({document} {claim.line}, {claim.kind}): {claim.says}"
    if claim.note:
        yield f"  - note: {claim.note}"
    for name, part in claim.parts.items():
        yield f"  - {row.parts[name]}: {part.says}"
        yield from (f"    {line}" for line in _untested(part, row.evidence[name]))
        yield from (f"    {line}" for one in row.evidence[name] for line in _finding(one))
    if not claim.parts:
        yield from (f"  {line}" for line in _untested(claim, row.evidence[""]))
        yield from (f"  {line}" for one in row.evidence[""] for line in _finding(one))
    for name in row.experiments:
        yield f"  - scale of {_short(name)}: {scales[name]}"


def _untested(part: Any, found: Sequence[Evidence]) -> Iterator[str]:
    """Yield why a part of a claim has no verdict of its own, where it has none."""
    if part.no_evidence:
        yield f"- {part.no_evidence}"
    elif part.settled:
        yield f"- {part.settled}"
    elif part.otherwise and found:
        yield f"- not tested as stated; instead, {part.otherwise}:"
    elif part.scale and not any(one.at_scale for one in found):
        yield f"- not tested: {part.scale}" + ("; at the small scale:" if found else "")
    elif not found:
        yield "- not tested: no hypothesis or check here is about it"


def _finding(one: Evidence) -> Iterator[str]:
    """Yield a finding with its number, and the same at shorter lengths of training.

    Why a control fails stands in the list of experiments.
    """
    ours = " (the bound is ours)" if one.ours else ""
    why = f" ({one.why})" if one.finding == "undecidable" else ""
    why = " (a control fails)" if one.finding == "no verdict" else why
    bias = f"; bias {one.bias}" if one.bias else ""
    link = f"[{_short(one.experiment)}]({_LINK}/{one.experiment}/report.md)"
    yield f"- {link}, {one.finding}{why}: {_escaped(one.statement)}: {one.measured}{ours}{bias}"
    if one.by_length:
        yield f"  - by length of training: {one.by_length}"


def _escaped(text: str) -> str:
    """Return text of which Markdown makes no emphasis."""
    return text.replace("_", r"\_").replace("*", r"\*").replace("[", r"\[")


def _short(name: str) -> str:
    return " ".join(
        word for word in name.split("-")[:2] if word in ("init", "gpu") or word[1:].isdigit()
    )


def _scale_of_audit(audit: Mapping[str, Any]) -> str:
    setup, where = audit["setup"], audit["environment"]
    if not setup:
        return "exact, nothing is trained"
    threads = "" if where.get("gpu") else f", {setup['threads']} thread"
    return (
        f"random weights, dim {setup['dim']:,}, {setup['rows']:,} rows, {setup['dtype']}, "
        f"{setup.get('processes', 1)} processes, {machine(where)}{threads}"
    )


def _changes(rows: Sequence[Row]) -> str:
    changes = {id_: Change.check(values) for id_, values in read("changes").items()}
    lines = ["| id | the source says | before | now | why |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.id} | {row.claim.says} | {change.before} | {row.verdict} | {change.why} |"
        for row, change in changed(rows, changes)
    ]
    return "\n".join(lines) + "\n"


def _rules(rows: Sequence[Row]) -> str:
    """Write the claims whose verdict the rules of this version changed, on the same numbers."""
    changes = {id_: Change.check(values) for id_, values in read("changes").items()}
    lines = ["| id | the source says | before | now | why |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.id} | {row.claim.says} | {change.last} | {row.verdict} | {change.rule} |"
        for row in rows
        if (change := changes[row.id]).last
    ]
    return "\n".join(lines) + "\n"


def _experiments(
    trained: Mapping[str, Frames],
    audits: Mapping[str, Mapping[str, Any]],
    scales: Mapping[str, str],
) -> str:
    rows = {
        name: (audit["name"], audit["question"], findings.timing_controls(audit))
        for name, audit in audits.items()
    }
    for name, frames in trained.items():
        experiment = frames.plan.experiment
        rows[name] = (experiment.name, experiment.question, _controls(frames))
    lines = ["| experiment | question | scale | controls |", "|---|---|---|---|"]
    lines += [
        f"| [{title}]({_LINK}/{name}/report.md) | {question} | {scales[name]} | {held} |"
        for name, (title, question, held) in sorted(rows.items())
    ]
    return "\n".join(lines) + "\n"


def _controls(frames: Frames) -> str:
    """Write for each table what its controls show."""
    told = [
        (f"{table.plan.name}: " if table.plan.name else "")
        + "; ".join(
            ": ".join(filter(None, (one.control, one.result, one.why)))
            for one in controls.told(table.plan, table.comparison, table.margin)
        )
        for table in frames.tables
    ]
    unbounded = any(table.bias.ends is None for table in frames.tables)
    return "; ".join([*told, *["bias not bounded"][:unbounded]])


def _compared(folder: Path) -> str:
    lines = []
    by_name = experiments(folder)
    for name, sources in read("variants").items():
        if frames := by_name.get(name):
            lines += [f"**{name}**: {frames.plan.experiment.question}", ""]
            lines += [tables.markdown(beside(sources, frames)).rstrip(), ""]
    return "\n".join(lines)


def _benches(folder: Path) -> str:
    sources = read("benches")
    lines = []
    for file in sorted(folder.glob("*.json")):
        values = json.loads(file.read_text("utf-8"))
        setup, where = values["setup"], values["environment"]
        lines += [
            f"`python -m benchmarks.components {values['bench']}` on {setup['device']}, "
            f"{setup['threads']} thread, {setup['dtype']}, torch {where['packages']['torch']}; "
            f"processes: {setup.get('processes', 1)}, rounds in each: {setup['rounds']}; "
            f"timing controls: {findings.timing_controls(values)}",
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
