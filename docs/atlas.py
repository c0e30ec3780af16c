"""The atlas: contested questions, who says what, and what the packs say, written from atlas.yaml.

Numbers come from the packs alone. Each row of atlas.yaml states what its interval says (`is`), so
that a sentence cannot outlive the result that it speaks of.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from analysis.claims.experiments import by_length
from llama_ablate.evidence import written
from llama_ablate.findings import agreement, contrasts, hypotheses, lengths
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results

HERE = Path(__file__).parent
REFERENCE = HERE.parent / "results" / "reference"


class Pack:
    """A pack, and what its rows are at every length."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames = Frames.of(Results.open(REFERENCE / name))

    @cached_property
    def of_hypotheses(self) -> list[tuple[hypotheses.HypothesisRow, dict[int, Any]]]:
        """Each hypothesis, and the same after fewer tokens."""
        tested = hypotheses.results(self.frames)
        return list(zip(tested, by_length(self.frames), strict=True))

    def cell(self, row: Mapping[str, Any]) -> "Cell":
        """Return the row of the pack that a row of atlas.yaml names."""
        table = self.frames.named(row.get("table", ""))
        if "hypothesis" in row:
            found, shorter = self.of_hypotheses[row["hypothesis"]]
            table = self.frames.named(found.table)
            at = {tokens: one.of_difference() for tokens, one in shorter.items()}
            whole, word = found.of_difference(), found.result
        else:
            name = row.get("effect") or row["label"]
            every = contrasts.factors(table) if "effect" in row else table.comparison
            of = {(one.effect if "effect" in row else one.label): one for one in every}
            found = of[name]
            sign = row.get("sign", 1)
            at = {
                one.tokens: _interval(sign, one.difference, one.low, one.high)
                for one in lengths.by_length(table)
                if one.name == name and not one.end
            }
            whole = _interval(sign, found.difference, found.low, found.high)
            word = found.verdict
        if word != row["is"]:
            raise ValueError(f"atlas.yaml: {row['name']} is {word}, not {row['is']}")
        size = table.plan.baseline.parameters / 1e6
        return Cell(row["name"], f"{size:.2g}M", table.plan.tokens_per_run, at, whole, word)

    def alike(self) -> str:
        """Write how often a shorter length ranked pairs of arms as the whole does."""
        found = []
        for table in self.frames.tables:
            if table.lengths:
                settings = agreement.settings(self.frames, table, by_length=True, by_size=False)
                found.append(agreement.pairs(table.plan.name, settings))
        ranked = [row for row in agreement.ranked(agreement.joined(found)) if found]
        rows = {row.share: row for row in ranked if row.results in ("", agreement.ALL)} or {
            row.share: row for row in ranked
        }
        return ", ".join(
            f"{share:.0%} of the length: {row.alike:.0%} of {row.pairs} pairs"
            for share, row in rows.items()
        )


@dataclass(frozen=True)
class Cell:
    """One difference, at one size and several lengths."""

    name: str
    size: str
    tokens: int
    shorter: dict[int, str] = field(default_factory=dict)
    whole: str = ""
    word: str = ""

    def line(self) -> str:
        """Write it as a line of the table."""
        before = "; ".join(f"{_millions(at)}: {text}" for at, text in self.shorter.items())
        whole = f"{_millions(self.tokens)}: **{self.whole}**"
        return f"| {self.name} | {self.size} | {before} | {whole} | {self.word} |"


def _interval(sign: int, mean: float, low: float, high: float) -> str:
    return written.interval(*((mean, low, high) if sign > 0 else (-mean, -high, -low)))


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.2g}M"


def page() -> str:
    """Return the generated part of docs/atlas.md."""
    questions = yaml.safe_load((HERE / "atlas.yaml").read_text("utf-8"))
    top = [
        "| question | answer, at the sizes and lengths below | a shorter run ranked alike |",
        "|---|---|---|",
    ]
    return "\n".join(
        [*top, *map(_row, questions), "", *(line for one in questions for line in _section(one))]
    )


def _cells(one: Mapping[str, Any]) -> list[Cell]:
    packs: dict[str, Pack] = {}
    return [
        packs.setdefault(name, Pack(name)).cell(row)
        for row in one["rows"]
        for name in [row.get("pack", one["pack"])]
    ]


def _row(one: Mapping[str, Any]) -> str:
    anchor = "".join(c for c in one["title"].lower() if c.isalnum() or c in " -").replace(" ", "-")
    return f"| [{one['title']}](#{anchor}) | {one['answer']} | {Pack(one['pack']).alike() or '-'} |"


def _section(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {one['title']}"
    yield ""
    yield from (f"- {said}" for said in one["says"])
    yield ""
    yield f"**Design.** {one['design'].strip()}"
    yield ""
    yield "| difference | parameters | after fewer tokens | at the end | says |"
    yield "|---|---|---|---|---|"
    cells = _cells(one)
    yield from (cell.line() for cell in cells)
    yield ""
    yield f"**Verdict.** {one['verdict'].strip().format(*(cell.whole for cell in cells))}"
    yield ""
    yield f"**What would overturn it.** {one['overturn'].strip()}"
    yield ""
    yield f"    {one['command']}"
    yield ""
    pack = f"../results/reference/{one['pack']}"
    yield f"[Report]({pack}/report.md). ![{one['alt']}]({pack}/{one.get('figure', 'effects.png')})"
    yield ""
