"""Files for a paper: one table, a paragraph of set-up, and figures as PDF.

comparison.tex  comparison with variants as rows; several comparison tables as groups of columns
setup.tex       paragraph on models, training, learning rates, statistics and limits
effects.pdf     figure in the width of a column, and `effects-wide.pdf` in the width of the page;
                up to two further figures likewise
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text, name_corpus, shorten_labels
from llama_ablate.config.spec import SLOTS
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import count, ends
from llama_ablate.files import disk
from llama_ablate.findings.answer import count_seeds
from llama_ablate.findings.columns import iterate
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.table import Table
from llama_ablate.findings.warnings import warnings
from llama_ablate.report import columns, figures, latex, pictures
from llama_ablate.report.details import describe_computing
from llama_ablate.report.rendering import write_block
from llama_ablate.report.sections import Section

#: Width of a column and of the page of a conference paper, and heights, in inches, by the end of a
#: file's name.
_SIZES = {"": (3.25, 2.3), "-wide": (6.75, 2.9)}
_POINTS, _MAX_FIGURES = 7, 3  # font size of figures, and most figures, each in two files
#: Figures in the order in which a paper takes them.
_FIGURES = ("sizes", "gaps", "steps", "factors", "effects", "costs", "tuning", "lengths")
_TUNED, _LOSS, _DIFFERENCE = "tuned to", "loss", "difference"  # first words of column titles
_DAGGER = "†"  # mark of rows that are too short, lost runs, or are not complete
#: Limits of an answer that a paper states, by the code of their warning.
_LIMITS = ("control", "guard", "not_learned", "lost", "too_short", "reversed", "no_repeat", "edge")


def write(frames: Frames, folder: Path) -> list[str]:
    """Write the files of a paper to a new folder atomically; return their names.

    Raises ConfigError if the folder is not empty.
    """
    free = not (folder.is_dir() and any(folder.iterdir()))
    contents = files(frames) if free else {}
    disk.make(folder.parent)
    disk.sweep(folder.parent)
    with disk.partial_folder(folder.parent) as partial:
        for name, content in contents.items():
            disk.write(disk.below(partial, name), content)
        if not free or not disk.place(partial, folder):
            raise ConfigError(f"'{folder}' is not empty: name a new folder with --out")
    return [*contents]


def files(frames: Frames) -> dict[str, bytes]:
    """Return the contents of a paper's files by file name."""
    label = f"tab:{ascii_name(frames.plan.experiment.name)}"
    table = latex.table(tabulate(frames), describe_table(frames), label)
    setup = latex.escaped(describe_setup(frames))
    contents = {"comparison.tex": table.encode(), "setup.tex": f"{setup}\n".encode()}
    for end, (width, height) in _SIZES.items():
        options = {"width": width, "height": height, "points": _POINTS}
        for figure in islice(_list_figures(frames, options), _MAX_FIGURES):
            contents[f"{figure.name}{end}.pdf"] = pictures.write(figure.figure, "pdf")
    return contents


def _list_figures(frames: Frames, look: dict[str, Any]) -> Iterator[figures.ReportFigure]:
    """Yield the first figure of each kind: of several model sizes, of the largest."""
    last = frames.only(frames.rungs[-1]) if len(frames.rungs) > 1 else frames
    for name in _FIGURES:
        of = frames if not figures.FIGURES[name].every_table else last
        yield from islice(figures.make(name, of, experiment=frames, **look), 1)


def tabulate(frames: Frames) -> pd.DataFrame:
    """Return formatted cells: variants as rows, comparison tables as groups of columns.

    Columns with one value for all variants, and the rows of controls, are left out.
    """
    parts = {table.plan.name: _list_cells(table, len(frames.tables) > 1) for table in frames.tables}
    if len(parts) == 1:
        return next(iter(parts.values())).reset_index()
    joined = pd.concat(parts, axis=1).fillna("").reset_index()
    heads = pd.MultiIndex.from_tuples([("", "variant"), *joined.columns[1:]])
    return joined.set_axis(heads, axis=1)


def _list_cells(table: Table, is_group: bool) -> pd.DataFrame:
    """Return a comparison table's formatted cells by variant.

    If the table is one of several groups of columns (`is_group`), only the columns of tuned values,
    loss and difference are returned.
    """
    every = compare_variants(table)
    rows = every[every["role"].eq("")]
    listed = columns.cells(rows, "comparison").set_index("variant")
    chosen = [head for head in listed if str(head).startswith(_TUNED)]
    (difference,) = (head for head in listed if str(head).startswith(_DIFFERENCE))
    decided = ["*" * bool(is_group and (row.low > 0 or row.high < 0)) for row in iterate(rows)]
    marks = [_DAGGER * bool(_doubts(row, table)) for row in iterate(rows)]
    listed[difference] = [
        cell + star + mark
        for cell, star, mark in zip(listed[difference], decided, marks, strict=True)
    ]
    about = columns.describe(rows, "comparison")
    wanted: list[Any] = [
        head for head in listed if about[str(head)].first and len({*listed[head]}) > 1
    ]
    if is_group:
        wanted = [head for head in listed if str(head).startswith((_LOSS, _DIFFERENCE))]
    chosen_table = listed[[*chosen, *wanted]].rename(index=shorten_labels([*listed.index]))
    if len(table.experiment.tune) == 1:  # then the tuned key is the column's title
        (key,) = table.experiment.tune
        for head in chosen:
            chosen_table[head] = [cell.removeprefix(f"{key} ") for cell in chosen_table[head]]
        chosen_table = chosen_table.rename(columns=dict.fromkeys(chosen, key))
    return chosen_table


def _doubts(row: Any, table: Table) -> str:
    """Write why a row of the table needs care; "" for a complete row."""
    planned = table.experiment.looks[0]
    if row.verdict == "too short" or row.too_short:
        return "too short to compare"
    if row.lost:
        trained = row.ended - row.lost
        mean = f"mean of the {trained} of {row.ended} runs that trained"
        return mean if trained else f"all {row.ended} runs were lost"
    is_partial = not row.baseline and row.n < planned and row.verdict != "equal"
    return f"{row.n} of {planned} seeds" if is_partial else ""


def caption(frames: Frames, section: Section) -> str:
    """Write the caption of a section's LaTeX table: question, contents, and scale of training."""
    about = ": ".join(filter(None, (section.title, section.note.partition(". ")[0].rstrip("."))))
    tables = [table for table in frames.tables if section.table in ("", table.plan.name)]
    return write_block("setup.txt", "caption", _scale(frames, tables) | {"contents": f"{about}."})


def describe_table(frames: Frames) -> str:
    """Write the caption of the paper's comparison table."""
    rows = compare_variants(frames.table)
    rows = rows[rows["role"].eq("")]
    several = len(frames.tables) > 1
    doubtful = [
        f"{row.label}{f' in {table.plan.name}' * several}: {why}"
        for table in frames.tables
        for row in iterate(compare_variants(table))
        if not row.role and (why := _doubts(row, table))
    ]
    values = {
        "contents": "",
        "split": frames.table.split_name,
        "unit": frames.table.unit.full,
        "margin": frames.plan.experiment.margin,
        "several": several,
        "has_speed": rows["train_speed_ratio"].notna().any(),
        "is_paired": rows["train_speed_turns"].any(),
        "doubtful": doubtful,
    }
    return write_block("setup.txt", "caption", _scale(frames, frames.tables) | values)


def _scale(frames: Frames, tables: Sequence[Table]) -> dict[str, Any]:
    """Return question, parameters, training tokens, texts and finished seeds of some tables."""
    plans, experiment = [table.plan for table in tables], frames.plan.experiment
    return {
        "question": experiment.question or f"{experiment.name}.",
        "parameters": ends((plan.baseline.parameters for plan in plans), count),
        "tokens": ends((plan.tokens_per_run for plan in plans), count),
        "texts": [*dict.fromkeys(name_corpus(plan.text.source) for plan in plans)],
        "seeds": count_seeds(frames),
        "tuned": [*experiment.tune],
        "choosing": experiment.race or len(experiment.seed_list),
    }


def describe_setup(frames: Frames) -> str:
    """Describe the experimental set-up and its limits in a paragraph."""
    plans, experiment = [table.plan for table in frames.tables], frames.plan.experiment
    train, first, table = experiment.train, plans[0], frames.table
    tokens, _, documents = first.text.size(table.split)
    planned = f"{experiment.looks[-1]:,}"
    optimizers = (v.train.get("optimizer", train.optimizer) for v in first.variants)
    texts = (
        f"{name_corpus(plan.text.source)} ({count(plan.text.tokens['train'])} training tokens of a "
        f"vocabulary of {plan.text.vocab:,})"
        for plan in plans
    )
    model = first.baseline.model
    values = {
        "variants": [v.label for v in first.variants if not (v.role or v.baseline)],
        "components": [_component(model[slot]) for slot in SLOTS if slot in model],
        "shapes": [
            *dict.fromkeys(
                f"{count(plan.baseline.parameters)} parameters "
                f"({', '.join(f'{name} {value:,}' for name, value in plan.size.items())})"
                for plan in plans
            )
        ],
        "matching": " or ".join(dict.fromkeys(plan.matching for plan in plans)),
        "texts": [*dict.fromkeys(texts)],
        "passes": max(plan.passes(plan.baseline) for plan in plans),
        "steps": ends((plan.steps for plan in plans), "{:,}".format),
        "batch": first.baseline.train.get("batch", train.batch),
        "context": model.get("context", "?"),
        "optimizers": " or ".join(dict.fromkeys(map(_component, optimizers))),
        "optimizer_options": [*_list_options(frames)],
        "schedule": _component(train.schedule),
        "warmup": train.warmup,
        "tunes_rate": "lr" in experiment.tune,
        "rate": write_rate(frames),
        "race": experiment.race,
        "split": table.split_name,
        "loss_tokens": count(tokens),
        "documents": f"{documents:,}" if documents else "",
        "planned": planned if planned != count_seeds(frames) else "",
        "computing": describe_computing(frames),
        "limits": [str(w) for w in warnings(frames) if w.code in _LIMITS],
        "untested": [*_list_untested(frames)],
    }
    points = _list_points(frames)
    return write_block("setup.txt", "setup", _scale(frames, frames.tables) | values | points)


def _list_options(frames: Frames) -> Iterator[str]:
    train = frames.plan.experiment.train
    yield f"betas {train.betas[0]:g} and {train.betas[1]:g}"
    for name, value in {
        "weight decay": train.weight_decay,
        "gradient clipping": train.clip,
    }.items():
        if value:
            yield f"{name} {value:g}"


def _list_points(frames: Frames) -> dict[str, Any]:
    """Return the tuned values and each variant's choice, for the set-up."""
    tune = frames.plan.experiment.tune
    grid = {
        key: [f"{v:g}" if isinstance(v, float) else entry_text(v) for v in values]
        for key, values in tune.items()
    }
    points: dict[str, list[str]] = {}
    for row in iterate(pd.concat(map(compare_variants, frames.tables))):
        if not row.role:
            points.setdefault(row.label, []).append(row.point or "not chosen yet")
    differ = any(len({*each}) > 1 for each in points.values())
    same: dict[tuple[str, ...], list[str]] = {}
    for label, each in points.items():
        same.setdefault((*each,) if differ else (each[0],), []).append(label)
    key = f"{next(iter(tune))} " if len(tune) == 1 else ""
    return {
        "grid": [f"{name} in {', '.join(values)}" for name, values in grid.items()],
        "points_differ": differ,
        "chosen": [
            f"{', '.join(point.removeprefix(key) for point in values)} for {', '.join(names)}"
            for values, names in same.items()
        ],
    }


def _list_untested(frames: Frames) -> Iterator[str]:
    """Yield the questions that an experiment leaves open, such as other model sizes."""
    plans, experiment = [table.plan for table in frames.tables], frames.plan.experiment
    if len({str(plan.size) for plan in plans}) == 1:
        yield "other sizes"
    if len({plan.text.fingerprint for plan in plans}) == 1:
        yield "other texts"
    if not experiment.train.branches and len({plan.steps for plan in plans}) == 1:
        yield "other lengths of training"
    if "lr" not in experiment.tune and "train.lr" not in experiment.variants.axes:
        yield "a learning rate for each variant"
    yield "other architectures"


def _component(entry: object) -> str:
    return entry_text(entry, options=False)


def write_rate(frames: Frames) -> str:
    """Format the variants' common learning rate, or the range of their rates."""
    shared = frames.plan.experiment.train.lr
    each = {v.train.get("lr", shared) for v in frames.table.plan.variants if not v.role}
    return ends(each, "{:g}".format) + ", by variant" * (len(each) > 1)


def ascii_name(name: str) -> str:
    """Return a name reduced to lower-case ASCII letters, digits and hyphens, for LaTeX."""
    return re.sub("[^a-z0-9-]+", "", slug(name, 160)).strip("-")
