"""Files for a paper: a comparison table, a paragraph of set-up, and figures as PDF.

    NAME-setup.tex       what was trained and compared, and what was not tested
    NAME-comparison.tex  the comparison for a column, and `-wide` for the page
    NAME-effects.pdf     a figure for a column, and `-wide` for the page; so of other figures
    all-comparison.tex   the rows of several experiments

`NAME` is the experiment's name. Two experiments of one name get different files and labels.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text, name_corpus
from llama_ablate.config.spec import SLOTS
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import ends
from llama_ablate.files import disk
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import cells, grouped
from llama_ablate.findings.union import union
from llama_ablate.report import drawing, latex, plots, tables
from llama_ablate.report.headline import computed, learning_rate
from llama_ablate.report.picture import FIGURES
from llama_ablate.report.sections import Section, sections
from llama_ablate.results.plan_document import PlannedTable
from llama_ablate.terminal import listed, plural

#: Inches of a column and of the page of a conference's paper, by the ending of a figure's file.
WIDTHS = {"": 3.25, "-wide": 6.75}


def write(experiments: Sequence[Frames], folder: Path) -> list[str]:
    """Write the files of some experiments to a new folder, in one step; return their names.

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
    """Make the files of a paper, by name."""
    made = _table_of_all(experiments) if len(experiments) > 1 else {}
    names = ["all"]
    for frames in experiments:
        name = ascii_name(frames.plan.experiment.name)
        name += f"-N{len(names)}" * (name in names)  # slugs have no capitals
        names.append(name)
        made[f"{name}-setup.tex"] = f"{latex.escaped(describe_setup(frames))}\n".encode()
        printed = [part for part in sections(frames) if part.printed]
        for part in (part for part in printed if part.key == "comparison"):
            base = f"{name}-{ascii_name(part.title)}"
            made |= _latex_files(base, part.cells, caption(frames, part), part.short, part.note)
        for figure in FIGURES.make(frames):
            if figure.part.section in {part.key for part in printed}:
                base = f"{name}-{ascii_name(f'{figure.name} {figure.table}')}"
                for end, width in WIDTHS.items():
                    made[f"{base}{end}.pdf"] = plots.for_paper(figure.part, width)
    return made


def caption(frames: Frames, section: Section) -> str:
    """Write a table's caption: question, numbers, and scale of training."""
    question = frames.plan.experiment.question or f"{frames.plan.experiment.name}."
    told = ": ".join(filter(None, (section.title, section.note.partition(". ")[0].rstrip("."))))
    return f"{question} {told}. {describe_scope(frames, section.table)}"


def describe_scope(frames: Frames, table: str = "") -> str:
    """Describe the scale of tables: baseline, size, training, text and seeds."""
    plans = [one.plan for one in frames.tables if table in ("", one.plan.name)]
    parameters = ends((plan.baseline.parameters for plan in plans), drawing.shorten_number)
    tokens = ends((plan.tokens_per_run for plan in plans), drawing.shorten_number)
    seeds = frames.plan.experiment.looks[-1]
    texts = dict.fromkeys(name_corpus(plan.text.source) for plan in plans)
    return (
        f"Baseline: {_components(plans[0])}; {parameters} parameters, {tokens} tokens of "
        f"{listed([*texts])}, {seeds} {plural(seeds, 'seed')}."
    )


def describe_setup(frames: Frames) -> str:
    """Describe the set-up in a paragraph, with its limits."""
    plans = [table.plan for table in frames.tables]
    experiment, first = frames.plan.experiment, plans[0]
    variants = sum(not (v.role or v.baseline) for v in first.variants)
    matching = " or ".join(dict.fromkeys(plan.matching for plan in plans))
    open_questions = {
        "other sizes": len({str(plan.size) for plan in plans}) == 1,
        "other texts": len({plan.text.fingerprint for plan in plans}) == 1,
        "other lengths of training": not experiment.train.branches
        and len({plan.steps for plan in plans}) == 1,
        "a learning rate for each variant": "lr" not in experiment.tune
        and "train.lr" not in experiment.variants.axes,
        "other architectures": True,
    }
    untested = ", ".join(what for what, is_open in open_questions.items() if is_open)
    return (
        f"We compare {variants} {plural(variants, 'variant')} with a baseline. "
        f"{describe_scope(frames)} Variants are {matching}. The optimizer is "
        f"{_component(experiment.train.optimizer)} at a learning rate of {learning_rate(frames)} "
        f"with the schedule {_component(experiment.train.schedule)}; "
        f"{' and '.join(experiment.tune) or 'nothing'} is tuned for each variant. Differences are "
        "paired by seed; intervals are Student's t at 95%, Bonferroni over the rows of a table. "
        f"{computed(frames)} Not tested: {untested}."
    )


def _table_of_all(experiments: Sequence[Frames]) -> dict[str, bytes]:
    """Make the comparison of all, with intervals over all rows where experiments fit together."""
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
    for text, own in grouped(experiments, describe_scope).items():
        told += f" {listed([one.plan.experiment.name for one in own])}: {text}"
    return _latex_files("all-comparison", pd.concat(each, ignore_index=True).fillna(""), told)


def _latex_files(
    base: str, shown: pd.DataFrame, told: str, short: int = 0, note: str = ""
) -> dict[str, bytes]:
    every = tables.in_latex(shown, told, base, short, note)
    return {f"{base}{end}.tex": text.encode() for end, text in every.items()}


def _components(plan: PlannedTable) -> str:
    """Name the components of a table's baseline."""
    model = plan.baseline.model
    return listed([_component(model[slot]) for slot in SLOTS if slot in model])


def _component(entry: object) -> str:
    return entry_text(entry, options=False)


def ascii_name(name: str) -> str:
    """Return a name for files and labels that every LaTeX takes."""
    return re.sub("[^a-z0-9-]+", "", slug(name, 160)).strip("-")
