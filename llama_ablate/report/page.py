"""Files of a report: tables, figures, Markdown, and a self-contained HTML page.

The first screen of the page shows question, answer, gravest limit, a table whose rows have their
intervals drawn inside, and facts on the scale. Pictures follow; each further part is folded to a
line. SVG elements are embedded as matplotlib draws them.
"""

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text
from llama_ablate.evidence import written
from llama_ablate.files import disk
from llama_ablate.files.strict_json import to_json, write_text
from llama_ablate.findings.answer import answer, describe_scale, find_asked_cost, headline
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_runs
from llama_ablate.report import columns, details, figures, pictures, tables
from llama_ablate.report.contents import STEP_COLUMNS, Styles, TableContents, list_tables
from llama_ablate.report.facts import count_families, list_facts
from llama_ablate.report.glossary import GLOSSARY
from llama_ablate.report.paper import ascii_name, caption, describe_setup
from llama_ablate.report.rendering import environment, packaged
from llama_ablate.report.sections import FAULTS, Section

#: Numbers in the table of runs, by column title: column of the frame, format, divisor and unit.
_RUN_NUMBERS: dict[str, tuple[str, str, float, str]] = {
    "loss (nats)": ("{split}_loss_nats", ".4f", 1, ""),
    "± (text)": ("{split}_loss_se_nats", ".4f", 1, ""),
    "bits/byte": ("{split}_bits_per_byte", ".4f", 1, ""),
    "train (s)": ("train_s", ".1f", 1, ""),
    "peak memory": ("peak_memory_bytes", ".0f", 2**20, " MiB"),
}
_JUDGED = ("verdict", "test result", "result", "outcome")
#: Columns that are always shown, on phones too.
_DECIDING = (columns.DIFFERENCE, "this step [95%]", "range [95%]", "verdict", "test result")
#: Beginnings of the titles of further columns in order of importance, for tables with little room.
_PREFERRED = (
    "runs",
    "speed",
    "tuned to",
    "state bytes",
    "loss",
    "at half",
    "learning rate",
    "parameters",
)
_MAX_COLUMNS, _MAX_ALIKE = 5, 44  # most columns of a first table, and letters of a shared cell
#: Rows of a table from which its middle is folded, and rows left at both ends; most runs.
_MANY_ROWS, _FIRST, _LAST, _MAX_RUNS = 40, 14, 3, 500
#: Symbols of the page by verdict.
_MARKS = {
    **dict.fromkeys(("better", "lower together"), "better"),
    **dict.fromkeys(("worse", "higher together"), "worse"),
    **dict.fromkeys(("equivalent", "equal", "add up"), "same"),
    **dict.fromkeys(("diverged", "collapsed", "failed"), "lost"),
    "baseline": "baseline",
}
_POINTING = ("better", "worse")
#: Folded parts with figures of their own, by the section of their figures: title and summary.
_PICTURES = {
    "along": ("Along training", "Differences from the baseline while the runs were trained"),
    "costs": ("More costs", "Loss against size, speed and memory; state by context"),
}
#: Figures whose rows stand in a table of the page with their intervals; drawn for files alone.
_IN_TABLES = ("steps", "factors", "effects")


@dataclass(frozen=True)
class PageFigure:
    """Figure of the page: its names, SVG element and caption, or the error that kept it away."""

    name: str
    table: str
    section: str
    stem: str
    caption: str
    svg: str = ""
    error: str = ""

    @property
    def title(self) -> str:
        """Title of the figure, derived from its name."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class PageBlock:
    """Table of a comparison table's section on the page, with its figures."""

    name: str
    table: dict[str, Any] | None = None
    note: str = ""
    figures: Sequence[PageFigure] = ()
    error: str = ""
    about: str = ""
    title: str = ""


@dataclass
class PagePart:
    """Folded part of the page."""

    id: str
    title: str
    said: str = ""
    blocks: list[PageBlock] = field(default_factory=list)


def write(
    frames: Frames, sections: Sequence[Section], warnings: Sequence[str], folder: Path
) -> tuple[Path, list[str]]:
    """Write all files of a report to a folder.

    Returns the HTML page's path, and the errors of parts that could not be drawn.
    """
    for section in (section for section in sections if not section.error):
        base = disk.below(folder, "tables", slug(section.title, 160))
        label = ascii_name(f"{frames.plan.experiment.name} {section.title}")
        header_values = (caption(frames, section), base, section.short, section.note, label)
        tables.save(section.cells, section.frame, *header_values)
    for name, make in columns.FILES.items():
        tables.save_csv(make(frames), disk.below(folder, "tables", f"{name}.csv"))
    page_figures = list(_draw(frames, folder / "figures"))
    write_text(folder / "report.md", _markdown(frames, sections, warnings, page_figures))
    page = folder / "report.html"
    disk.replace(page, _html(frames, sections, warnings, page_figures, folder).encode("utf-8"))
    faults = [f"section '{part.title}': {part.error}" for part in sections if part.error]
    return page, faults + [
        f"figure '{part.stem}': {part.error}" for part in page_figures if part.error
    ]


def _draw(frames: Frames, folder: Path) -> Iterator[PageFigure]:
    """Draw each figure to files, and yield it for the page; a figure that fails has its error."""
    first = frames.table.plan.name
    for name, kind in figures.FIGURES.items():
        try:
            for figure in figures.make(name, frames):
                end = "" if figure.table == first else f"_{slug(figure.table, 160)}"
                stem = f"{figure.name}{end}"
                svg = save_figure(figure.figure, folder, stem)
                about = (figure.name, figure.table, kind.section, stem, kind.caption)
                yield PageFigure(*about, "" if name in _IN_TABLES else svg)
        except FAULTS as error:
            fault = f"{type(error).__name__}: {error}"
            yield PageFigure(name, first, kind.section, name, kind.caption, error=fault)


def save_figure(figure: Figure, folder: Path, stem: str) -> Markup:
    """Write a figure as PNG and SVG; return it as an element of the page, and clear it."""
    pictures.save(figure, disk.below(folder, stem), ("png",))
    svg = pictures.write(figure, "svg", stem)
    disk.replace(disk.below(folder, f"{stem}.svg"), svg)
    figure.clear()  # free the memory of thousands of lines
    return Markup(embed(svg.decode(), stem))  # noqa: S704 - matplotlib escapes its texts


def embed(svg: str, label: str) -> str:
    """Return a matplotlib SVG file as an element of the page.

    An artist's id becomes the attribute `data-v`, and unreferenced ids, metadata and the style
    element are removed, since the page's policy allows no other. Coordinates keep two decimals.
    """
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<(metadata|style).*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(v\d+)\.\d+"', r'<g data-v="\1"', text)
    text = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _markdown(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    page_figures: Sequence[PageFigure],
) -> str:
    experiment = frames.plan.experiment
    lines = [f"# {tables.literal(experiment.name)}", ""]
    for text in (experiment.question, headline(frames), describe_setup(frames)):
        lines += [tables.literal(text), ""]
    lines += [f"> {tables.literal(warning)}" for warning in warnings]
    for section in sections:
        lines += ["", f"## {tables.literal(section.title)}", ""]
        error = f"This section could not be made: {tables.literal(section.error)}"
        lines += [error] if section.error else [tables.markdown(section.cells), section.note]
        lines += [""]
    lines += [
        f"![{part.stem}](figures/{part.stem}.png)\n" for part in page_figures if not part.error
    ]
    return "\n".join(lines)


def policy(style: str, script: str) -> str:
    """Return the page's content security policy.

    It allows the page's own style sheet and script, and style attributes, which matplotlib writes.
    """
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{style_hash}'; "
        f"style-src-attr 'unsafe-inline'; script-src 'sha256-{script_hash}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _html(
    frames: Frames,
    sections: Sequence[Section],
    warnings: Sequence[str],
    page_figures: Sequence[PageFigure],
    folder: Path,
) -> str:
    experiment, compute = frames.plan.experiment, frames.plan.compute
    contents = {c.table.plan.name: c for c in list_tables(frames, frames)}
    by_table = {name: [part for part in page_figures if part.table == name] for name in contents}
    key = _find_lead(sections)
    leads = [_make_lead(contents[name], key, sections, by_table[name]) for name in contents]
    first = (frames.rungs or frames.tables)[-1 if len(frames.rungs) > 1 else 0]
    keys = next(iter(contents.values())).styles.keys
    return render(
        name=experiment.name,
        question=experiment.question,
        answer=answer(frames),
        scale=describe_scale(frames),
        facts=list_facts(frames),
        families=count_families(frames),
        setup=describe_setup(frames),
        warnings=warnings,
        keys={key: name for name, key in keys.items()},
        tables=[*contents],
        first=first.plan.name,
        leads=leads,
        parts=[*_list_parts(frames, contents, key, sections, page_figures, folder)],
        experiment=frames.experiment_text,
        environment=to_json(
            {"compute": compute.to_dict() if compute else None, "environment": frames.environment}
        ),
    )


def render(**values: Any) -> str:
    """Return the page with the values of its template, and the packaged style and script."""
    style, script = packaged("page.css"), packaged("page.js")
    values |= {"style": style, "script": script, "glossary": GLOSSARY}
    values["policy"] = Markup(policy(style, script))  # noqa: S704 - hashes and constants
    return environment(html=True).get_template("page.html").render(values)


def _find_lead(sections: Sequence[Section]) -> str:
    """Return the key of the section that answers the question."""
    keys = {section.key for section in sections}
    return next((key for key in ("steps", "axes", "factors") if key in keys), "comparison")


def _make_lead(
    contents: TableContents,
    key: str,
    sections: Sequence[Section],
    page_figures: Sequence[PageFigure],
) -> PageBlock:
    """Return the first table of a comparison table, with its two first pictures."""
    name = contents.table.plan.name
    matching = [part for part in sections if part.key == key and part.table == name]
    is_asked = find_asked_cost(contents.table.experiment, contents.ranked) is not None
    order = ("costs", "loss_curves") if is_asked else ("loss_curves", "costs")
    by_name = {part.name: part for part in page_figures if part.name in order}
    margin = contents.table.margin
    what = {
        "steps": "this step: loss minus that of the step before",
        "factors": "loss with a change minus loss without, averaged over the other factors",
    }.get(key, f"Difference: loss minus that of {contents.baseline}, paired by seed")
    about = (
        f"{what} ({contents.table.unit.name}); left is better. Bars: 95% intervals that hold for "
        "all rows at once."
        + f" Grey: the margin of {margin}." * bool(margin)
        + " Strokes: single seeds." * (key == "comparison")
    )
    if not matching:
        return PageBlock(name, error="it has no rows", about=about)
    return PageBlock(
        name,
        None if matching[0].error else _make_table(matching[0], contents),
        matching[0].note,
        [by_name[each] for each in order if each in by_name],
        matching[0].error,
        about if key != "axes" else "",
        matching[0].title if key != "comparison" else name,
    )


def _list_parts(
    frames: Frames,
    contents: Mapping[str, TableContents],
    lead: str,
    sections: Sequence[Section],
    page_figures: Sequence[PageFigure],
    folder: Path,
) -> Iterator[PagePart]:
    """Yield the folded parts of the page: pictures, sections, runs, speeds and recipes."""
    left = [
        part
        for part in page_figures
        if part.name not in ("loss_curves", "costs", *_IN_TABLES) or part.error
    ]
    at = {part.stem: "costs" if part.name.startswith("costs") else part.section for part in left}
    for key, (title, said) in _PICTURES.items():
        key_figures = [part for part in left if at[part.stem] == key]
        names = dict.fromkeys(part.table for part in key_figures)
        blocks = [
            PageBlock(name, figures=[p for p in key_figures if p.table == name]) for name in names
        ]
        if blocks:
            yield PagePart(key, title, said, blocks)
    for key in dict.fromkeys(section.key for section in sections if section.key != lead):
        key_sections = [section for section in sections if section.key == key]
        title = key_sections[0].title.removesuffix(f": {key_sections[0].table}")
        part = PagePart(key, title, _summarize(key_sections))
        for section in key_sections:
            table_contents = contents.get(section.table, next(iter(contents.values())))
            table = None if section.error else _make_table(section, table_contents)
            table_names = {section.table} if section.table else {*contents}
            pictures_beside = [
                figure for figure in left if at[figure.stem] == key and figure.table in table_names
            ]
            block = PageBlock(section.table, table, section.note, pictures_beside, section.error)
            part.blocks.append(block)
        yield part
    for id_, title, said, table in (
        ("runs", "Runs", "Every run; all numbers are in tables/runs.csv", _runs(frames, folder)),
        ("measured", "Speed and memory", "Median, lowest and highest turn", _speeds(frames)),
        (
            "recipes",
            "What each variant changes",
            "Settings unlike the baseline's",
            _recipes(frames),
        ),
    ):
        if table["rows"]:
            yield PagePart(id_, title, said, [PageBlock("", table)])


def _summarize(sections: Sequence[Section]) -> str:
    """Summarize sections of one kind: their answers, or counts of their verdicts."""
    said = dict.fromkeys(section.answer for section in sections if section.answer)
    words = [
        re.split("[,:]", word)[0]
        for section in sections
        for head in [head for head in section.cells if head in _JUDGED][:1]
        for word in section.cells[head]
        if word not in ("", "baseline")
    ]
    counted = ", ".join(f"{count} {word}" for word, count in Counter(words).items())
    noted = [section.note.partition(". ")[0] for section in sections if section.note]
    return " ".join(said) or counted or " ".join(noted[:1])


# ---- tables


def _make_table(section: Section, contents: TableContents) -> dict[str, Any]:
    """Return a section as a table for the template; a comparison has the strokes of seeds."""
    is_first = section.key == "comparison" and len(section.rows) <= _MANY_ROWS
    seeds = contents.seeds if is_first else {}
    return make_table(section, contents.styles, contents.table.margin or 0, seeds)


def make_table(
    section: Section, styles: Styles, margin: float, seeds: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return a section as a table for the template, with the places of its rows' intervals.

    `margin` is half the width of a grey band around 0; `seeds` are differences of single seeds by
    variant, drawn as strokes.
    """
    table = lay_out(section.cells, section.short, section.about)
    place = _place_rows(section, margin, seeds)
    rows, is_many = section.rows, len(section.cells) > _MANY_ROWS
    named = next((rows[name] for name in ("variant", "effect", "step") if name in rows), None)
    names = [row["cells"][0] for row in table["rows"]] if named is None else [*named]
    is_base = [*rows["baseline"]] if "baseline" in rows else [False] * len(names)
    for at, (name, row) in enumerate(zip(names, table["rows"], strict=False)):
        row["key"] = styles.keys.get(name, "")
        row["colour"] = styles.colour(name) if row["key"] else "var(--ink)"
        row["place"] = place["rows"][at] if place else None
        is_mid = is_many and _FIRST <= at < len(table["rows"]) - _LAST
        row["classes"] = " ".join(["base"] * is_base[at] + ["mid"] * is_mid)
    return {**table, "axis": place, "hidden": is_many}


def lay_out(
    cells: pd.DataFrame, short: int = 0, about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the columns and rows of a table for the template.

    Columns with one value in all rows, and columns beyond the leading ones, are shown on request.
    """
    texts = cells.astype(str)
    heads = [str(head) for head in texts]
    rows = texts.to_numpy().tolist()
    same = {
        head: rows[0][at]
        for at, head in enumerate(heads)
        if at and len(rows) > 1 and head not in _JUDGED
        if len({row[at] for row in rows}) == 1 and 0 < len(rows[0][at]) <= _MAX_ALIKE
    }
    leading = heads[: short or None]
    visible = [head for head in leading if head not in same]
    main = [head for head in visible if head in _DECIDING or head == heads[0]]
    side = [head for head in visible if head not in main]
    if short:
        preferred = [head for start in _PREFERRED for head in leading if head.startswith(start)]
        preferred = [head for head in preferred if head in side]
        side = [*dict.fromkeys([*preferred, *side])][: _MAX_COLUMNS - len(main)]
    columns_shown = []
    for at, head in enumerate(heads):
        is_word = not any(re.match(r"[\d+~-]", row[at]) for row in rows)
        kind = "" if head in main else "side" if head in side else "more"
        classes = [kind] * bool(kind) + ["word"] * is_word
        columns_shown.append(
            {
                "title": head,
                "about": (about or {}).get(head, ""),
                "classes": " ".join(classes),
                "is_verdict": head in _JUDGED,
                "is_link": head == "run",
            }
        )
    shown_rows = [
        {"cells": row, "key": "", "colour": "", "place": None, "classes": "", "link": ""}
        for row in rows
    ]
    text = ", ".join(f"{head}: {cell}" for head, cell in same.items())
    return {
        "columns": columns_shown,
        "rows": shown_rows,
        "same": text,
        "axis": None,
        "hidden": False,
    }


def _place_rows(
    section: Section, margin: float, seeds: Mapping[str, Sequence[float]]
) -> dict[str, Any] | None:
    """Place the differences of a section along one axis, in percent of its width.

    Returns None for a section without differences, or with differences in several units.
    """
    rows = section.rows.rename(columns=STEP_COLUMNS)
    if "difference" not in rows or section.key in ("other_metrics", "hypotheses"):
        return None
    if not rows["difference"].notna().any():
        return None
    most = pictures.find_limit(rows)
    inside = rows[["difference", "low", "high"]].to_numpy(float).ravel()
    strokes = [value for each in seeds.values() for value in each]
    inside = np.concatenate([inside, strokes, [0, *([-margin, margin] if margin < most else [])]])
    inside = inside[np.abs(inside) <= 1.2 * most]
    room = 0.04 * np.ptp(inside) or 1.0
    start, stop = inside.min() - room, inside.max() + room

    def place(value: float) -> float:
        return round(float(np.clip(100 * (value - start) / (stop - start), 0, 100)), 2)

    placed = []
    for row in rows.to_dict("records"):
        value, ends = row["difference"], (row["low"], row["high"])
        is_out = not start <= value <= stop
        way = "left" if value < start else "right"
        mark = way if is_out else _MARKS.get(str(row.get("verdict")), "dot")
        # The shapes of `better` and `worse` point to their side of 0, for any metric.
        mark = _POINTING[value > 0] if mark in _POINTING else mark
        place_of_row = {
            "at": place(value),
            "ends": None if is_out or np.isnan(ends).any() else [*map(place, ends)],
            "mark": mark,
            "seeds": [] if is_out else [*map(place, seeds.get(str(row.get("variant")), ()))],
        }
        placed.append(None if np.isnan(value) else place_of_row)
    ticks = [
        (place(tick), f"{tick:+.6g}" if tick else "0")
        for tick in MaxNLocator(4).tick_values(start, stop)
        if start <= tick <= stop
    ]
    band = [place(-margin), place(margin)]
    return {"rows": placed, "ticks": ticks, "zero": place(0), "band": band}


def _runs(frames: Frames, folder: Path) -> dict[str, Any]:
    """Return the table of all runs, with their numbers and links to their records."""
    runs = frames.runs.head(_MAX_RUNS)
    table_of = {
        run: table.plan.name for table in reversed(frames.tables) for run in find_runs(table)["id"]
    }
    cells = runs[["label", "id", "point", "seed", "ended"]]
    cells = cells.set_axis(["variant", "run", "tuned to", "seed", "outcome"], axis="columns")
    cells.insert(2, "table", runs["id"].map(table_of))
    for head, (name, form, scale, unit) in _RUN_NUMBERS.items():
        values = runs.get(name.format(split=frames.table.split), pd.Series(dtype=float))
        if values.notna().any():
            cells[head] = [written.number(value / scale, form, unit) for value in values]
    cells["reason"] = runs["reason"]
    table = lay_out(cells.loc[:, (cells != "").any()])
    for row, run in zip(table["rows"], runs["id"], strict=True):
        if place := frames.folder(run):
            path = os.path.relpath(place / "record.json", folder).replace(os.sep, "/")
            row["link"] = quote(path)
    return table


def _speeds(frames: Frames) -> dict[str, Any]:
    """Return the table of metrics per variant: median, lowest and highest timing round."""
    values = columns.metrics(frames)
    values = values[values["run"].eq("")]
    cells = values[["variant", "table", "name"]].rename(columns={"name": "measure"})
    for head, name in {"median": "value", "lowest": "lowest", "highest": "highest"}.items():
        cells[head] = [written.plain(value, 4) for value in values[name]]
    attempts = pd.concat([table.attempts for table in frames.tables])
    failed = attempts[attempts["error"].ne("") & attempts["run"].eq("")]
    named = failed[["label", "table"]].rename(columns={"label": "variant"})
    named = named.assign(measure=failed["metric"] + ": " + failed["error"])
    every = pd.concat([cells, named]).fillna("")
    every = every.head(_MAX_RUNS)
    return lay_out(every.loc[:, (every != "").any()])


def _recipes(frames: Frames) -> dict[str, Any]:
    """Return the table of settings in which each variant differs from its baseline."""
    rows = []
    for table in frames.tables:
        for variant in table.plan.variants:
            changed = details.changes(table, table.plan.baseline, variant)
            for key, (old, new) in changed.items():
                both = map(entry_text, details.without_shared(old, new))
                rows.append([variant.label, table.plan.name, key, *both])
    heads = ["variant", "table", "key", "baseline", "variant's"]
    cells = pd.DataFrame(rows[:_MAX_RUNS], columns=heads)
    return lay_out(cells.loc[:, (cells != "").any()])
