"""The report's files: tables, figures, Markdown, and one self-contained HTML page."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.report import columns, drawing, tables
from llama_ablate.report.figures import FIGURES
from llama_ablate.report.frames import Frames, rows
from llama_ablate.report.headline import facts, headline
from llama_ablate.report.sections import Section

#: Columns of the table of runs: head, column of the frame, format, scale and unit.
_RUN_NUMBERS: dict[str, tuple[str, str, float, str]] = {
    "loss (nats)": ("{split}_loss_nats", ".4f", 1, ""),
    "± (text)": ("{split}_loss_se_nats", ".4f", 1, ""),
    "bits/byte": ("{split}_bits_per_byte", ".4f", 1, ""),
    "train (s)": ("train_s", ".1f", 1, ""),
    "peak memory": ("peak_memory_bytes", ".0f", 2**20, " MiB"),
}


@dataclass(frozen=True)
class Drawn:
    """A figure of the report on disk."""

    name: str
    caption: str
    svg: Path


def write(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], folder: Path
) -> Path:
    """Write the report of an experiment to a folder; return the path of its page."""
    caption = f"{frames.plan.experiment.name}: {frames.plan.experiment.question}".strip(": ")
    for section in sections:
        base = folder / "tables" / slug(section.title, 160)
        title = f"{caption} {section.title}"
        tables.save(section.cells, section.frame, title, base, section.short)
    for name, make in columns.FILES.items():
        tables.save_csv(make(frames), folder / "tables" / f"{name}.csv")
    figures = _draw(frames, folder / "figures")
    write_text(folder / "report.md", _markdown(frames, sections, warnings, figures))
    page = folder / "report.html"
    write_text(page, _html(frames, sections, warnings, figures))
    return page


def _draw(frames: Frames, folder: Path) -> list[Drawn]:
    """Draw every figure that has something to show."""
    figures = []
    for made in FIGURES.make(frames):
        first = made.table in ("", frames.table.plan.name)
        name = made.name if first else f"{made.name}_{slug(made.table, 160)}"
        svg, _png = drawing.save(made.part, folder / name)
        figures.append(Drawn(name, drawing.caption(made), svg))
    return figures


def _markdown(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], figures: Sequence[Drawn]
) -> str:
    experiment = frames.plan.experiment
    lines = [f"# {tables.literal(experiment.name)}", ""]
    for text in (experiment.question, headline(frames), facts(frames)):
        lines += [tables.literal(text), ""]
    lines += [f"> {tables.literal(warning)}" for warning in warnings]
    for section in sections:
        title = f"## {tables.literal(section.title)}"
        lines += ["", title, "", tables.markdown(section.cells), section.note, ""]
    lines += [f"![{figure.name}](figures/{figure.name}.png)\n" for figure in figures]
    return "\n".join(lines)


def _html(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], figures: Sequence[Drawn]
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    experiment = frames.plan.experiment
    compute = frames.plan.compute.to_dict() if frames.plan.compute else None
    return environment.get_template("page.html").render(
        name=experiment.name,
        question=experiment.question,
        answer=headline(frames),
        facts=facts(frames),
        warnings=warnings,
        sections=[_shown(section) for section in sections],
        figures=[
            {
                "title": figure.name.replace("_", " "),
                "caption": figure.caption,
                "svg": base64.b64encode(figure.svg.read_bytes()).decode(),
            }
            for figure in figures
        ],
        runs=_run_cells(frames),
        speeds=_speed_cells(frames),
        architectures=[
            {"label": variant.label, "text": to_json(variant.model_dump(mode="json"))}
            for variant in frames.table.plan.variants
        ],
        experiment=frames.experiment_text,
        environment=to_json({"compute": compute, "environment": frames.environment}),
    )


def _shown(section: Section) -> Mapping[str, Any]:
    """Return what the template needs of a section."""
    columns = list(section.cells.columns)
    verdicts = ("verdict", "test result", "result")
    baseline = section.frame.get("baseline")
    return {
        "title": section.title,
        "note": section.note,
        "folded": section.folded,
        "columns": columns,
        "rows": section.cells.astype(str).to_numpy().tolist(),
        "verdict_at": next((i for i, column in enumerate(columns) if column in verdicts), -1),
        "words": [_in_words(section.cells[column]) for column in section.cells],
        "baseline": [False] * len(section.cells) if baseline is None else list(map(bool, baseline)),
    }


def _in_words(column: "pd.Series[str]") -> bool:
    """Return whether a column is read as text: then it stands flush left."""
    return not any(str(cell)[:1].isdigit() or str(cell)[:1] in "+-" for cell in column if cell)


def _run_cells(frames: Frames) -> pd.DataFrame:
    """Return every run of the experiment with its numbers written as people read them."""
    runs = frames.runs
    cells = runs[["label", "point", "seed", "outcome"]].astype(str)
    cells.columns = pd.Index(["variant", "tuned to", "seed", "outcome"])
    for head, (name, form, scale, unit) in _RUN_NUMBERS.items():
        column = name.format(split=frames.table.split)
        values = runs.get(column, pd.Series(math.nan, index=runs.index)).astype(float)
        cells[head] = [tables.number(value / scale, form, unit) for value in values]
    cells["reason"] = runs["reason"]
    return cells


def _speed_cells(frames: Frames) -> list[tuple[str, ...]]:
    """Return every number of the first table's variants, with the lowest and highest round."""
    metrics, attempts = frames.table.metrics, frames.table.attempts
    measured = metrics[metrics["run"] == ""]
    failed = attempts[(attempts["run"] == "") & (attempts["error"] != "")]
    cells = [
        (label, name, *(f"{v:,.4g}" for v in (value, min(samples), max(samples))))
        for label, name, value, samples in zip(
            *(measured[column] for column in ("label", "name", "value", "samples")), strict=True
        )
    ]
    return cells + [(row.label, f"{row.metric}: {row.error}", "", "", "") for row in rows(failed)]
