"""Write results/reference/claims.md from claims.yaml and the results of its experiments.

    python analysis/claims.py

`claims.yaml`, in the folder of this file, lists every claim of five teaching documents, with the
hypotheses, readings and checks that test it. Hypotheses are part of an experiment file, readings
compare a measured number with a bound, and checks need no training. Each is a piece of evidence,
which is supported, refuted or undecided according to its confidence interval. The verdict on a
claim combines its evidence; claims.md defines the verdicts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from llama_ablate.config.labels import name_corpus
from llama_ablate.evidence import written
from llama_ablate.files.strict_json import read_json
from llama_ablate.findings.columns import iterate
from llama_ablate.findings.compare import find_bias, find_losses
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.controls import check_controls
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.sizes import view_lengths
from llama_ablate.findings.stages import find_reported
from llama_ablate.results import snapshot

HERE = Path(__file__).parent
FOLDER = HERE.parent / "results" / "reference" / "claims"
#: Titles of the sources by the first three digits of a claim's id.
DOCUMENTS = {
    "000": "Llama 2 by hand",
    "001": "From Transformer to GPT",
    "002": "LLaMA 1 to 3",
    "003": "Llama 3 from scratch",
    "004": "LLM Foundry architecture guide",
}
CONTRARY = {"supported": "refuted", "refuted": "supported"}
DECIDED = ("supported", "refuted", "mixed", "supported in part", "refuted in part")
#: Verdicts that decide nothing. If all parts of a claim have such verdicts, the claim has the
#: verdict that is first in this list.
OPEN = (
    *("undecided", "undecidable", "no verdict", "not tested at this scale"),
    *("not tested as stated", "never run", "no evidence", "settled by reading"),
)
#: Largest difference up to which two shares of a run's length count as equal.
SAME_SHARE = 0.02


@dataclass(frozen=True)
class Evidence:
    """Result of one hypothesis, reading or check as evidence on claims."""

    experiment: str
    statement: str
    measured: str
    finding: str
    #: Ids of claims, or of parts of claims: `000-15` or `000-16/share`.
    claims: Sequence[str]
    why: str = ""
    #: Whether this project chose the bound, since the source gives no number.
    ours: bool = False
    #: Whether the measurement has the scale that its claims are about.
    at_scale: bool = False
    by_length: str = ""


def read_ledger() -> dict[str, Any]:
    """Read claims.yaml: claims, hypotheses and readings."""
    ledger: dict[str, Any] = yaml.safe_load((HERE / "claims.yaml").read_text("utf-8"))
    return ledger


def open_experiments() -> dict[str, Frames]:
    """Open the stored results of every experiment on claims, by folder name."""
    return {results.root.name: Frames.of(results) for results in snapshot.experiments(FOLDER)}


def open_checks() -> dict[str, dict[str, Any]]:
    """Read the findings of every check without training, by folder name."""
    return {file.parent.name: read_json(file) for file in sorted(FOLDER.glob("*/findings.json"))}


def from_hypotheses(name: str, frames: Frames, entries: Sequence[Mapping]) -> Iterator[Evidence]:
    """Yield the evidence from an experiment's hypotheses, and from their negations.

    A claim id that starts with "not " in claims.yaml asks for the negation. Raises ValueError if
    claims.yaml lists other hypotheses than the experiment file.
    """
    stated = [one.variant for one in frames.plan.experiment.hypotheses]
    if [entry["variant"] for entry in entries] != stated:
        raise ValueError(f"claims.yaml: {name} has hypotheses on {', '.join(stated)}")
    shorter = {tokens: [*iterate(rows)] for tokens, rows in judge_at_lengths(frames).items()}
    # Stored hypotheses that are no longer judged come last.
    tested = iterate(judge_hypotheses(frames))
    for i, (row, entry) in enumerate(zip(tested, entries, strict=False)):
        at = {tokens: rows[i] for tokens, rows in shorter.items() if rows[i].unit == row.unit != ""}
        for denied in (False, True):
            claims = [id_ for id_ in entry.get("claims", ()) if id_.startswith("not ") is denied]
            if not claims:
                continue
            where = f" ({row.table})" if row.table else ""
            yield Evidence(
                experiment=name,
                statement=("it is not so that " if denied else "") + row.hypothesis + where,
                measured=show_difference(row),
                finding=deny(row.result) if denied else row.result,
                claims=[id_.removeprefix("not ") for id_ in claims],
                why=row.why,
                ours=entry.get("bound") == "ours",
                by_length="; ".join(
                    f"{tokens / 1e6:.1f}M tokens {show_difference(one)} "
                    f"({deny(one.result) if denied else one.result})"
                    for tokens, one in at.items()
                ),
            )


def deny(result: str) -> str:
    """Return the result for the negation of a hypothesis with this result."""
    return CONTRARY.get(result, result)


def show_difference(row: Any) -> str:
    """Format the difference that a hypothesis tests, in its unit."""
    return written.measured(row.difference, row.low, row.high, row.unit)


def judge_at_lengths(frames: Frames) -> dict[int, pd.DataFrame]:
    """Test the hypotheses at each shorter training length, by tokens of the first table.

    The losses are those of branches: runs whose learning rate schedule ended early.
    """
    found = {}
    for tokens in view_lengths(frames.table):
        share = tokens / frames.table.plan.tokens_per_run
        tables = [
            view
            for table in frames.tables
            for other, view in view_lengths(table).items()
            if abs(other / table.plan.tokens_per_run - share) < SAME_SHARE
        ]
        if len(tables) == len(frames.tables):
            found[tokens] = judge_hypotheses(replace(frames, tables=tuple(tables)))
    return found


def from_readings(name: str, frames: Frames, entries: Sequence[Mapping]) -> Iterator[Evidence]:
    """Yield the evidence from readings: measured numbers compared with a bound."""
    table, rows = frames.table, [*iterate(compare_variants(frames.table))]
    base, reported = next(row for row in rows if row.baseline), find_reported(table)
    for entry in entries:
        key = next(key for key in ("below", "at_most", "above", "within") if key in entry)
        bound, _, unit = str(entry[key]).partition(" ")
        is_share = bound.endswith("%")
        size = float(bound.rstrip("%")) * (base.loss / 100 if is_share else 1)
        if "number" in entry:
            of_variant = reported[reported["label"].eq(entry["variant"])]
            value, low, high = interval_of([*of_variant[entry["number"]]])
            what, unit = f"{entry['number']} of {entry['variant']}", ""
        elif "effect" in entry:
            row = next(
                one for one in iterate(estimate_factors(table)) if one.effect == entry["effect"]
            )
            value, low, high = row.difference, row.low, row.high
            what, unit = f"what {entry['effect']} changes", "nats"
        else:
            row = next(one for one in rows if one.label == entry["row"])
            value, low, high = row.difference, row.low, row.high
            what, unit = f"{entry['row']} minus {base.label}", "nats"
        finding = judge(key, size, low, high)
        show_loss = f" of the loss ({size:.3f} nats)" if is_share else f" {unit}".rstrip()
        words = {"below": "lower by more than", "at_most": "at most", "above": "above"}
        when = "stated before the runs" if "stated" in entry else "read off after the runs"
        yield Evidence(
            experiment=name,
            statement=f"{what} is {words.get(key, 'within')} {bound}{show_loss} ({when})",
            measured=written.measured(value, low, high, unit),
            finding=finding,
            claims=entry["claims"],
            ours=entry.get("bound") == "ours",
        )


def interval_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds, and its 95% interval by Student's t."""
    mean, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, error) if error else (mean, mean)
    return float(mean), float(low), float(high)


def judge(key: str, size: float, low: float, high: float) -> str:
    """Compare an interval with a bound, and return `supported`, `refuted` or `undecided`.

    `key` states the kind of bound: `below` (-size), `at_most`, `above`, or `within` (±size).
    """
    least, most = {
        "below": (-np.inf, -size),
        "at_most": (-np.inf, size),
        "above": (size, np.inf),
        "within": (-size, size),
    }[key]
    if least <= low and high <= most:
        return "supported"
    return "refuted" if high < least or low > most else "undecided"


def from_checks(name: str, found: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield the evidence from a check or timing, which needs no training."""
    for row in found["findings"]:
        value, low, high = (float(row[key]) for key in ("measured", "low", "high"))
        exact = low == high or np.isnan(low)
        as_whole = f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
        yield Evidence(
            experiment=name,
            statement=row["claim"],
            measured=as_whole if exact else f"{value:.2f}x [{low:.2f}, {high:.2f}]",
            finding=row["finding"],
            claims=[id_ for id_ in row["claims"].split(", ") if id_],
            why=row.get("why", ""),
            ours=row.get("bound") == "ours",
            at_scale=row.get("at_scale", False),
        )


def judge_part(part: Mapping[str, Any], evidence: Sequence[Evidence]) -> str:
    """Return the verdict on one part of a claim from its evidence."""
    for key, word in (("no_evidence", "no evidence"), ("settled", "settled by reading")):
        if part.get(key):
            return word
    counting = [one.finding for one in evidence if one.at_scale or not part.get("scale")]
    if counting:
        return "not tested as stated" if part.get("otherwise") else add_up(counting)
    return "not tested at this scale" if part.get("scale") else "never run"


def add_up(words: Sequence[str]) -> str:
    """Combine several findings, or verdicts on the parts of a claim, to one verdict."""
    holds = {"supported", "supported in part", "mixed"} & {*words}
    fails = {"refuted", "refuted in part", "mixed"} & {*words}
    if holds and fails:
        return "mixed"
    for decided, word in ((holds, "supported"), (fails, "refuted")):
        if decided:
            return word if {*words} == {word} else f"{word} in part"
    return next((word for word in OPEN if word in words), "never run")


@dataclass(frozen=True)
class JudgedClaim:
    """Claim with the evidence and verdict on each of its parts."""

    id: str
    stated: Mapping[str, Any]
    #: (statement, evidence, verdict) by the part's name; a claim without parts has the part "".
    parts: Mapping[str, tuple[Mapping[str, Any], Sequence[Evidence], str]]

    @property
    def verdict(self) -> str:
        """Verdict on the whole claim, combined from its parts.

        Parts that are settled by reading do not count.
        """
        words = [verdict for _, _, verdict in self.parts.values()]
        voting = [word for word in words if word != "settled by reading"]
        return words[0] if "" in self.parts else add_up(voting)

    @property
    def evidence(self) -> list[Evidence]:
        """Evidence on all parts of the claim."""
        return [one for _, found, _ in self.parts.values() for one in found]


def judge_claims() -> tuple[list[JudgedClaim], dict[str, Frames], dict[str, dict[str, Any]]]:
    """Return the judged claims, the experiments' data, and the checks' findings.

    Raises ValueError for evidence on an unknown claim or part.
    """
    ledger, trained, checks = read_ledger(), open_experiments(), open_checks()
    found = [one for name, check in checks.items() for one in from_checks(name, check)]
    for name, frames in trained.items():
        found += from_hypotheses(name, frames, ledger["hypotheses"].get(name, ()))
        found += from_readings(name, frames, ledger["readings"].get(name, ()))
    judged = []
    for id_, claim in ledger["claims"].items():
        parts = {}
        for name, part in claim.get("parts", {"": claim}).items():
            stated = {"says": part} if isinstance(part, str) else part
            own = [one for one in found if (f"{id_}/{name}" if name else id_) in one.claims]
            parts[name] = stated, own, judge_part(stated, own)
        judged.append(JudgedClaim(id_, claim, parts))
    known = {f"{c.id}/{name}" if name else c.id for c in judged for name in c.parts}
    if unknown := {id_ for one in found for id_ in one.claims} - known:
        raise ValueError(f"claims.yaml has no claim '{min(unknown)}', on which there is evidence")
    return judged, trained, checks


def page_parts() -> dict[str, str]:
    """Return the generated parts of claims.md: counts, experiments, and list of claims."""
    judged, trained, checks = judge_claims()
    scales = {name: scale_of(frames) for name, frames in trained.items()}
    scales |= {name: scale_of_check(found) for name, found in checks.items()}
    lines = []
    for document, title in DOCUMENTS.items():
        lines += [f"### {document}: {title}", ""]
        lines += [line for c in judged if c.id.startswith(document) for line in describe(c, scales)]
        lines += [""]
    rows = {n: (c["name"], c["question"], controls_of_check(c)) for n, c in checks.items()}
    for name, frames in trained.items():
        asked = frames.plan.experiment
        rows[name] = asked.name, asked.question, controls_of(frames)
    table = ["| experiment | question | scale | controls |", "|---|---|---|---|"]
    table += [
        f"| [{title}](claims/{name}/report.md) | {question} | {scales[name]} | {held} |"
        for name, (title, question, held) in sorted(rows.items())
    ]
    return {
        "counts": count(judged),
        "experiments": "\n".join(table) + "\n",
        "ledger": "\n".join(lines),
    }


def count(judged: Sequence[JudgedClaim]) -> str:
    """Return a Markdown table with the number of claims per verdict."""
    lines = ["| verdict | empirical claims | all claims |", "|---|---|---|"]
    every = Counter(claim.verdict for claim in judged)
    measured = Counter(claim.verdict for claim in judged if "E" in claim.stated["kind"])
    lines += [f"| {w} | {measured[w]} | {every[w]} |" for w in (*DECIDED, *OPEN) if every[w]]
    lines += [f"| together | {measured.total()} | {every.total()} |"]
    return "\n".join(lines) + "\n"


def describe(claim: JudgedClaim, scales: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a claim's Markdown list: verdict, evidence by part, and scale."""
    stated = claim.stated
    yield (
        f"- **{claim.verdict}** · {claim.id} ({claim.id[:3]} {stated['line']}, {stated['kind']}): "
        f"{stated['says']}"
    )
    if "note" in stated:
        yield f"  - note: {stated['note']}"
    for name, (part, found, verdict) in claim.parts.items():
        indent = "    " if name else "  "
        if name:
            yield f"  - {verdict}: {part['says']}"
        if why := why_open(part, found):
            yield f"{indent}- {why}"
        for one in found:
            yield f"{indent}- {describe_evidence(one)}"
            if one.by_length:
                yield f"{indent}  - by length of training: {one.by_length}"
    for name in dict.fromkeys(one.experiment for one in claim.evidence):
        yield f"  - scale of {short(name)}: {scales[name]}"


def why_open(part: Mapping[str, Any], found: Sequence[Evidence]) -> str:
    """Return the reason for a missing verdict on a claim's part, or ""."""
    if why := part.get("no_evidence") or part.get("settled"):
        return str(why)
    if part.get("otherwise") and found:
        return f"not tested as stated; instead, {part['otherwise']}:"
    if part.get("scale") and not any(one.at_scale for one in found):
        return f"not tested: {part['scale']}" + ("; at the small scale:" if found else "")
    return "" if found else "not tested: no hypothesis or check here is about it"


def describe_evidence(one: Evidence) -> str:
    """Return a piece of evidence as Markdown, with a link to its report."""
    why = f" ({one.why})" if one.finding == "undecidable" else ""
    statement = "".join(f"\\{c}" if c in "_*[" else c for c in one.statement)
    ours = " (the bound is ours)" if one.ours else ""
    link = f"[{short(one.experiment)}](claims/{one.experiment}/report.md)"
    return f"{link}, {one.finding}{why}: {statement}: {one.measured}{ours}"


def short(name: str) -> str:
    """Shorten an experiment's folder name to its number, such as `e12`."""
    first, second = name.split("-")[:2]
    return f"{first} {second}" if second in ("init", "gpu") else first


def scale_of(frames: Frames) -> str:
    """Describe an experiment's scale: parameters, tokens, texts, most seeds, and machine."""
    plans = [table.plan for table in frames.tables]
    sizes = sorted({plan.baseline.non_embedding for plan in plans})
    lengths = sorted({plan.tokens_per_run for plan in plans})
    texts = ", ".join(dict.fromkeys(name_corpus(plan.text.source) for plan in plans))
    seeds = max(len(by_seed) for table in frames.tables for by_seed in find_losses(table).values())
    sizes_text, lengths_text = (
        " to ".join(dict.fromkeys(f"{n / 1e6:.2g}M" for n in (of[0], of[-1])))
        for of in (sizes, lengths)
    )
    machine = machine_of(frames.environment)
    return f"{sizes_text} parameters, {lengths_text} tokens of {texts}, {seeds} seeds, {machine}"


def scale_of_check(found: Mapping[str, Any]) -> str:
    """Describe a check's scale: exact, or the sizes and machine of a benchmark."""
    setup, where = found["setup"], found["environment"]
    if not setup:
        return "exact, nothing is trained"
    threads = "" if where.get("gpu") else f", {setup['threads']} thread"
    return (
        f"random weights, dim {setup['dim']:,}, {setup['rows']:,} rows, {setup['dtype']}, "
        f"{setup.get('processes', 1)} processes, {machine_of(where)}{threads}"
    )


def machine_of(environment: Mapping[str, Any] | None) -> str:
    """Return the name of the GPU, or of the processor without a GPU."""
    return str(environment.get("gpu") or environment["processor"]) if environment else "not run"


def controls_of(frames: Frames) -> str:
    """Describe the results of an experiment's controls, by comparison table."""
    shown = [
        (f"{table.plan.name}: " if table.plan.name else "")
        + "; ".join(
            ": ".join(filter(None, (one.control, one.result, one.why)))
            for one in iterate(check_controls(table))
        )
        for table in frames.tables
    ]
    is_open = any(find_bias(table) is None for table in frames.tables)
    return "; ".join([*shown, *["no run repeats the baseline"][:is_open]])


def controls_of_check(found: Mapping[str, Any]) -> str:
    """Describe in how many of a benchmark's tables the timing controls hold."""
    holding = [
        all(check["holds"] for check in table["controls"].values())
        for table in found["tables"]
        if "controls" in table
    ]
    if not holding:
        return "in the check itself"
    return "hold" if all(holding) else f"hold in {sum(holding)} of {len(holding)} tables"


def main() -> None:
    """Write the generated parts into claims.md, and print its path."""
    page = FOLDER.parent / "claims.md"
    text = page.read_text("utf-8")
    for name, content in page_parts().items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    page.write_text(text, "utf-8")
    print(page)


if __name__ == "__main__":
    main()
