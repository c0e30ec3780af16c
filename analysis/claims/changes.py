"""Verdicts that are not what the first audit had: before, after, and why."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from analysis.claims.ledger import Row
from llama_ablate.config.validation import Keys


class Change(Keys):
    """The verdict that the first audit had on a claim, and why another stands now."""

    before: str
    why: str = Field("", max_length=400)
    #: The verdict under the rules before those of today, where that was another, and what made it.
    last: str = ""
    rule: str = Field("", max_length=400)


def changed(rows: Sequence[Row], changes: Mapping[str, Change]) -> list[tuple[Row, Change]]:
    """Return the claims whose verdict is another, with what it was and why.

    Raises KeyError for a claim that the first audit is not said to have had.
    """
    return [(row, changes[row.id]) for row in rows if row.verdict != changes[row.id].before]
