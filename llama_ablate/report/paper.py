"""Files for a paper: one table, a paragraph of set-up, and figures as PDF.

comparison.tex  variants as rows; sizes, texts or other tables of the experiment as columns
setup.tex       what was trained and compared, how rates were chosen, and what limits it
effects.pdf     a figure for a column, and `effects-wide.pdf` for the page; so of two others
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import name_corpus, shorten_labels
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import ends
from llama_ablate.files import disk
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import cells, grouped, leading
from llama_ablate.report import latex, plots
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import FIGURES, Picture
from llama_ablate.report.pictures import LOSS_CURVES
from llama_ablate.report.sections import Section, sections
from llama_ablate.report.setup import describe_setup
from llama_ablate.report.tables import shorten_number
from llama_ablate.terminal import listed, plural

#: Inches of a column and of the page of a conference's paper, by the ending of a figure's file.
WIDTHS = {"": 3.25, "-wide": 6.75}
_MAX_FIGURES = 3  # each is two files
_TUNED, _LOSS, _DIFFERENCE = "tuned to", "loss", "difference"  # with which their heads begin


def write(frames: Frames, folder: Path) -> list[str]:
    """Write the files of an experiment to a new folder, in one step; return their names.

    Raises ConfigError for a folder that holds anything.
    """
    free = not (folder.is_dir() and any(folder.iterdir()))
    contents = files(frames) if free else {}
    disk.make(folder.parent)
    disk.sweep(folder.parent)
    with disk.partial_folder(folder.parent) as partial:
        for name, content in contents.items():
            disk.write(disk.below(partial, name), content)
        if not free or not disk.place(partial, folder):
            raise ConfigError(f"'{folder}' is not empty; allowed: --out with a folder to be made")
    return [*contents]


def files(frames: Frames) -> dict[str, bytes]:
    """Make the files of a paper, by name."""
    label = f"tab:{ascii_name(frames.plan.experiment.name)}"
    table = latex.table(tabulate(frames), describe_table(frames), label)
    setup = latex.escaped(describe_setup(frames))
    made = {"comparison.tex": table.encode(), "setup.tex": f"{setup}\n".encode()}
    for figure in islice(_list_figures(frames), _MAX_FIGURES):
        for end, width in WIDTHS.items():
            made[f"{figure.name}{end}.pdf"] = plots.for_paper(figure.part, width)
    return made


def tabulate(frames: Frames) -> pd.DataFrame:
    """Return variants as rows: of one table its columns, of several a group of columns for each.

    Columns that say the same of all variants are left out. Controls are no rows.
    """
    parts = {table.plan.name: _list_cells(table, len(frames.tables) > 1) for table in frames.tables}
    if len(parts) == 1:
        return next(iter(parts.values())).reset_index()
    joined = pd.concat(parts, axis=1).fillna("").reset_index()
    heads = pd.MultiIndex.from_tuples([("", "variant"), *joined.columns[1:]])
    return joined.set_axis(heads, axis=1)


def _list_cells(table: TableFrames, is_group: bool) -> pd.DataFrame:
    """Return the cells of a table's rows by variant; of a group's: rate, loss and difference."""
    rows = [row for row in table.comparison if not row.role]
    shown = cells(rows).set_index("variant")
    chosen = [head for head in shown if str(head).startswith(_TUNED)]
    if is_group:
        wanted = [head for head in shown if str(head).startswith((_LOSS, _DIFFERENCE))]
        shown.loc[:, wanted[-1]] = [_mark_decided(row) for row in rows]
    else:
        wanted = [head for head in leading(rows)[1:] if len({*shown.get(head, ())}) > 1]
    short = shorten_labels([*shown.index])
    return shown[[*chosen, *wanted]].rename(index=short)


def _mark_decided(row: ComparisonRow) -> str:
    """Write a row's difference, with a star where its interval leaves out 0."""
    return row.of_difference() + "*" * (row.low > 0 or row.high < 0)


def _list_figures(frames: Frames) -> Iterator[Made[Picture]]:
    """Yield the figures that stand beside printed tables, in their order: each once."""
    keys = [*dict.fromkeys(part.key for part in sections(frames) if part.printed)]
    made = (one for one in FIGURES.make(frames) if one.name != LOSS_CURVES)
    every = [one for one in made if one.part.section in keys]
    first = [own[0] for own in grouped(every, lambda one: one.name).values()]
    yield from sorted(first, key=lambda one: keys.index(one.part.section))


def caption(frames: Frames, section: Section) -> str:
    """Write the caption of a section's table: question, numbers, and scale of training."""
    question = frames.plan.experiment.question or f"{frames.plan.experiment.name}."
    told = ": ".join(filter(None, (section.title, section.note.partition(". ")[0].rstrip("."))))
    return f"{question} {told}. {_describe_scale(frames, section.table)}"


def describe_table(frames: Frames) -> str:
    """Write the caption of the paper's table."""
    table, experiment = frames.table, frames.plan.experiment
    several = len(frames.tables) > 1
    question = experiment.question or f"{experiment.name}."
    speeds = any(row.train_speed.turns for row in table.comparison) and not several
    of_speed = "A speed is relative to the baseline's: * leaves out 1, ~ has no interval. "
    return (
        f"{question} Mean {table.split_name} loss ({table.unit.full}) and its difference from the "
        f"baseline{' of the same table' * several}, paired by seed; below 0 is better. Brackets "
        f"are 95% intervals, which hold for all rows at once{'; * leaves out 0' * several}. "
        + of_speed * speeds
        + _describe_scale(frames)
    )


def _describe_scale(frames: Frames, table: str = "") -> str:
    """Write the scale of tables in a phrase: parameters, tokens, text and seeds."""
    plans = [one.plan for one in frames.tables if table in ("", one.plan.name)]
    parameters = ends((plan.baseline.parameters for plan in plans), shorten_number)
    tokens = ends((plan.tokens_per_run for plan in plans), shorten_number)
    seeds = frames.plan.experiment.looks[-1]
    texts = dict.fromkeys(name_corpus(plan.text.source) for plan in plans)
    return (
        f"{parameters} parameters, {tokens} training tokens of {listed([*texts])}, {seeds} "
        f"{plural(seeds, 'seed')}."
    )


def ascii_name(name: str) -> str:
    """Return a name for files and labels that every LaTeX takes."""
    return re.sub("[^a-z0-9-]+", "", slug(name, 160)).strip("-")
