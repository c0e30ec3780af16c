"""The ledger of claims: what each source says, and the verdict that findings on it add up to.

A verdict is one of the following.

- supported, refuted: every part of the claim is;
- mixed: one part is supported and another refuted;
- supported in part, refuted in part: some parts are, and nothing decided the others;
- undecided: it was tested, and no part is decided;
- undecidable: no arm learned what it was tested on;
- no verdict: a control of the experiment failed;
- not tested as stated: what was tested differs from what the claim says, in a way that may matter;
- never run: nothing here tests it;
- not tested at this scale: it speaks of models, texts or machines that nothing here has;
- no evidence: a check could only repeat what this project was built with;
- settled by reading: a paper or a program says it, no run does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from llama_ablate.config.validation import Keys
from llama_ablate.errors import ConfigError

HERE = Path(__file__).parent
#: The sources by the first three digits of a claim's id.
DOCUMENTS = {
    "000": "Llama 2 by hand",
    "001": "From Transformer to GPT",
    "002": "LLaMA 1 to 3",
    "003": "Llama 3 from scratch",
    "004": "LLM Foundry architecture guide",
}
NOT_AT_SCALE, NOT_AS_STATED, NO_EVIDENCE, SETTLED = (
    "not tested at this scale",
    "not tested as stated",
    "no evidence",
    "settled by reading",
)
_DECIDED = ("supported", "refuted", "mixed", "supported in part", "refuted in part")
#: Verdicts that decide nothing; of several parts' the first is the claim's.
_OPEN = (
    *("undecided", "undecidable", "no verdict", NOT_AT_SCALE, NOT_AS_STATED),
    *("never run", NO_EVIDENCE, SETTLED),
)
VERDICTS = (*_DECIDED, *_OPEN)


@dataclass(frozen=True)
class Evidence:
    """What one hypothesis or one check found."""

    experiment: str
    statement: str
    #: The number with its interval and unit.
    measured: str
    #: Of what is claimed: supported, refuted, undecided, undecidable or no verdict.
    finding: str
    #: Ids of claims, or of a part of one: `000-15` or `000-16/share`.
    claims: tuple[str, ...]
    #: Why it has no verdict.
    why: str = ""
    #: Whether the source puts no number on it, so that the bound is this project's.
    ours: bool = False
    #: Whether it was measured at the scale that its claims speak of.
    at_scale: bool = False
    #: What is known of a bias of all arms but the baseline; empty where that is bounded by 0.
    bias: str = ""
    #: The same comparison at shorter lengths of the same runs.
    by_length: str = ""


class Part(Keys):
    """A thing that a claim says."""

    says: str
    #: What it speaks of, where that is beyond what is measured here.
    scale: str = ""
    #: What was tested in its place, where that is not what it says.
    otherwise: str = ""
    #: Why a check of it says nothing.
    no_evidence: str = ""
    #: What no run decides: what reading says, and where.
    settled: str = ""

    def own_verdict(self, evidence: Sequence[Evidence]) -> str:
        """Return the verdict that findings on this part alone add up to."""
        if self.no_evidence:
            return NO_EVIDENCE
        if self.settled:
            return SETTLED
        counting = [one.finding for one in evidence if one.at_scale or not self.scale]
        if counting:
            return NOT_AS_STATED if self.otherwise else combined(counting)
        return NOT_AT_SCALE if self.scale else "never run"


class Claim(Part):
    """A sentence of a source, with the parts that it consists of."""

    kind: str
    #: Where the source says it.
    line: str = Field(pattern=r"^L\d")
    note: str = ""
    parts: dict[str, Part] = Field(default_factory=dict)

    @field_validator("parts", mode="before")
    @classmethod
    def _words_alone(cls, parts: dict[str, Any]) -> dict[str, Any]:
        return {k: {"says": v} if isinstance(v, str) else v for k, v in parts.items()}


@dataclass(frozen=True)
class Row:
    """A claim with its verdict, and what was found of it, by part (`""`: of the whole)."""

    id: str
    claim: Claim
    verdict: str
    #: The verdict on each part; empty for a claim without parts.
    parts: Mapping[str, str]
    evidence: Mapping[str, Sequence[Evidence]]

    @property
    def experiments(self) -> list[str]:
        """The experiments and audits that found something, each once."""
        every = [one.experiment for of_part in self.evidence.values() for one in of_part]
        return list(dict.fromkeys(every))


def read(name: str) -> dict[str, Any]:
    """Return a YAML file of this folder: `hypotheses`, `variants`, `benches` or `changes`."""
    values: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text("utf-8"))
    return values


def claims() -> dict[str, Claim]:
    """Return every claim of ledger.yaml by its id. Raises ConfigError for unknown keys."""
    return {id_: Claim.check(values) for id_, values in read("ledger").items()}


def combined(words: Sequence[str]) -> str:
    """Return one verdict for those of several findings, or of several parts of a claim.

    Only what is supported throughout is supported, and only what is refuted throughout is refuted.
    """
    holds = {"supported", "supported in part", "mixed"} & {*words}
    fails = {"refuted", "refuted in part", "mixed"} & {*words}
    if holds and fails:
        return "mixed"
    for decided, word in ((holds, "supported"), (fails, "refuted")):
        if decided:
            return word if {*words} == {word} else f"{word} in part"
    return next((word for word in _OPEN if word in words), "never run")


def ledger(claims: Mapping[str, Claim], evidence: Sequence[Evidence]) -> list[Row]:
    """Return the verdict on every claim.

    What is settled by reading has no say where a claim has other parts. Raises ConfigError for
    evidence on a claim, or on a part, that is not there.
    """
    by_part: dict[str, dict[str, list[Evidence]]] = {
        id_: {part: [] for part in claim.parts or [""]} for id_, claim in claims.items()
    }
    for one in evidence:
        for name in one.claims:
            id_, _, part = name.partition("/")
            if part not in by_part.get(id_, {}):
                raise ConfigError(f"{one.experiment} tests '{name}', which the ledger has not")
            by_part[id_][part].append(one)
    rows = []
    for id_, claim in claims.items():
        found = by_part[id_]
        parts = {name: part.own_verdict(found[name]) for name, part in claim.parts.items()}
        voting = [word for word in parts.values() if word != SETTLED]
        verdict = combined(voting) if parts else claim.own_verdict(found[""])
        rows.append(Row(id_, claim, verdict, parts, found))
    return rows


def counted(rows: Sequence[Row], kind: str = "") -> dict[str, int]:
    """Return how many claims of a kind have which verdict, in the order of VERDICTS."""
    words = [row.verdict for row in rows if kind in row.claim.kind]
    return {word: words.count(word) for word in VERDICTS if word in words}
