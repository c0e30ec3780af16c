"""Files of a report: tables, figures, Markdown, and a self-contained HTML page.

The first screen of the page shows question, answer, limits, and a picture and a table with rows in
the same order. The loss curves follow; each further part is folded to a line. Two pictures are
embedded as SVG elements; the others are compressed, and unpacked when their part is opened.
"""

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text
from llama_ablate.evidence import written
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import DIFFERENCE, grouped
from llama_ablate.report import columns, details, embedding, plots, tables
from llama_ablate.report.drawing import Drawing, shorten_names
from llama_ablate.report.glossary import GLOSSARY
from llama_ablate.report.headline import answer, further, headline
from llama_ablate.report.paper import ascii_name, caption, describe_setup
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import FIGURES, Picture, Style, key_variants, style_variants
from llama_ablate.report.pictures import LOG, LOSS_CURVES, thin
from llama_ablate.report.sections import Section

#: Numbers in the table of runs, by column title: column of the frame, format, divisor and unit.
_RUN_NUMBERS: dict[str, tuple[str, str, float, str]] = {
    "loss (nats)": ("{split}_loss_nats", ".4f", 1, ""),
    "± (text)": ("{split}_loss_se_nats", ".4f", 1, ""),
    "bits/byte": ("{split}_bits_per_byte", ".4f", 1, ""),
    "train (s)": ("train_s", ".1f", 1, ""),
    "peak memory": ("peak_memory_bytes", ".0f", 2**20, " MiB"),
}
_LONG = 44  # characters beyond which a cell's text may break into lines
_JUDGED = ("verdict", "test result", "result", "outcome")
_DECIDING, _SPEED = (DIFFERENCE, *_JUDGED), "speed"
#: Limits before a reader expands a table: most leading columns; and for the first screen's table,
#: in pixels, the width of the table, of a letter, and of the padding of a cell.
_MAX_COLUMNS, _WIDTH, _LETTER, _AROUND = 7, 650, 7.8, 15
_MAX_LETTERS = 26  # most letters of a name in the first screen's table


@dataclass(frozen=True)
class PageFigure:
    """Figure of a report, with its file names and its HTML."""

    name: str
    table: str
    #: File name without ending, and id of the figure's element in the page.
    stem: str
    section: str
    caption: str
    #: HTML in the page: SVG pictures, or the reason for a missing picture; "" if compressed.
    html: str = ""
    #: Full names by the shortened names in the picture.
    shortened: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Title of the figure, derived from its file name."""
        return self.stem.replace("_", " ")


@dataclass(frozen=True)
class ShownTable:
    """Table for the page's HTML template."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    table: str = ""
    short: int = 0
    answer: str = ""
    #: Descriptions of columns by their titles.
    about: Mapping[str, str] = field(default_factory=dict)
    #: For each row: whether it is the baseline, its variant or "", and the target of its link.
    baseline: Sequence[bool] = ()
    variants: Sequence[str] = ()
    links: Sequence[str] = ()
    link_at: int = 0
    #: Most pixels for the leading columns together; 0 for no limit.
    room: float = 0

    @cached_property
    def words(self) -> list[bool]:
        """Flags for the columns: True for a text column, which is aligned left."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [not any(re.match(r"[\d+-]", cell) for cell in column) for column in columns]

    @cached_property
    def alike(self) -> dict[int, str]:
        """Common value of each column whose rows all have the same value, by column index."""
        columns_alike = {}
        for at, head in enumerate(self.columns[1:], 1):
            texts = [row[at] for row in self.rows if row[at]]
            if (
                len(texts) > 1
                and len({*texts}) == 1
                and head not in _JUDGED
                and len(texts[0]) <= _LONG
            ):
                columns_alike[at] = texts[0]
        return columns_alike

    @cached_property
    def more(self) -> list[bool]:
        """Flags for the columns: True if hidden until the reader expands the table."""
        leading = [at for at in range(self.short or len(self.columns)) if at not in self.alike]
        columns_shown = leading[:_MAX_COLUMNS] if self.short else leading
        if self.room:
            by_rank = sorted(columns_shown, key=self._rank)
            widths = itertools.accumulate(map(self._measure, by_rank))
            columns_shown = [
                at for at, all_ in zip(by_rank, widths, strict=True) if all_ < self.room
            ]
        return [at not in columns_shown for at in range(len(self.columns))]

    def _rank(self, column: int) -> int:
        """Return a column's priority when the width is limited; 0 is the highest."""
        head = self.columns[column]
        if column == 0 or head in _DECIDING:
            return 0
        return 1 if head == _SPEED else 3 if head == "n" else 2

    def _measure(self, column: int) -> float:
        """Estimate a column's width in pixels from its cells and its title."""
        words = (len(word) + 3 for word in self.columns[column].split())
        mark = 0 if column else 22  # the line in a variant's colour before its name
        return mark + _AROUND + _LETTER * max(*words, *(len(row[column]) for row in self.rows))

    @property
    def verdicts(self) -> list[str]:
        """Verdicts of the table's rows without the baseline."""
        at = [at for at, head in enumerate(self.columns) if head in _JUDGED][:1]
        words = [row[i] for row in self.rows for i in at if row[i] not in ("", "baseline")]
        return [re.split("[,:]", word)[0] for word in words]

    def kind(self, column: int, cell: str) -> str:
        """Return the CSS classes of a cell: its verdict and alignment."""
        judged = cell and self.columns[column] in _JUDGED
        verdict = cell.split(maxsplit=1)[0].rstrip(":,") if judged else ""
        word = "why" if len(cell) > _LONG else "word long" if len(cell) > _LONG // 2 else "word"
        return f"{verdict} {word if self.words[column] else ''}".strip()

    @classmethod
    def of(cls, cells: pd.DataFrame) -> "ShownTable":
        """Make a table from a data frame of formatted cells, without its empty columns."""
        cells = cells.astype(str)
        cells = cells.loc[:, (cells != "").any()] if len(cells) else cells
        columns, rows = list(map(str, cells.columns)), cells.to_numpy().tolist()
        return cls(columns, rows, variants=list(cells.get("variant", ())))


@dataclass(frozen=True)
class Group:
    """Foldable part of the page: the sections of one kind and their figures.

    A kind of section, such as `comparison`, has a section for each comparison table.
    """

    id: str
    title: str
    figures: Sequence[PageFigure] = ()
    sections: Sequence[ShownTable] = ()
    said: str = ""

    @property
    def lead(self) -> str:
        """Name of the figure that is shown with the group's tables, or ""."""
        return self.figures[0].name if self.figures else ""

    @property
    def answer(self) -> str:
        """Summary of the group: answers of its sections, or else counts of their verdicts."""
        said = dict.fromkeys(section.answer for section in self.sections if section.answer)
        verdicts = Counter(word for section in self.sections for word in section.verdicts)
        counted = ", ".join(f"{count} {word}" for word, count in verdicts.items())
        noted = [section.note.partition(". ")[0] for section in self.sections if section.note]
        return self.said or " ".join(said) or counted or " ".join(noted[:1])


def write(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], folder: Path
) -> Path:
    """Write all files of a report to a folder; return the HTML page's path."""
    for section in sections:
        base = disk.below(folder, "tables", slug(section.title, 160))
        label = ascii_name(f"{frames.plan.experiment.name} {section.title}")
        header_values = (caption(frames, section), base, section.short, section.note, label)
        tables.save(section.cells, section.frame, *header_values)
    for name, make in columns.FILES.items():
        tables.save_csv(make(frames), disk.below(folder, "tables", f"{name}.csv"))
    pictures = PagePictures(frames, sections)
    figures = list(pictures.draw(folder / "figures"))
    write_text(folder / "report.md", _markdown(frames, sections, warnings, figures))
    return _write_page(folder, _html(frames, sections, warnings, figures, pictures, folder))


def _write_page(folder: Path, pieces: Iterable[str]) -> Path:
    page = folder / "report.html"

    def write_page(file: disk.Writer) -> None:
        for piece in pieces:
            file.write(piece.encode("utf-8"))

    disk.replace(page, write_page)
    return page


class PagePictures:
    """Pictures of a page, each drawn once for its files and for the page."""

    def __init__(self, frames: Frames, sections: Sequence[Section]) -> None:
        self._frames, self.sheet = frames, embedding.Sheet()
        self._sections = [section.key for section in sections]
        #: Short keys of variants, effects and path steps, by their names in table rows.
        self.keys = key_variants(frames.plan)
        for name in (name for section in sections for name in section.variants if name):
            self.keys.setdefault(name, f"v{len(self.keys)}")
        #: SVG elements that are compressed in the page, by the ids of their figures.
        self.packed: dict[str, str] = {}
        self._has_lead = False

    def draw(self, folder: Path) -> Iterator[PageFigure]:
        """Draw each picture to files, and yield its figure for the page."""
        first = self._frames.table.plan.name
        for product in FIGURES.make(self._frames):
            is_first = product.table in ("", first)
            stem = product.name if is_first else f"{product.name}_{slug(product.table, 160)}"
            section = product.part.section if product.part.section in self._sections else ""
            table = product.table if len(self._frames.tables) > 1 else ""
            said = " ".join(filter(None, (product.about, product.part.note)))
            figure = PageFigure(product.name, table, stem, section, said)
            in_place = is_first and self._stands(figure)
            try:
                yield self._embed(figure, product, folder, in_place=in_place)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                why = f"This figure could not be drawn: {type(error).__name__}: {error}"
                yield replace(figure, html=f"<p>{escape(why)}</p>")

    def _stands(self, figure: PageFigure) -> bool:
        """Return whether the page embeds a figure uncompressed.

        True for the first figure of the first section, and for the loss curves.
        """
        is_lead = not self._has_lead and figure.section == (self._sections or [""])[0]
        self._has_lead |= is_lead
        return is_lead or figure.name == LOSS_CURVES

    def _embed(
        self, figure: PageFigure, made: Made[Picture], folder: Path, *, in_place: bool
    ) -> PageFigure:
        """Draw a figure for the page, and write its files to `folder`.

        A figure that is shown at once (`in_place`) is not compressed, and is also drawn in a
        phone's width unless it shows loss curves.
        """
        drawing = plots.draw(made.part, plots.WIDTH, self.keys)
        file, _png = plots.save(drawing.figure, disk.below(folder, figure.stem))
        svg = file.read_bytes()
        has_two = in_place and figure.name != LOSS_CURVES
        width = "broad" if has_two else "only"
        # Compressed figures with few elements get a second decimal, which adds few bytes.
        digits = 1 if in_place or figure.name.startswith(LOSS_CURVES) else 2
        html = self._add(drawing, svg, figure.title, width, digits)
        shortened = drawing.shortened
        drawing.figure.clear()  # free the memory of thousands of lines with cyclic references
        if has_two:
            drawing = plots.draw(made.part, plots.NARROW_WIDTH, self.keys)
            small = plots.write_svg(drawing.figure)
            html += self._add(drawing, small, figure.title, "narrow")
            shortened |= drawing.shortened
            drawing.figure.clear()
        if not in_place:
            self.packed[figure.stem], html = html, ""
        return replace(figure, html=html, shortened=shortened)

    def _add(self, drawing: Drawing, svg: bytes, title: str, width: str, digits: int = 1) -> str:
        has_rows = any("data-y" in attributes for attributes in drawing.about.values())
        more = {"class": width} | ({"data-rows": ""} if has_rows else {})
        return self.sheet.add(svg, drawing.about, title, digits, **more)


def _markdown(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    figures: Sequence[PageFigure],
) -> str:
    experiment = frames.plan.experiment
    lines = [f"# {tables.literal(experiment.name)}", ""]
    for text in (experiment.question, headline(frames), describe_setup(frames)):
        lines += [tables.literal(text), ""]
    lines += [f"> {tables.literal(warning)}" for warning in warnings]
    for section in sections:
        title = f"## {tables.literal(section.title)}"
        lines += ["", title, "", tables.markdown(section.cells), section.note, ""]
    lines += [f"![{figure.stem}](figures/{figure.stem}.png)\n" for figure in figures]
    return "\n".join(lines)


def _html(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    figures: Sequence[PageFigure],
    pictures: PagePictures,
    folder: Path,
) -> Iterable[str]:
    experiment = frames.plan.experiment
    compute = frames.plan.compute.to_dict() if frames.plan.compute else None
    groups = _groups(sections, figures)
    groups.append(Group("runs", "Runs", (), [_runs(frames, folder)]))
    if (speeds := _speeds(frames)).rows:
        groups.append(Group("measured", "Speed and memory", (), [speeds]))
    style, script = packaged("page.css"), packaged("page.js")
    base = frames.table.plan.baseline
    recipe = [[key, entry_text(value)] for key, value in base.model.items()]
    data = {
        "variants": [*pictures.keys],
        "pictures": pictures.packed,
        "curves": _curves(frames, pictures.keys),
    }
    return template("page.html").generate(
        name=experiment.name,
        question=experiment.question,
        answer=answer(frames),
        further=further(frames),
        setup=describe_setup(frames),
        warnings=warnings,
        policy=embedding.policy(style, [script]),
        style=style,
        script=script,
        letters=pictures.sheet.letters,
        keys=pictures.keys,
        styles=style_variants(frames.plan),
        tables=[table.plan.name for table in frames.tables],
        groups=groups,
        recipes=_recipes(frames),
        baseline=base.label,
        recipe=ShownTable.of(pd.DataFrame(recipe, columns=["key", "value"])),
        experiment=frames.experiment_text,
        environment=to_json({"compute": compute, "environment": frames.environment}),
        glossary=GLOSSARY,
        data=embedding.pack(json.dumps(data, ensure_ascii=False, separators=(",", ":"))),
    )


def template(name: str) -> jinja2.Template:
    """Return a Jinja template of this package, which escapes inserted values for HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"dash": draw_dash, "prose": write_prose}
    return environment.get_template(name)


def write_prose(text: str) -> Markup:
    """Convert text to HTML, with text in backticks as code elements."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 escaped


def draw_dash(style: Style) -> str:
    """Return a legend key: a short SVG line in a variant's colour and dash."""
    dashes = {"-": "", "--": ' stroke-dasharray="5 2"', ":": ' stroke-dasharray="2 2"'}
    dash = dashes.get(style.dash, ' stroke-dasharray="5 2 2 2"')
    line = f'<path d="M0 4h18" stroke="{style.colour}" stroke-width="2.5"{dash}/>'
    return f'<svg class="dash" viewBox="0 0 18 8" aria-hidden="true">{line}</svg>'


def packaged(name: str) -> str:
    """Return the text of a data file in this package."""
    return resources.files("llama_ablate.report").joinpath(name).read_text("utf-8")


def _groups(sections: Sequence[Section], figures: Sequence[PageFigure]) -> list[Group]:
    """Group sections of one kind with their figures; figures without a section come last."""
    groups: list[Group] = []
    for key, group_sections in grouped(sections, lambda section: section.key).items():
        title = group_sections[0].title.removesuffix(f": {group_sections[0].table}")
        group_figures = [figure for figure in figures if figure.section == key]
        tables_shown = [
            _make_table(section, room=0 if groups else _WIDTH) for section in group_sections
        ]
        if groups:
            groups.append(Group(slug(key, 80), title, group_figures, tables_shown))
            continue
        in_place = {figure.name for figure in group_figures if figure.html}
        first = [figure for figure in group_figures if figure.name in in_place]
        groups.append(Group(slug(key, 80), title, first, tables_shown))
        groups += _group_figures("more", "More pictures", group_figures, in_place)
    names = {f"{LOSS_CURVES}_{LOG}"}  # left out: the page switches the loss curves to log axes
    return groups + _group_figures(
        "figures", "Figures", [f for f in figures if not f.section], names
    )


def _group_figures(
    id_: str, title: str, figures: Sequence[PageFigure], without: Collection[str]
) -> list[Group]:
    """Return one group with the figures whose names are not in `without`.

    The group is the only element of a list, which is empty if no figure remains.
    """
    figures_left = [figure for figure in figures if figure.name not in without]
    said = ", ".join(dict.fromkeys(figure.name.replace("_", " ") for figure in figures_left))
    return [Group(id_, title, figures_left, said=said)] if figures_left else []


def _make_table(section: Section, room: float) -> ShownTable:
    """Convert a section to a table for the template, at most `room` pixels wide."""
    shared = {field.name for field in fields(ShownTable)} & vars(section).keys()
    given: dict[str, Any] = {name: vars(section)[name] for name in shared}
    table = replace(ShownTable.of(section.cells), **given, room=room)
    short = shorten_names([row[0] for row in table.rows], _MAX_LETTERS if room else 200)
    return replace(table, rows=[[short[row[0]], *row[1:]] for row in table.rows])


def _runs(frames: Frames, folder: Path) -> ShownTable:
    """Return the table of all runs, with their numbers and links to their records."""
    runs = frames.runs
    table_of = {run.id: table.plan.name for table in reversed(frames.tables) for run in table.runs}
    rows = [
        (run.label, run.id, table_of[run.id], run.point, str(run.seed), run.ended) for run in runs
    ]
    heads = ["variant", "run", "table", "tuned to", "seed", "outcome"]
    cells = pd.DataFrame(rows, columns=heads)
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
    return replace(ShownTable.of(cells), links=links, link_at=1)


def _curves(frames: Frames, keys: Mapping[str, str]) -> dict[str, object]:
    """Return the training losses of all finished runs for the page's script.

    `places` lists the distinct sequences of x coordinates of the curves. `runs` maps the base file
    name of each table's figure to a list of runs; a run is [variant key, seed, index in `places`,
    losses].
    """
    places: dict[tuple[float, ...], int] = {}
    lines = {}
    for table in frames.tables:
        runs = []
        for points in grouped(table.curves(keys, "train"), lambda point: point.run.id).values():
            curve = thin(points)
            read = tuple(float(f"{point.read:.6g}") for point in curve)
            at = places.setdefault(read, len(places))
            losses = [round(point.loss, 4) for point in curve]
            runs.append([keys[points[0].run.label], points[0].run.seed, at, losses])
        lines[_stem_of_curves(frames, table)] = runs
    return {"places": [*places], "runs": lines}


def _stem_of_curves(frames: Frames, table: TableFrames) -> str:
    """Return the base name of the figure with a table's loss curves."""
    is_first = table.plan.name == frames.table.plan.name
    return LOSS_CURVES if is_first else f"{LOSS_CURVES}_{slug(table.plan.name, 160)}"


def _speeds(frames: Frames) -> ShownTable:
    """Return the table of metrics per variant: median, lowest and highest timing round."""
    rows = [
        [row.label, row.table, row.name]
        + [written.plain(value, 4) for value in (row.value, *row.ends)]
        for table in frames.tables
        for row in table.metrics.variant_rows
    ]
    rows += [
        [row.label, row.table, f"{row.metric}: {row.error}", "", "", ""]
        for table in frames.tables
        for row in table.attempts
        if row.error and not row.run
    ]
    cells = pd.DataFrame(
        rows, columns=["variant", "table", "measure", "median", "lowest", "highest"]
    )
    said = "Every number measured of variants, with the lowest and highest turn."
    return replace(ShownTable.of(cells), answer=said)


def _recipes(frames: Frames) -> ShownTable:
    """Return the table of settings in which each variant differs from its baseline."""
    rows = []
    for table in frames.tables:
        for variant in table.plan.variants:
            changed = details.changes(table, table.plan.baseline, variant)
            for key, (old, new) in changed.items():
                both = map(entry_text, details.without_shared(old, new))
                rows.append([variant.label, table.plan.name, key, *both])
    columns = ["variant", "table", "key", "baseline", "variant's"]
    return ShownTable.of(pd.DataFrame(rows, columns=columns))
