"""Controls of an experiment: what they bound, and what they show.

The baseline repeated with nothing changed bounds the bias: whatever sets all arms but the baseline
apart (another precision, state of the code, text, machine) sets it apart too. The baseline with
other draws shows noise, not bias: it is judged as a row is, and counted over experiments. A change
of known harm shows that the experiment would see one (assay sensitivity, ICH E10): without that,
nothing can be said to be as good, and that no difference was seen says nothing; a difference that
was seen needs no such proof.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llama_ablate.evidence import Interval
from llama_ablate.evidence.written import interval
from llama_ablate.findings.comparison import Pairs, bias_of
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.rows import ComparisonRow, Row, RunRow, column, grouped
from llama_ablate.results.plan_document import PlannedTable

Kind = Literal["aa", "positive", "learned"]
#: Words that say something of a difference, which a bias could have made.
_DECIDED = ("better", "worse", "equivalent", "supported", "refuted")
#: Nats below the loss of token frequencies alone, from which an arm has learned more than those.
_CLEARLY_BELOW = 0.1
_MOST_MARGINS = 10  # of harm that still is like a difference of the margin's size
_TOO_STRONG = "it shows that a catastrophe is seen, not a difference of the margin's size"


@dataclass(frozen=True)
class Check:
    """Whether a control holds, and why."""

    holds: bool
    why: str


@dataclass(frozen=True)
class ControlRow(Row):
    """A control of a table."""

    control: str = column("`bias`, `positive`, `learned` or `calibration`", "control")
    result: str = column("`holds` or `fails`; empty for one that cannot fail", "result")
    why: str = column("what it shows", "why")


@dataclass(frozen=True)
class Bias:
    """What is known of how far all arms but the baseline may be off alike."""

    #: The ends between which it lies, by a repeated baseline; None where nothing bounds it.
    ends: tuple[float, float] | None
    #: The interval of a baseline with other draws: more than any bias, as it has noise.
    noise: Interval | None
    unit: str

    @classmethod
    def of(
        cls,
        table: PlannedTable,
        pairs: Mapping[str, Pairs],
        intervals: Mapping[str, Interval],
        unit: str,
    ) -> "Bias":
        """Read it off a table's controls: their `pairs` with the baseline, and their intervals."""
        drawn = (v.id for v in table.variants if v.role == "aa" and v.id not in table.repeated)
        return cls(bias_of(table, pairs), next((intervals[id_] for id_ in drawn), None), unit)

    def beside(self, row: Interval, word: Callable[[Interval], str], weight: float = 1.0) -> str:
        """Return what stands beside what was read off an interval; nothing where all is well.

        `word` reads it. `weight` is that of all arms but the baseline in the row's difference; a
        word that says nothing of a difference, such as inconclusive, needs no bound.
        """
        if word(row) not in _DECIDED or not weight:
            return ""
        if self.ends is not None:
            return f"within {interval(0.0, *self.ends)} {self.unit}" if any(self.ends) else ""
        if self.noise is None or math.isnan(self.noise.low):
            return "not bounded"
        wider = row.widened(scaled((self.noise.low, self.noise.high), weight))
        return f"not bounded; {'stands' if word(wider) == word(row) else 'falls'} after the A/A"


def scaled(ends: tuple[float, float], weight: float) -> tuple[float, float]:
    """Return the ends of an interval multiplied by a weight."""
    low, high = sorted(weight * end for end in ends)
    return low, high


def check(
    table: PlannedTable,
    comparison: Sequence[ComparisonRow],
    margin: float | None,
    runs: Iterable[RunRow] = (),
) -> dict[Kind, Check]:
    """Return for each kind of control that can fail whether all of that kind hold.

    A repeated baseline must be equal bit for bit, or have an interval; a positive control must be
    seen: its own 95% interval lies above 0, and its mean is at most ten margins. Some arm's loss
    must be clearly below that of token frequencies: arms that have learned nothing are equal.
    """
    checks = _checks(table, comparison, margin, runs)
    can_fail = [(kind, label, one) for kind, label, one in checks if one is not None]
    return {
        kind: Check(
            all(one.holds for _, _, one in own),
            "; ".join(f"{label} {one.why}" for _, label, one in own),
        )
        for kind, own in grouped(can_fail, lambda check: check[0]).items()
    }


def failing(checks: Mapping[Kind, Check], *, seen_to_differ: bool) -> str:
    """Say which controls of a table fail that a finding needs; nothing where all hold.

    A difference that is `seen_to_differ` from 0 needs no positive control.
    """
    needed = (kind for kind in checks if kind == "aa" or not seen_to_differ)
    return "; ".join(checks[kind].why for kind in needed if not checks[kind].holds)


def held(word: str, checks: Mapping[Kind, Check]) -> str:
    """Return a verdict; `no verdict` where a control fails that it needs."""
    seen = word in ("better", "worse")
    needs = seen or word == "equivalent"
    return "no verdict" if needs and failing(checks, seen_to_differ=seen) else word


def withheld(row: ComparisonRow, checks: Mapping[Kind, Check]) -> ComparisonRow:
    """Return a row of a comparison with the verdict that controls leave it.

    A variant that is equal bit for bit is equivalent whatever other arms show.
    """
    word = row.verdict if row.role or row.low == row.high == 0 else held(row.verdict, checks)
    return row if word == row.verdict else replace(row, verdict=word, bias="")


def same(row: ComparisonRow) -> Check:
    """Return whether a repeated baseline bounds the bias, from its row of a comparison."""
    if row.difference == row.low == row.high == 0:
        return Check(holds=True, why="is equal bit for bit")
    if why := _without_loss(row):
        return Check(holds=False, why=why)
    if math.isnan(row.low):
        return Check(
            holds=False, why=f"differs by {row.difference:+.2g} {row.unit} in its one seed"
        )
    by = interval(row.difference, row.low, row.high)
    return Check(holds=True, why=f"differs by {by} {row.unit}: every row is wider by that")


def seen(row: ComparisonRow, margin: float | None) -> Check:
    """Return whether a positive control was seen to harm, from its row of a comparison."""
    if why := _without_loss(row):
        too_strong = f": {_TOO_STRONG}" if row.verdict in UNSTABLE else ""
        return Check(holds=False, why=why + too_strong)
    if margin is None:
        return Check(holds=False, why="is held to no margin: the experiment states none")
    if not row.low > 0:
        by = interval(row.difference, row.low, row.high)
        return Check(holds=False, why=f"was not seen to harm: {by} {row.unit}")
    margins = row.difference / margin
    harm = f"{row.difference:.2g} {row.unit}, {margins:.2g} margins"
    if margins > _MOST_MARGINS:
        return Check(holds=False, why=f"harms by {harm}: {_TOO_STRONG}")
    return Check(holds=True, why=f"harms by {harm}")


def told(
    table: PlannedTable,
    comparison: Sequence[ComparisonRow],
    margin: float | None,
    runs: Iterable[RunRow] = (),
) -> list[ControlRow]:
    """Return what each control is for, whether it holds, and why."""
    whats = {"aa": "bias", "positive": "positive", "learned": "learned"}
    of_label = {row.label: row for row in comparison}
    return [
        ControlRow(control="calibration", result="", why=f"{label}: {calibration(of_label[label])}")
        if one is None
        else ControlRow(
            control=whats[kind], result="holds" if one.holds else "fails", why=f"{label} {one.why}"
        )
        for kind, label, one in _checks(table, comparison, margin, runs)
    ]


def _checks(
    table: PlannedTable,
    comparison: Sequence[ComparisonRow],
    margin: float | None,
    runs: Iterable[RunRow],
) -> Iterator[tuple[Kind, str, Check | None]]:
    """Yield each control's kind, label, and whether it holds; None for one that cannot fail."""
    for variant, row in zip(table.variants, comparison, strict=True):
        if variant.role == "positive":
            yield "positive", variant.label, seen(row, margin)
        elif variant.role == "aa":
            yield "aa", variant.label, same(row) if variant.id in table.repeated else None
    gains = [
        run.number("unigram_loss_nats") - run.number("validation_loss_nats")
        for run in runs
        if run.chosen and run.outcome == "ok" and run.role != "positive"
    ]
    if gains and max(gains) < _CLEARLY_BELOW:  # not where it is NaN, of records of older versions
        why = f"came more than {_CLEARLY_BELOW} nats below the loss that token frequencies give"
        yield "learned", "no arm", Check(holds=False, why=why)


def calibration(row: ComparisonRow) -> str:
    """Say what a baseline with other draws shows: of 20 such intervals one leaves out 0."""
    if why := _without_loss(row):
        return why
    by = f"{interval(row.difference, row.low, row.high)} {row.unit}"
    return f"{by}, {'leaves out' if row.low > 0 or row.high < 0 else 'holds'} 0"


def _without_loss(row: ComparisonRow) -> str:
    if row.verdict in (*UNSTABLE, "failed"):
        return str(row.verdict)
    if row.verdict == "too short":
        return "is too short"
    return "has not finished" if math.isnan(row.difference) else ""
