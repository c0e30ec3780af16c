"""Page of a ledger: its candidates, the remaining error budget, and the path of the best."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llama_ablate.config.labels import entry_text
from llama_ablate.evidence.written import Estimate
from llama_ablate.files.strict_json import write_text
from llama_ablate.findings.rows import cells, explained
from llama_ablate.judge import gates
from llama_ablate.judge.ledger import Ledger
from llama_ablate.report import embedding, plots
from llama_ablate.report.page import Shown, packaged, template
from llama_ablate.report.picture import Axis, Dot, Dots, Picture

_RULES = {
    "lord": "false discovery rate, LORD++ (arXiv:1710.00499)",
    "family-wise": "chance of any false acceptance",
    "e-lond": "false discovery rate under any dependence, e-LOND (arXiv:2311.06412)",
}


def told(ledger: Ledger, rows: Sequence[gates.CandidateRow]) -> list[str]:
    """Describe the state of a ledger, its terms and its remaining error budget."""
    terms, counted = ledger.terms, Counter(row.verdict for row in rows)
    tried = ", ".join(f"{count} {word}" for word, count in counted.items()) or "none yet"
    best = ", ".join(f"{key} {entry_text(value)}" for key, value in ledger.best().items())
    looks = ", ".join(map(str, terms.looks))
    shared = ", which the looks share" if len(terms.looks) > 1 else ""
    size = f" and with {terms.size.changes}" if terms.size else ""
    stated = ledger.opened.experiment
    texts = " and ".join(entry_text(one["corpus"]) for one in (stated["data"], dict(terms.second)))
    scale = ", ".join(f"{key} {stated['model'][key]}" for key in ("dim", "layers", "context"))
    length = {key: stated["train"][key] for key in ("tokens", "steps") if stated["train"][key]}
    return [
        f"Candidates: {tried}. The best is the baseline{' with ' * bool(best)}{best}.",
        f"Error of the whole ledger: {terms.error:.3g}, {_RULES[terms.rule]}. Left: "
        f"{terms.candidates - len(rows)} of {terms.candidates} candidates; the next is granted a "
        f"one-sided level of {ledger.level:.2g}.",
        f"Accepted is whose interval lies below 0 at gate one ({looks} seeds, paired with runs of "
        f"the best), at its level{shared}, and at gate two ({terms.confirm} fresh seeds on another "
        f"text{size}), at 95%. Margin {stated['margin']}.",
        f"At {scale}; {''.join(f'{n:,} {key}' for key, n in length.items())} a run, on {texts}.",
    ]


def write(ledger: Ledger, rows: Sequence[gates.CandidateRow]) -> Path:
    """Write the page into the ledger's folder, and return its path."""
    style, page = packaged("page.css"), ledger.root / "ledger.html"
    html = template("ledger.html").render(
        stated=ledger.opened.experiment,
        told=told(ledger, rows),
        table=replace(Shown.of(cells(rows)), about=explained(rows)) if rows else None,
        picture=_draw(ledger, rows),
        policy=embedding.policy(style, []),
        style=style,
    )
    write_text(page, html)
    return page


def _draw(ledger: Ledger, rows: Sequence[gates.CandidateRow]) -> str:
    """Return what gates showed, as an element of the page; "" before there is any."""
    marks = [
        Dot(f"{row.number} {row.label}", Estimate(own.difference, own.low, own.high), own.verdict)
        for row in rows
        if (own := ledger.shown.get(row.number))
    ]
    if not marks:
        return ""
    drawing = plots.draw(Picture([Dots(marks, Axis("difference (nats)", at=0.0))]))
    sheet = embedding.Sheet()
    label = "Difference of each candidate from the best, with its interval"
    svg = sheet.add(plots.write_svg(drawing.figure), drawing.about, label, 1, **{"class": "only"})
    return sheet.letters + svg
