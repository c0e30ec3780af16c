"""Decisions of gates, and the states of a ledger's candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llama_ablate.config.labels import entry_text
from llama_ablate.evidence.written import interval, number, seeds
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import Row, column
from llama_ablate.judge.ledger import Begun, GateDifference, Ledger, TakenApart, Verdict

GATES: tuple[Literal[1, 2], ...] = (1, 2)
#: What a row has of the last gate.
_NUMBERS = {"difference", "low", "high", "alpha", "n", "parameters"}
_LOST = ("worse", "diverged", "collapsed")
#: What the best without a change shows of the change.
_HELPS = dict.fromkeys(_LOST, "yes") | {"better": "harms"}


def differences(table: TableFrames) -> dict[str, GateDifference]:
    """Return the difference of each variant from the baseline, by label."""
    plan, found = table.plan, {}
    base = table.losses[plan.baseline.id]
    for variant, row in zip(plan.variants, table.comparison, strict=True):
        own = table.losses[variant.id]
        also = {
            "table": plan.name,
            "guards": {one.measure: one.result for one in table.guards if one.label == row.label},
            "losses": {str(seed): (own[seed], base[seed]) for seed in own if seed in base},
        }
        shown = GateDifference.model_validate(row, from_attributes=True)
        found[row.label] = shown.model_copy(update=also)
    del found[plan.baseline.label]
    return found


def decide(gate: int, found: Sequence[GateDifference]) -> tuple[Verdict, str] | None:
    """Return a gate's decision with its reason; None if gate two is needed."""
    own, said = found[0], f"gate {gate}: {written(found[0])}"
    undecided = [f"{name} {result}" for name, result in own.guards.items() if result != "holds"]
    broken = [guard for guard in undecided if guard.endswith(" worse")]
    sizes = [one for one in found[1:] if one.n]
    turned = [f"{one.table}, {written(one)}" for one in sizes if not one.difference < 0]
    turned += [f"{one.table}, {one.verdict}" for one in found[1:] if one.verdict in _LOST]
    turned += [f"{one.table}, guard" for one in found[1:] if "worse" in one.guards.values()]
    needed = seeds(own.seeds_low)
    needed = f"; {needed} would decide" if needed else ""
    word = "" if own.verdict == "inconclusive" else f", {own.verdict}"
    cases: tuple[tuple[bool, Verdict, str], ...] = (
        (own.verdict == "equivalent", "rejected", f"{said}, no gain larger than the margin"),
        (own.verdict in _LOST or own.low > 0, "rejected", f"{said}{word}"),
        (bool(broken), "rejected", f"{said}, but breaks a guard: {''.join(broken[:1])}"),
        (own.verdict != "better", "inconclusive", f"{said}{word}{needed}"),
        (gate == 2 and bool(undecided), "inconclusive", f"{said}; guard {''.join(undecided[:1])}"),
        (bool(turned), "rejected", f"{said}, but no gain at {''.join(turned[:1])}"),
        (len(sizes) < len(found[1:]), "inconclusive", f"{said}, and nothing at a second size"),
        (gate == 2, "accepted", said),
    )
    return next(((verdict, why) for holds, verdict, why in cases if holds), None)


def written(found: GateDifference) -> str:
    """Write a difference with its interval and its seeds."""
    level = number(100 * (1 - found.alpha), ".4g", "%")
    by = interval(found.difference, found.low, found.high)
    return f"{by} {found.unit} ({level}, {found.n} seeds)"


@dataclass(frozen=True)
class CandidateRow(Row):
    """A candidate of a ledger."""

    number: int = column("which of the ledger's candidates it is", "no.", leading=True)
    label: str = column("its label", "candidate", leading=True)
    changes: str = column("what it changes of the best", "changes", leading=True)
    verdict: Verdict | Literal["running"] = column(
        "`accepted`, `rejected`, `inconclusive`, `invalid`; `running`", "verdict", leading=True
    )
    why: str = column("what decided it: difference from the best, interval, seeds", "why")
    helps: str = column(
        "of a change of the best, left out of it on the first text at 95% for all together: `yes`, "
        "`not shown`, `harms`, or `replaced since`, or `cannot be left out alone`",
        "still helps",
        optional=True,
    )
    parameters: int | None = column(
        "trained parameters, once a gate has ended", "parameters", ",", optional=True, default=None
    )
    level: float = column("one-sided level that gate one was granted", "level", ".2g")
    best: int = column("how often the best had moved when it began", "against best")
    moved: int | None = column("which move of the best it is", "moves best to", optional=True)
    difference: float | None = column("of its last gate, from the best of its time", default=None)
    low: float | None = column("lower end of its interval", default=None)
    high: float | None = column("upper end of it", default=None)
    alpha: float | None = column("error that the interval spends", default=None)
    n: int | None = column("pairs of seeds that it is of", default=None)


@dataclass(frozen=True)
class LedgerState:
    """State of a ledger and of a judged candidate, as printed by `judge --json`."""

    ledger: str
    number: int | None
    verdict: Verdict | Literal["running", ""]
    why: str
    best: dict[str, Any]
    candidates: list[CandidateRow]
    candidates_left: int
    next_level: float
    page: str


def _helps(ledger: Ledger, begun: Begun, apart: Mapping[str, GateDifference]) -> str:
    if without := apart.get(begun.left_out):
        return f"{_HELPS.get(without.verdict, 'not shown')}: {written(without)} without it"
    is_replaced = ledger.best(without=begun) == ledger.best()
    return "replaced since" if is_replaced else "cannot be left out alone"


def rows(ledger: Ledger) -> list[CandidateRow]:
    """Return one row for each candidate, in the order in which they began."""
    moves = {begun.number: move for move, begun in enumerate(ledger.path, 1)}
    apart = [one.found for one in ledger.of(TakenApart) if one.best == len(moves)][-1:]
    made = []
    for begun in ledger.of(Begun):
        ended, own = ledger.ended.get(begun.number), ledger.shown.get(begun.number)
        why = ended.why if ended else ""
        if ended and ended.verdict == "accepted" and begun.number not in moves:
            why += "; against an old best: judged again, it may move the present one"
        row = CandidateRow(
            number=begun.number,
            label=begun.label,
            verdict=ended.verdict if ended else "running",
            why=why,
            helps=_helps(ledger, begun, apart[0]) if apart and begun.number in moves else "",
            changes=", ".join(f"{key} {entry_text(v)}" for key, v in begun.changes.items()),
            best=begun.best,
            moved=moves.get(begun.number),
            **(own.model_dump(include=_NUMBERS) if own else {}),
            level=begun.level,
        )
        made.append(row)
    return made


def state(ledger: Ledger, made: list[CandidateRow], judged: Begun | None, page: str) -> LedgerState:
    """Return how a ledger stands, after a candidate was judged or as it is."""
    own = made[judged.number - 1] if judged else None
    return LedgerState(
        ledger=ledger.opened.experiment["name"],
        number=own.number if own else None,
        verdict=own.verdict if own else "",
        why=own.why if own else "",
        best=ledger.best(),
        candidates=made,
        candidates_left=ledger.terms.candidates - len(ledger.of(Begun)),
        next_level=ledger.level,
        page=page,
    )
