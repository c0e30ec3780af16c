"""A paper's files: tables, figures of its columns' widths, paragraphs of methods, references.

    paper.tex           a document that shows every other file, to take from
    all-comparison.tex  the rows of several experiments
    NAME-methods.tex    what was trained and compared, how, and what was not tested
    NAME-comparison.tex a table for a column, and `-wide` one for the page; so of other sections
    NAME-effects.pdf    a figure for a column, and `-wide` one for the page; so of other pictures
    references.bib      this tool, and the components that took part

`NAME` is that of the experiment, so that no two labels of a paper are alike.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import jinja2
import pandas as pd

from llama_ablate import __version__
from llama_ablate.config.experiment import slug
from llama_ablate.config.registry import entry_text
from llama_ablate.config.spec import SLOTS
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import ends
from llama_ablate.files import disk
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import cells, grouped
from llama_ablate.findings.union import union
from llama_ablate.report import latex, plots, tables
from llama_ablate.report.headline import computed, learning_rate
from llama_ablate.report.section import Section
from llama_ablate.report.sections import FIGURES, sections
from llama_ablate.report.warnings import warnings
from llama_ablate.results.plan_document import PlannedTable
from llama_ablate.terminal import listed, plural

#: Inches of a column and of the page of a conference's paper, by the ending of a figure's file.
WIDTHS = {"": 3.25, "-wide": 6.75}


def write(experiments: Sequence[Frames], folder: Path) -> list[str]:
    """Write the paper of some experiments to a new folder, in one step; return its files' names.

    Raises ConfigError for a folder that holds anything.
    """
    free = not (folder.is_dir() and any(folder.iterdir()))
    contents = files(experiments) if free else {}
    disk.make(folder.parent)
    disk.sweep(folder.parent)
    with disk.partial_folder(folder.parent) as partial:
        for name, content in contents.items():
            disk.write(disk.below(partial, name), content)
        if not free or not disk.place(partial, folder):
            raise ConfigError(f"'{folder}' is not empty; allowed: --out with a folder to be made")
    return [*contents]


def files(experiments: Sequence[Frames]) -> dict[str, bytes]:
    """Return the files of a paper by name, in the order in which `paper.tex` shows them."""
    made = _of_all(experiments) if len(experiments) > 1 else {}
    names, captions = ["all"], dict[str, str]()
    for frames in experiments:
        name = ascii_name(frames.plan.experiment.name)
        name += f"-N{len(names)}" * (name in names)  # slugs have no capitals
        names.append(name)
        printed = [part for part in sections(frames) if part.printed]
        keys, _ = _references([frames])
        told = _rendered("methods.tex", frames=frames, printed=printed, keys=keys)
        made[f"{name}-methods.tex"] = told
        for part in printed:
            base = f"{name}-{ascii_name(part.title)}"
            made |= _table(base, part.cells, caption(frames, part), part.short, part.note)
        for one in FIGURES.make(frames):
            if one.part.section in {part.key for part in printed}:
                base = f"{name}-{ascii_name(f'{one.name} {one.table}')}"
                about = f"{one.about.partition('. ')[0].rstrip('.')}. {one.part.note}"
                for end, width in WIDTHS.items():
                    captions[base + end] = f"{about} {scope(frames, one.table)}"
                    made[f"{base}{end}.pdf"] = plots.for_paper(one.part, width)
    document = _rendered("paper.tex", files=[*made], captions=captions)
    return {**made, "references.bib": _references(experiments)[1], "paper.tex": document}


def caption(frames: Frames, section: Section) -> str:
    """Return a table's caption: the question, what its numbers are, and of which models."""
    question = frames.plan.experiment.question or f"{frames.plan.experiment.name}."
    told = ": ".join(filter(None, (section.title, section.note.partition(". ")[0].rstrip("."))))
    return f"{question} {told}. {scope(frames, section.table)}"


def scope(frames: Frames, table: str = "") -> str:
    """Say of which models a table is, or all are: baseline, size, training, text and seeds."""
    plans = [one.plan for one in frames.tables if table in ("", one.plan.name)]
    parameters = _span(plan.baseline.parameters for plan in plans)
    tokens, seeds = _span(p.tokens_per_run for p in plans), frames.plan.experiment.looks[-1]
    texts = listed([*dict.fromkeys(map(_text, plans))])
    return (
        f"Baseline: {_architecture(plans[0])}; {parameters} parameters, {tokens} tokens of "
        f"{texts}, {seeds} {plural(seeds, 'seed')}."
    )


def _of_all(experiments: Sequence[Frames]) -> dict[str, bytes]:
    """Return the comparison of all: with intervals over all rows where experiments fit together."""
    told = "Several experiments, each row against the baseline of its own; intervals hold at once "
    try:
        parts: Sequence[Frames] = [union(experiments)]
        told += "over all rows."
    except ConfigError as error:
        parts = experiments
        why = str(error).removesuffix(": no table of both")
        told += f"over the rows of one experiment ({why})."
    each = []
    for table in (table for part in parts for table in part.tables):
        shown = cells(table.comparison)
        of = [f"{one} {table.plan.name}".strip() for one in table.experiments.values()]
        shown.insert(1, "experiment", of)
        shown.insert(5, "n", shown.pop("n"))
        each.append(shown)
    for text, own in grouped(experiments, scope).items():
        told += f" {listed([one.plan.experiment.name for one in own])}: {text}"
    return _table("all-comparison", pd.concat(each, ignore_index=True).fillna(""), told)


def _table(
    base: str, shown: pd.DataFrame, told: str, short: int = 0, note: str = ""
) -> dict[str, bytes]:
    every = tables.in_latex(shown, told, base, short, note)
    return {f"{base}{end}.tex": text.encode() for end, text in every.items()}


def _rendered(template: str, **values: object) -> bytes:
    """Return a template of LaTeX with values, whose texts are printed as they are."""
    environment = jinja2.Environment(
        *("<%", "%>", "<<", ">>", "<#", "#>"),
        loader=jinja2.PackageLoader("llama_ablate", "report"),
        finalize=lambda value: latex.escaped(str(value)),
        autoescape=False,  # noqa: S701 - LaTeX, escaped as such
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own = (_span, _text, _architecture, _component, computed, learning_rate, warnings)
    environment.filters |= {one.__name__.strip("_"): one for one in own}
    return environment.get_template(template).render(values).encode()


def _span(numbers: Iterable[float]) -> str:
    """Write the least and the most of some numbers in a few letters."""
    return ends(numbers, plots.short)


def _text(plan: PlannedTable) -> str:
    """Name a table's text: its file or data set, without the folders that lead there."""
    source = plan.text.source
    where = source.corpus if isinstance(source.corpus, dict) else {}
    path = Path(str(where.get("path", ""))).name or where.get("train")
    return source.name or path or _component(source.corpus)


def _architecture(plan: PlannedTable) -> str:
    """Name the components of a table's baseline."""
    model = plan.baseline.model
    return listed([_component(model[slot]) for slot in SLOTS if slot in model])


def _component(entry: object) -> str:
    return entry_text(entry, options=False)


def ascii_name(name: str) -> str:
    """Return a name for files and labels that every LaTeX takes."""
    return re.sub("[^a-z0-9-]+", "", slug(name, 160)).strip("-")


def _references(experiments: Sequence[Frames]) -> tuple[list[str], bytes]:
    """Return the keys of what is cited, this tool's first, and their BibTeX."""
    used = {"tool:", *(one for frames in experiments for one in _used(frames.plan.model_dump()))}
    text = resources.files("llama_ablate.report").joinpath("papers.bib").read_text("utf-8")
    marks = re.compile(r"keywords = \{(.*)\}")
    cited = [one for one in text.split("\n\n") if used & {*marks.findall(one)[0].split(", ")}]
    keys = [one.partition("{")[2].partition(",")[0] for one in cited]
    return keys, "\n\n".join(cited).replace("VERSION", __version__).encode()


def _used(value: object, slot: str = "") -> Iterator[str]:
    """Yield the components that a plan names, as `norm:rmsnorm`: one, or those of a pattern."""
    if isinstance(value, str):
        yield f"{slot}:{value}"
    elif isinstance(value, dict):
        for key, own in value.items():
            yield from _used(own, slot if key in ("name", "pattern", "inner") else key)
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _used(own, slot)
