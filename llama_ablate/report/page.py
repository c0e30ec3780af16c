"""The report's files: tables, figures, Markdown, and one page that needs nothing beside itself.

The first screen of the page is question, answer, limits, one picture and one table in the same
order; all else is folded below to a line. Tables are sorted, filtered and copied by the page's own
script. Two libraries were measured for that: Tabulator 6.5 is 165 kB in a page, a sixth of it, and
takes a page's tables, with their heads and links, for its own elements (56 rows in 0.2 s);
simple-datatables 10.3 is under the LGPL, which binds whoever hands a page on.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text
from llama_ablate.evidence import written
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.findings.frames import Frames
from llama_ablate.report import columns, details, embedding, plots, tables
from llama_ablate.report.charts import chart
from llama_ablate.report.glossary import GLOSSARY
from llama_ablate.report.headline import answer, facts, further, headline
from llama_ablate.report.paper import ascii_name, caption
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import Picture
from llama_ablate.report.sections import FIGURES, Section
from llama_ablate.results import FINAL

#: Columns of the table of runs: head, column of the frame, format, scale and unit.
_RUN_NUMBERS: dict[str, tuple[str, str, float, str]] = {
    "loss (nats)": ("{split}_loss_nats", ".4f", 1, ""),
    "± (text)": ("{split}_loss_se_nats", ".4f", 1, ""),
    "bits/byte": ("{split}_bits_per_byte", ".4f", 1, ""),
    "train (s)": ("train_s", ".1f", 1, ""),
    "peak memory": ("peak_memory_bytes", ".0f", 2**20, " MiB"),
}
_LONG = 44  # letters of a cell beyond which it may break
_JUDGED = ("verdict", "test result", "result", "outcome")
#: What is drawn of a run; in at most 50 points, half of them with a held-out loss, with both ends.
_CURVE, _POINTS = ("tokens", "train_loss_nats", "grad_norm", "validation_loss_nats"), 24
_MOST = 7  # columns of a table that has leading ones, before a reader asks for more


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
    note: str = ""
    table: str = ""
    short: int = 0
    answer: str = ""
    #: What columns hold, by their heads.
    about: Mapping[str, str] = field(default_factory=dict)
    #: Of each row: whether it is the baseline's, its variant or "", and where its link leads.
    baseline: Sequence[bool] = ()
    variants: Sequence[str] = ()
    links: Sequence[str] = ()
    link_at: int = 0

    @cached_property
    def words(self) -> list[bool]:
        """Whether each column is read as text: then it stands flush left."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [not any(re.match(r"[\d+-]", cell) for cell in column) for column in columns]

    @cached_property
    def alike(self) -> dict[int, str]:
        """The columns that say one thing in all rows that say anything there, and what."""
        found = {}
        for at, head in enumerate(self.columns[1:], 1):
            own = [row[at] for row in self.rows if row[at]]
            if len(own) > 1 and len({*own}) == 1 and head not in _JUDGED and len(own[0]) <= _LONG:
                found[at] = own[0]
        return found

    @cached_property
    def more(self) -> list[bool]:
        """Whether each column is hidden until a reader asks for it."""
        leading = range(self.short or len(self.columns))
        first = [at for at in leading if at not in self.alike][: _MOST if self.short else None]
        return [at not in first for at in range(len(self.columns))]

    @property
    def verdicts(self) -> list[str]:
        """The verdicts of its rows, but for the baseline's."""
        at = [at for at, head in enumerate(self.columns) if head in _JUDGED][:1]
        words = [row[i] for row in self.rows for i in at if row[i] not in ("", "baseline")]
        return [re.split("[,:]", word)[0] for word in words]

    def kind(self, column: int, cell: str) -> str:
        """Return the classes of a cell: a verdict's name, and how text stands."""
        judged = cell and self.columns[column] in _JUDGED
        verdict = cell.split(maxsplit=1)[0].rstrip(":") if judged else ""
        word = "why" if len(cell) > _LONG else "word long" if len(cell) > _LONG // 2 else "word"
        return f"{verdict} {word if self.words[column] else ''}".strip()

    @classmethod
    def of(cls, cells: pd.DataFrame) -> "Shown":
        """Return a data frame of cells, without the columns that have nothing to show."""
        cells = cells.astype(str)
        cells = cells.loc[:, (cells != "").any()] if len(cells) else cells
        columns, rows = list(map(str, cells.columns)), cells.to_numpy().tolist()
        return cls(columns, rows, variants=list(cells.get("variant", ())))


@dataclass(frozen=True)
class Group:
    """Sections of one kind, one for each table, with the charts beside them."""

    id: str
    title: str
    charts: Sequence[Mapping[str, Any]]
    sections: Sequence[Shown] = ()

    @property
    def answer(self) -> str:
        """What its sections show, in a line: in their words, else their verdicts, counted."""
        said = dict.fromkeys(section.answer for section in self.sections if section.answer)
        verdicts = Counter(word for section in self.sections for word in section.verdicts)
        counted = ", ".join(f"{count} {word}" for word, count in verdicts.items())
        noted = [section.note.partition(". ")[0] for section in self.sections if section.note]
        return " ".join(said) or counted or " ".join(noted[:1])


def write(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], folder: Path
) -> Path:
    """Write the report of an experiment to a folder; return the path of its page."""
    for section in sections:
        base = disk.below(folder, "tables", slug(section.title, 160))
        label = ascii_name(f"{frames.plan.experiment.name} {section.title}")
        told = (caption(frames, section), base, section.short, section.note, label)
        tables.save(section.cells, section.frame, *told)
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
    experiment = frames.plan.experiment
    compute = frames.plan.compute.to_dict() if frames.plan.compute else None
    shown = [one for one in pictures if one.part.interactive]
    made = [Made(one.name, one.table, chart(one.part, one.about), one.about) for one in shown]
    groups = _groups(sections, shown, figures)
    style = packaged("page.css")
    library, script = packaged("vega/vega.min.js"), packaged("page.js")
    left = [figure for figure in figures if all(figure.name != one.name for one in shown)]
    groups.append(Group("runs", "Runs", (), [_runs(frames, folder)]))
    if (speeds := _speeds(frames)).rows:
        groups.append(Group("measured", "Speed and memory", (), [speeds]))
    base = frames.table.plan.baseline
    recipe = [[key, entry_text(value)] for key, value in base.model.items()]
    return template("page.html").generate(
        name=experiment.name,
        question=experiment.question,
        answer=answer(frames),
        further=further(frames),
        facts=facts(frames),
        warnings=warnings,
        policy=embedding.policy(style, [library, script] if made else []),
        style=style,
        library=embedding.packed(library),
        script=script,
        tables=[table.plan.name for table in frames.tables],
        groups=groups,
        figures=left,
        recipes=_recipes(frames),
        baseline=base.label,
        recipe=Shown.of(pd.DataFrame(recipe, columns=["key", "value"])),
        experiment=frames.experiment_text,
        environment=to_json({"compute": compute, "environment": frames.environment}),
        glossary=GLOSSARY,
        data=embedding.packed(embedding.charts(made, _curves(frames))) if made else "",
    )


def template(name: str) -> jinja2.Template:
    """Return a template of this package, which escapes what it is given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def packaged(name: str) -> str:
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
    shared = {one.name for one in fields(Shown)} & vars(section).keys()
    return replace(Shown.of(section.cells), **{name: vars(section)[name] for name in shared})


def _runs(frames: Frames, folder: Path) -> Shown:
    """Return every run with its numbers, and a link to its record where it has a folder."""
    runs = frames.runs
    table_of = {run.id: table.plan.name for table in reversed(frames.tables) for run in table.runs}
    shown = [
        (run.label, run.id, table_of[run.id], run.point, str(run.seed), run.ended) for run in runs
    ]
    heads = ["variant", "run", "table", "tuned to", "seed", "outcome"]
    cells = pd.DataFrame(shown, columns=heads)
    for head, (name, form, scale, unit) in _RUN_NUMBERS.items():
        column = name.format(split=frames.table.split)
        values = [run.number(column) for run in runs]
        if not all(map(math.isnan, values)):
            cells[head] = [written.number(value / scale, form, unit) for value in values]
    cells["reason"] = [run.reason for run in runs]
    places = [frames.folder(run.id) for run in runs]
    links = [
        quote(os.path.relpath(place / "record.json", folder).replace(os.sep, "/")) if place else ""
        for place in places
    ]
    return replace(Shown.of(cells), links=links, link_at=1)


def _curves(frames: Frames) -> dict[str, dict[str, object]]:
    """Return the curve of each finished run, by its id, with the tables that have it.

    Of a long curve, `of` points, some are left out: evenly, and of those with a held-out loss by
    themselves, so that both are drawn whole.
    """
    found, placed = dict[str, dict[str, object]](), defaultdict[str, list[str]](list)
    for table in frames.tables:
        for run in (run.id for run in table.runs if run.outcome in FINAL):
            placed[run].append(table.plan.name)
            if run in found:  # of a table before
                continue
            curve = table.curve(run)
            every = range(len(curve))
            read = [at for at in every if math.isfinite(curve[at][_CURVE[-1]])]
            thin = [at for of in (every, read) for at in (*of[:: len(of) // _POINTS + 1], *of[-1:])]
            points = [
                [embedding.plain(curve[at].get(k), 4) for k in _CURVE] for at in sorted({*thin})
            ]
            found[run] = {"tables": placed[run], "of": len(curve), "points": points}
    return found


def _speeds(frames: Frames) -> Shown:
    """Return every number of the variants themselves, with the lowest and highest round."""
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
    said = "Every number measured of variants, with the lowest and highest turn."
    return replace(Shown.of(cells), answer=said)


def _recipes(frames: Frames) -> Shown:
    """Return what each variant of each table changes of its baseline's recipe."""
    shown = []
    for table in frames.tables:
        for variant in table.plan.variants:
            changed = details.changes(table, table.plan.baseline, variant)
            for key, (old, new) in changed.items():
                both = map(entry_text, details.without_shared(old, new))
                shown.append([variant.label, table.plan.name, key, *both])
    columns = ["variant", "table", "key", "baseline", "variant's"]
    return Shown.of(pd.DataFrame(shown, columns=columns))
