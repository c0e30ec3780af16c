"""The report: tables, figures and one self-contained page, written beside the results."""

import base64
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from llama_ablate.config.experiment import slug
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.report import curves, figures, frames, tables, warned
from llama_ablate.report.sections import Section
from llama_ablate.results import Store

_RUN_COLUMNS = (
    "variant",
    "tuned to",
    "seed",
    "outcome",
    "loss (nats)",
    "± (text)",
    "bits/byte",
    "train (s)",
    "peak memory",
    "reason",
)


def write(store: Store, found: list[Section]) -> Path:
    """Write the whole report of an experiment, its sections as given; return the page's path."""
    folder = store.report
    comparison = frames.comparison(store)
    caption = f"{store.plan['experiment']['name']}: {store.plan['question']}".strip(": ")
    for section in found:
        titled = f"{caption} {section.title}"
        tables.save(
            section.cells, section.frame, titled, folder / "tables" / slug(section.title, 160)
        )
    drawn, names = [], []
    for name, draw, table in _figures(store):
        figure = draw(table)
        if not any(axes.has_data() for axes in figure.axes):
            continue  # nothing that it shows was measured
        svg, _png = figures.save(figure, folder / "figures" / name)
        drawn.append(
            {
                "title": name.replace("_", " "),
                "caption": _caption(draw),
                "svg": base64.b64encode(svg.read_bytes()).decode(),
            }
        )
        names.append(name)
    write_text(folder / "report.md", _markdown(store, comparison, found, names))
    page = folder / "report.html"
    write_text(page, _html(store, comparison, found, drawn))
    return page


def _figures(store: Store) -> list[tuple[str, Callable[[Store], Figure], Store]]:
    """Return what is drawn: everything of the first table, the effects of the others."""
    asked = store.plan["experiment"]
    drawn = [(name, draw, store) for name, draw in figures.FIGURES.items()]
    if asked.get("tune"):
        drawn.append(("sensitivity", curves.sensitivity, store))
    if asked.get("sizes"):
        drawn.append(("ladder", curves.ladder, store))
    drawn += [
        (f"effects_{slug(table.plan['table'], 160)}", figures.effects, table)
        for table in store.tables[1:]
    ]
    return drawn


def _caption(draw: Callable[[Store], Figure]) -> str:
    """Make a caption of what a figure's docstring says that it draws."""
    first = " ".join((inspect.getdoc(draw) or "").split("\n\n")[0].split())
    said = first.removeprefix("Draw ")
    return said[:1].upper() + said[1:]


def answer(comparison: pd.DataFrame) -> str:
    """Say in one sentence what the table shows."""
    base = comparison[comparison["baseline"]].iloc[0]["label"]
    parts = []
    comparison = comparison[comparison["role"] == ""]
    for word in (
        "better",
        "worse",
        "equivalent",
        "diverged",
        "collapsed",
        "inconclusive",
        "failed",
        "pending",
    ):
        of = comparison[comparison["verdict"] == word].sort_values("difference_nats")
        named = [
            str(row.label)
            + ("" if math.isnan(row.difference_nats) else f" ({row.difference_nats:+.4f})")
            for row in frames.rows(of)
        ]
        if named:
            parts.append(f"{word}: {tables.listed(named)}")
    return f"Against '{base}' (difference in nats): " + ("; ".join(parts) or "nothing yet") + "."


def _facts(store: Store) -> str:
    plan = store.plan
    train, compute = plan["experiment"]["train"], store.compute or {}
    return (
        f"{len(plan['variants'])} variants, {len({r['seed'] for r in plan['runs']})} seeds, "
        f"{plan['tokens_per_run']:,} tokens a run ({plan['steps']:,} steps of {train['batch']} x "
        f"{plan['experiment']['model']['context']}), learning rate {train['lr']:g}, matched: "
        f"{frames.matched(plan)}. Computed on {compute.get('device', '?')} in "
        f"{compute.get('precision', '?')} with the {compute.get('kernel', '?')} attention kernel, "
        f"{compute.get('threads', '?')} thread(s) a worker."
    )


def _markdown(
    store: Store, comparison: pd.DataFrame, found: list[Section], drawn: list[str]
) -> str:
    plan = store.plan
    texts = [plan["question"], answer(comparison), _facts(store)]
    lines = [f"# {tables.literal(plan['experiment']['name'])}", ""]
    lines += [line for text in texts for line in (tables.literal(text), "")]
    lines += [f"> {tables.literal(warning)}" for warning in warned.warnings(store)]
    for section in found:
        title = f"## {tables.literal(section.title)}"
        lines += ["", title, "", tables.markdown(section.cells), section.note, ""]
    lines += [f"![{name}](figures/{name}.png)\n" for name in drawn]
    return "\n".join(lines)


def _html(
    store: Store,
    comparison: pd.DataFrame,
    found: list[Section],
    drawn: list[dict[str, str]],
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    plan, runs = store.plan, frames.every_run(store)
    records = store.records()
    return environment.get_template("page.html").render(
        name=plan["experiment"]["name"],
        question=plan["question"],
        answer=answer(comparison),
        facts=_facts(store),
        warnings=warned.warnings(store),
        sections=[
            {
                "title": section.title,
                "note": section.note,
                "columns": list(section.cells.columns),
                "rows": section.cells.astype(str).to_numpy().tolist(),
                "verdict_at": _verdict_at(section.cells),
                "words": [_in_words(section.cells[column]) for column in section.cells],
                "baseline": [
                    bool(b) for b in section.frame.get("baseline", [0] * len(section.frame))
                ],
            }
            for section in found
        ],
        figures=drawn,
        run_columns=_RUN_COLUMNS,
        run_rows=run_rows(runs),
        speed_rows=[
            (row.label, f"{row.metric}: {row.error}", "", "", "")
            if row.error
            else (row.label, row.name_, *(f"{v:,.4g}" for v in (row.value, row.low, row.high)))
            for row in frames.rows(frames.speeds(store).rename(columns={"name": "name_"}))
        ],
        recipes=[{"label": v["label"], "text": to_json(v)} for v in plan["variants"]],
        experiment=store.experiment_text,
        environment=to_json(
            {"compute": store.compute, "environment": records[0].environment if records else None}
        ),
    )


def _in_words(column: "pd.Series[str]") -> bool:
    """Return whether a column is read as text: then it stands flush left."""
    return not any(str(cell)[:1].isdigit() or str(cell)[:1] in "+-" for cell in column if cell)


def _verdict_at(cells: pd.DataFrame) -> int:
    """Return the column that says what was found; -1 where there is none."""
    return next((i for i, c in enumerate(cells.columns) if c in ("verdict", "finding")), -1)


def run_rows(runs: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the runs as cells, in the order of `_RUN_COLUMNS`."""
    split = frames.reported_split(runs)

    def cell(row: Any, column: str, form: str, scale: float = 1.0, unit: str = "") -> str:
        value = getattr(row, column, math.nan)
        return tables.number(float(value) / scale, form, unit)

    return [
        (
            str(row.label),
            str(row.point),
            str(row.seed),
            str(row.outcome),
            cell(row, f"{split}_loss_nats", ".4f"),
            cell(row, f"{split}_loss_se_nats", ".4f"),
            cell(row, f"{split}_bits_per_byte", ".4f"),
            cell(row, "train_s", ".1f"),
            cell(row, "peak_memory_bytes", ".0f", 2**20, " MiB"),
            str(row.reason),
        )
        for row in frames.rows(runs)
    ]
