"""Differences by length of training: at the branches of runs, and at their ends."""

from collections.abc import Mapping

import pandas as pd

from llama_ablate.findings import contrasts
from llama_ablate.findings.frames import TableFrames

_DECIDED = ("better", "worse", "equivalent")
#: Shares of a run's length between which a branch is half of it.
_LEAST, _MOST = 0.4, 0.6


def by_length(table: TableFrames) -> pd.DataFrame:
    """Return what each row of a table, or each effect of a factorial design, is at every length.

    Columns: `name, tokens, end, difference, low, high, verdict`. A branch is the run cooled down
    early, so each is the same comparison after fewer tokens. The intervals of the branches hold at
    once over rows and lengths, without the text's error; those of the end are the table's. Empty
    where runs have no branches.
    """
    if not table.lengths:
        return pd.DataFrame()
    end = table.plan.tokens_per_run
    parts = [
        effects(view).assign(tokens=tokens, end=tokens == end)
        for tokens, view in [*table.lengths.items(), (end, table)]
    ]
    columns = ["name", "tokens", "end", "difference", "low", "high", "verdict"]
    return pd.concat(parts, ignore_index=True)[columns]


def at_half(frame: pd.DataFrame) -> dict[str, str]:
    """Say of each row by length whether half the length gave the same verdict.

    `same`; `turned` where better was worse; `was` with the word for any other; `undecided` where
    half the length did not decide. Empty without a branch near half of the length.
    """
    if frame.empty:
        return {}
    last = frame.loc[frame["end"]].set_index("name")["verdict"]
    shares = frame["tokens"] / frame["tokens"].max()
    near = frame[~frame["end"] & shares.between(_LEAST, _MOST)]
    if near.empty:
        return {}
    half = near.loc[near["tokens"] == near["tokens"].max()].set_index("name")["verdict"]
    return {str(name): _word(str(last[name]), str(word)) for name, word in half.items()}


def turned(frame: pd.DataFrame) -> Mapping[str, int]:
    """Return up to how many tokens a decided row had the contrary verdict, by its name."""
    if frame.empty:
        return {}
    found: dict[str, int] = {}
    last = frame.loc[frame["end"]].set_index("name")["verdict"]
    for name, tokens, word in zip(frame["name"], frame["tokens"], frame["verdict"], strict=True):
        if _word(str(last[name]), str(word)) == "turned":
            found[str(name)] = max(int(tokens), found.get(str(name), 0))
    return found


def _word(now: str, then: str) -> str:
    if then not in _DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} == {"better", "worse"} else f"was {then}"


def effects(table: TableFrames) -> pd.DataFrame:
    """Return the effects of a factorial design, or the rows of a table's variants."""
    factors = contrasts.factors(table)
    if len(factors):
        return factors.rename(columns={"effect": "name"})
    frame = table.comparison
    ranked = frame[~frame["baseline"] & (frame["role"] == "")]
    return ranked.rename(columns={"label": "name"})
