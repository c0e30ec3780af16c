"""State of a ledger as table rows and HTML page: candidates, error budget, best."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llama_ablate.config.labels import entry_text
from llama_ablate.evidence.written import Estimate
from llama_ablate.files.strict_json import write_text
from llama_ablate.findings.rows import Row, cells, column, explained
from llama_ablate.judge.gates import LOSING, describe
from llama_ablate.judge.ledger import Begun, GateDifference, Ledger, TakenApart, Verdict
from llama_ablate.judge.levels import MAX_LEVELS
from llama_ablate.report import embedding, plots
from llama_ablate.report.page import ShownTable, packaged, template
from llama_ablate.report.picture import Axis, Dot, Dots, Picture

_RULES = {
    "lord": "false discovery rate, LORD++ (arXiv:1710.00499)",
    "family-wise": "chance of any false acceptance",
}
#: Fields that a row copies from the difference at the candidate's last gate.
_GATE_FIELDS = {"difference", "low", "high", "alpha", "n", "parameters"}
#: Text of the column `helps`, by the verdict on the best without the change.
_HELPS = dict.fromkeys(LOSING, "yes") | {"better": "harms"}


@dataclass(frozen=True)
class CandidateRow(Row):
    """Table row for a candidate of a ledger."""

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
    level: float = column("one-sided level that it was granted for both gates", "level", ".2g")
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


def write_state(ledger: Ledger, judged: Begun | None = None) -> LedgerState:
    """Write the HTML page of a ledger, and return the ledger's state.

    `judged` is the candidate that was just judged, if any.
    """
    rows = list_rows(ledger)
    row = rows[judged.number - 1] if judged else None
    return LedgerState(
        ledger=ledger.opened.experiment["name"],
        number=row.number if row else None,
        verdict=row.verdict if row else "",
        why=row.why if row else "",
        best=ledger.best(),
        candidates=rows,
        candidates_left=ledger.terms.candidates - len(rows),
        next_level=ledger.level,
        page=str(_write(ledger, rows)),
    )


def list_rows(ledger: Ledger) -> list[CandidateRow]:
    """Return one row for each candidate, in the order in which they began."""
    moves = {begun.number: move for move, begun in enumerate(ledger.path, 1)}
    left_out = [event.found for event in ledger.of(TakenApart) if event.best == len(moves)][-1:]
    rows = []
    for begun in ledger.of(Begun):
        ended, last = ledger.ended.get(begun.number), ledger.last_differences.get(begun.number)
        why = ended.why if ended else ""
        if ended and ended.verdict == "accepted" and begun.number not in moves:
            why += "; against an old best: judged again, it may move the present one"
        row = CandidateRow(
            number=begun.number,
            label=begun.label,
            verdict=ended.verdict if ended else "running",
            why=why,
            helps=_helps(ledger, begun, left_out[0]) if left_out and begun.number in moves else "",
            changes=", ".join(f"{key} {entry_text(v)}" for key, v in begun.changes.items()),
            best=begun.best,
            moved=moves.get(begun.number),
            **(last.model_dump(include=_GATE_FIELDS) if last else {}),
            level=begun.level,
        )
        rows.append(row)
    return rows


def _helps(ledger: Ledger, begun: Begun, apart: Mapping[str, GateDifference]) -> str:
    if without := apart.get(begun.left_out):
        return f"{_HELPS.get(without.verdict, 'not shown')}: {describe(without)} without it"
    is_replaced = ledger.best(without=begun) == ledger.best()
    return "replaced since" if is_replaced else "cannot be left out alone"


def describe_ledger(ledger: Ledger, rows: Sequence[CandidateRow]) -> list[str]:
    """Describe a ledger in sentences: its state, terms and remaining error budget."""
    terms, counted = ledger.terms, Counter(row.verdict for row in rows)
    tried = ", ".join(f"{count} {word}" for word, count in counted.items()) or "none yet"
    best = ", ".join(f"{key} {entry_text(value)}" for key, value in ledger.best().items())
    looks = ", ".join(map(str, terms.looks))
    shared = ", which the looks share" if len(terms.looks) > 1 else ""
    sizes = terms.size.changes.items() if terms.size else ()
    size = "".join(f" and with {key} {value}" for key, value in sizes)
    experiment = ledger.opened.experiment
    texts = " and ".join(
        entry_text(data["corpus"]) for data in (experiment["data"], dict(terms.second))
    )
    scale = ", ".join(f"{key} {experiment['model'][key]}" for key in ("dim", "layers", "context"))
    length = {
        key: experiment["train"][key] for key in ("tokens", "steps") if experiment["train"][key]
    }
    first, second = f"its level{shared}", "95%"
    if ledger.opened.format == 2:
        first, second = (
            f"the root of its level, at most {level:.1%}{more}"
            for level, more in zip(MAX_LEVELS, (shared, ""), strict=True)
        )
    return [
        f"Candidates: {tried}. The best is the baseline{' with ' * bool(best)}{best}.",
        f"Error of the whole ledger: {terms.error:.3g}, {_RULES[terms.rule]}. Left: "
        f"{terms.candidates - len(rows)} of {terms.candidates} candidates; the next is granted a "
        f"one-sided level of {ledger.level:.2g}.",
        f"Accepted is whose interval lies below 0 at gate one ({looks} seeds, paired with runs of "
        f"the best), at {first}, and at gate two ({terms.confirm} fresh seeds on another "
        f"text{size}), at {second}. Margin {experiment['margin']}.",
        f"At {scale}; {''.join(f'{n:,} {key}' for key, n in length.items())} a run, on {texts}.",
    ]


def _write(ledger: Ledger, rows: Sequence[CandidateRow]) -> Path:
    """Write the HTML page into the ledger's folder, and return its path."""
    style, page = packaged("page.css"), ledger.root / "ledger.html"
    html = template("ledger.html").render(
        stated=ledger.opened.experiment,
        told=describe_ledger(ledger, rows),
        table=replace(ShownTable.of(cells(rows)), about=explained(rows)) if rows else None,
        picture=_draw(ledger, rows),
        policy=embedding.policy(style, []),
        style=style,
    )
    write_text(page, html)
    return page


def _draw(ledger: Ledger, rows: Sequence[CandidateRow]) -> str:
    """Return an SVG of the candidates' differences at their last gates; "" without any."""
    marks = [
        Dot(
            f"{row.number} {row.label}",
            Estimate(difference.difference, difference.low, difference.high),
            difference.verdict,
        )
        for row in rows
        if (difference := ledger.last_differences.get(row.number))
    ]
    if not marks:
        return ""
    drawing = plots.draw(Picture([Dots(marks, Axis("difference (nats)", at=0.0))]))
    sheet = embedding.Sheet()
    label = "Difference of each candidate from the best, with its interval"
    svg = sheet.add(plots.write_svg(drawing.figure), drawing.about, label, 1, **{"class": "only"})
    return sheet.letters + svg
