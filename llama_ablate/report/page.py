"""The report's files: tables, figures, Markdown, and one page that needs nothing beside itself."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.registry import entry_text
from llama_ablate.evidence import written
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.findings.frames import Frames
from llama_ablate.report import columns, details, embedding, plots, tables
from llama_ablate.report.charts import chart
from llama_ablate.report.glossary import GLOSSARY
from llama_ablate.report.headline import facts, headline
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import Picture
from llama_ablate.report.sections import FIGURES, Section

#: Columns of the table of runs: head, column of the frame, format, scale and unit.
_RUN_NUMBERS: dict[str, tuple[str, str, float, str]] = {
    "loss (nats)": ("{split}_loss_nats", ".4f", 1, ""),
    "± (text)": ("{split}_loss_se_nats", ".4f", 1, ""),
    "bits/byte": ("{split}_bits_per_byte", ".4f", 1, ""),
    "train (s)": ("train_s", ".1f", 1, ""),
    "peak memory": ("peak_memory_bytes", ".0f", 2**20, " MiB"),
}
_LONG = 44  # letters of a cell beyond which it may break
_JUDGED = ("verdict", "test result", "result")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the report on disk."""

    name: str
    table: str
    title: str
    caption: str
    svg: Path

    @property
    def source(self) -> str:
        """The figure as the address of an image."""
        return embedding.image(self.svg.read_text("utf-8"))


@dataclass(frozen=True)
class Shown:
    """A table as the page's template needs it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    table: str = ""
    folded: bool = False
    short: int = 0
    #: Of each row: whether it is the baseline's, its variant or "", and where its link leads.
    baseline: Sequence[bool] = ()
    variants: Sequence[str] = ()
    links: Sequence[str] = ()
    link_at: int = 0
    words: Sequence[bool] = field(init=False)

    def __post_init__(self) -> None:
        """Fill in what is not said of the rows, and find the columns that are read as text."""
        for name, empty in (("baseline", False), ("variants", "")):
            if not getattr(self, name):
                object.__setattr__(self, name, [empty] * len(self.rows))
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        object.__setattr__(self, "words", [_in_words(column) for column in columns])

    def kind(self, column: int, cell: str) -> str:
        """Return the classes of a cell: a verdict's name, and how text stands."""
        judged = cell and self.columns[column] in _JUDGED
        verdict = cell.split(maxsplit=1)[0].rstrip(":") if judged else ""
        word = "why" if len(cell) > _LONG else "word"
        return f"{verdict} {word if self.words[column] else ''}".strip()

    @classmethod
    def of(cls, cells: pd.DataFrame, **more: Any) -> "Shown":
        """Return a data frame of cells."""
        return cls(list(map(str, cells.columns)), cells.astype(str).to_numpy().tolist(), **more)


@dataclass(frozen=True)
class Group:
    """Sections of one kind, one for each table, with the charts beside them."""

    id: str
    title: str
    charts: Sequence[Mapping[str, Any]]
    sections: Sequence[Shown] = ()


def write(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], folder: Path
) -> Path:
    """Write the report of an experiment to a folder; return the path of its page."""
    caption = f"{frames.plan.experiment.name}: {frames.plan.experiment.question}".strip(": ")
    measured = facts(frames)
    for section in sections:
        base = disk.below(folder, "tables", slug(section.title, 160))
        title = f"{caption} {section.title}: {measured}"
        tables.save(section.cells, section.frame, title, base, section.short, section.note)
    for name, make in columns.FILES.items():
        tables.save_csv(make(frames), disk.below(folder, "tables", f"{name}.csv"))
    made = list(FIGURES.make(frames))
    figures = _draw(frames, made, folder / "figures")
    write_text(folder / "report.md", _markdown(frames, sections, warnings, figures))
    page = folder / "report.html"
    pieces = _html(frames, sections, warnings, made, figures, folder)

    def write_page(file: disk.Writer) -> None:
        for piece in pieces:
            file.write(piece.encode("utf-8"))

    disk.replace(page, write_page)
    return page


def _draw(frames: Frames, made: Sequence[Made[Picture]], folder: Path) -> list[DrawnFigure]:
    """Draw every picture to its files."""
    figures = []
    for one in made:
        first = one.table in ("", frames.table.plan.name)
        name = one.name if first else f"{one.name}_{slug(one.table, 160)}"
        figure = plots.draw(one.part)
        svg, _png = plots.save(figure, disk.below(folder, name))
        figure.clear()  # its thousands of lines refer to one another
        title = name.replace("_", " ")
        figures.append(DrawnFigure(one.name, one.table, title, plots.caption(one), svg))
    return figures


def _markdown(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    figures: Sequence[DrawnFigure],
) -> str:
    experiment = frames.plan.experiment
    lines = [f"# {tables.literal(experiment.name)}", ""]
    for text in (experiment.question, headline(frames), facts(frames)):
        lines += [tables.literal(text), ""]
    lines += [f"> {tables.literal(warning)}" for warning in warnings]
    for section in sections:
        title = f"## {tables.literal(section.title)}"
        lines += ["", title, "", tables.markdown(section.cells), section.note, ""]
    lines += [f"![{figure.svg.stem}](figures/{figure.svg.stem}.png)\n" for figure in figures]
    return "\n".join(lines)


def _html(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    pictures: Sequence[Made[Picture]],
    figures: Sequence[DrawnFigure],
    folder: Path,
) -> Iterable[str]:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    experiment = frames.plan.experiment
    compute = frames.plan.compute.to_dict() if frames.plan.compute else None
    shown = [one for one in pictures if one.part.interactive]
    made = [Made(one.name, one.table, chart(one.part, one.about), one.about) for one in shown]
    groups = _groups(sections, shown, figures)
    style = _packaged("page.css")
    library, script = _packaged("vega/vega.min.js"), _packaged("page.js")
    left = [figure for figure in figures if all(figure.name != one.name for one in shown)]
    ends = {"figures": "Figures"} if left else {}
    ends |= {"runs": "Runs", "recipes": "Recipes", "glossary": "Words"}
    base = frames.table.plan.baseline
    return environment.get_template("page.html").generate(
        name=experiment.name,
        question=experiment.question,
        answer=headline(frames),
        facts=facts(frames),
        warnings=warnings,
        policy=embedding.policy(style, [library, script] if made else []),
        style=style,
        library=embedding.packed(library),
        script=script,
        contents=[{"id": group.id, "title": group.title} for group in groups]
        + [{"id": id_, "title": title} for id_, title in ends.items()],
        tables=[table.plan.name for table in frames.tables],
        groups=groups,
        figures=left,
        runs=_runs(frames, folder),
        speeds=_speeds(frames),
        recipes=_recipes(frames),
        baseline=base.label,
        recipe=Shown(
            ["key", "value"], [[key, entry_text(value)] for key, value in base.model.items()]
        ),
        experiment=frames.experiment_text,
        environment=to_json({"compute": compute, "environment": frames.environment}),
        glossary=GLOSSARY,
        data=embedding.charts(made) if made else "",
    )


def _packaged(name: str) -> str:
    """Return a file of this package as text."""
    return resources.files("llama_ablate.report").joinpath(name).read_text("utf-8")


def _groups(
    sections: Sequence[Section], made: Sequence[Made[Picture]], figures: Sequence[DrawnFigure]
) -> list[Group]:
    """Put sections of one kind and their charts together; charts of no section come last."""
    keys = list(dict.fromkeys(section.key for section in sections))
    charts: dict[str, dict[str, Any]] = {}  # by section, then by the chart's name
    for one in made:
        beside = one.part.section if one.part.section in keys else "charts"
        charts.setdefault(beside, {})[one.name] = {
            "name": one.name,
            "description": one.name.replace("_", " "),
            "caption": one.about,
            "figures": [f for f in figures if f.name == one.name],
        }
    groups = []
    for key in keys:
        own = [section for section in sections if section.key == key]
        title = own[0].title.removesuffix(f": {own[0].table}")
        drawn = list(charts.pop(key, {}).values())
        groups.append(Group(slug(key, 80), title, drawn, [_shown(section) for section in own]))
    return groups + [Group(key, "Charts", list(own.values())) for key, own in charts.items()]


def _shown(section: Section) -> Shown:
    """Return a section as the template needs it."""
    return Shown.of(
        section.cells,
        title=section.title,
        note=section.note,
        table=section.table,
        folded=section.folded,
        short=section.short,
        baseline=section.baseline,
        variants=section.variants,
    )


def _in_words(column: Iterable[str]) -> bool:
    """Return whether a column is read as text: then it stands flush left."""
    return not any(cell[:1].isdigit() or cell[:1] in "+-" for cell in column if cell)


def _runs(frames: Frames, folder: Path) -> Shown:
    """Return every run with its numbers, and a link to its record where it has a folder."""
    runs = frames.runs
    table_of = {run.id: table.plan.name for table in reversed(frames.tables) for run in table.runs}
    shown = [(run.label, run.id, run.point, str(run.seed), run.ended) for run in runs]
    cells = pd.DataFrame(shown, columns=["variant", "run", "tuned to", "seed", "outcome"])
    if len(frames.tables) > 1:
        cells.insert(2, "table", [table_of[run.id] for run in runs])
    if not any(run.point for run in runs):
        cells = cells.drop(columns="tuned to")
    for head, (name, form, scale, unit) in _RUN_NUMBERS.items():
        column = name.format(split=frames.table.split)
        values = [run.number(column) for run in runs]
        if not all(map(math.isnan, values)):
            cells[head] = [written.number(value / scale, form, unit) for value in values]
    if any(run.reason for run in runs):
        cells["reason"] = [run.reason for run in runs]
    places = [frames.folder(run.id) for run in runs]
    links = [
        quote(os.path.relpath(place / "record.json", folder).replace(os.sep, "/")) if place else ""
        for place in places
    ]
    return Shown.of(cells, variants=[run.label for run in runs], links=links, link_at=1)


def _speeds(frames: Frames) -> Shown:
    """Return every number of the variants themselves, with the lowest and highest round."""
    several = len(frames.tables) > 1
    shown = [
        [row.label, row.table, row.name] + [f"{v:,.4g}" for v in (row.value, *row.ends)]
        for table in frames.tables
        for row in table.metrics.of_variants
    ]
    shown += [
        [row.label, row.table, f"{row.metric}: {row.error}", "", "", ""]
        for table in frames.tables
        for row in table.attempts
        if row.error and not row.run
    ]
    cells = pd.DataFrame(
        shown, columns=["variant", "table", "measure", "median", "lowest", "highest"]
    )
    variants = list(cells["variant"])
    return Shown.of(cells if several else cells.drop(columns="table"), variants=variants)


def _recipes(frames: Frames) -> Shown:
    """Return what each variant of each table changes of its baseline's recipe."""
    shown, variants = [], []
    for table in frames.tables:
        for variant in table.plan.variants:
            changed = details.changes(table, table.plan.baseline, variant)
            for key, (old, new) in changed.items():
                both = map(entry_text, details.without_shared(old, new))
                shown.append([variant.label, table.plan.name, key, *both])
                variants.append(variant.label)
    cells = pd.DataFrame(shown, columns=["variant", "table", "key", "baseline", "variant's"])
    if len(frames.tables) == 1:
        cells = cells.drop(columns="table")
    return Shown.of(cells, variants=variants)
