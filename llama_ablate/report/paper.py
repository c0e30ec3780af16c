"""Files for a paper: one table, a paragraph of set-up, and figures as PDF.

comparison.tex  comparison with variants as rows; several comparison tables as groups of columns
setup.tex       paragraph on models, training, learning rates, statistics and limits
effects.pdf     figure in the width of a column, and `effects-wide.pdf` in the width of the page;
                up to two further figures likewise
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pandas as pd

from llama_ablate.config.experiment import slug
from llama_ablate.config.labels import entry_text, name_corpus, shorten_labels
from llama_ablate.config.spec import SLOTS
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import ends
from llama_ablate.files import disk
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import cells, grouped, leading
from llama_ablate.report import latex, plots
from llama_ablate.report.details import describe_computing
from llama_ablate.report.headline import list_limits
from llama_ablate.report.parts import Made
from llama_ablate.report.picture import FIGURES, Picture
from llama_ablate.report.pictures import LOSS_CURVES
from llama_ablate.report.sections import Section, sections
from llama_ablate.report.tables import shorten_number
from llama_ablate.report.warnings import list_tuning_limits
from llama_ablate.results.plan_document import PlannedTable
from llama_ablate.terminal import listed, plural

#: Widths of a column and of the page of a conference paper in inches, by file-name suffix.
WIDTHS = {"": 3.25, "-wide": 6.75}
_MAX_FIGURES = 3  # each in two files
_TUNED, _LOSS, _DIFFERENCE = "tuned to", "loss", "difference"  # first words of column titles


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
    for figure in islice(_list_figures(frames), _MAX_FIGURES):
        for end, width in WIDTHS.items():
            contents[f"{figure.name}{end}.pdf"] = plots.for_paper(figure.part, width)
    return contents


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


def _list_cells(table: TableFrames, is_group: bool) -> pd.DataFrame:
    """Return a comparison table's formatted cells by variant.

    If the table is one of several groups of columns (`is_group`), only the columns of tuned values,
    loss and difference are returned.
    """
    rows = [row for row in table.comparison if not row.role]
    listed = cells(rows).set_index("variant")
    chosen = [head for head in listed if str(head).startswith(_TUNED)]
    if is_group:
        wanted = [head for head in listed if str(head).startswith((_LOSS, _DIFFERENCE))]
        listed.loc[:, wanted[-1]] = [_mark_decided(row) for row in rows]
    else:
        wanted = [head for head in leading(rows)[1:] if len({*listed.get(head, ())}) > 1]
    chosen_table = listed[[*chosen, *wanted]].rename(index=shorten_labels([*listed.index]))
    if len(table.experiment.tune) == 1:  # then the tuned key is the column's title
        (key,) = table.experiment.tune
        for head in chosen:
            chosen_table[head] = [cell.removeprefix(f"{key} ") for cell in chosen_table[head]]
        chosen_table = chosen_table.rename(columns=dict.fromkeys(chosen, key))
    return chosen_table


def _mark_decided(row: ComparisonRow) -> str:
    """Format a row's difference, with a star if its interval excludes 0."""
    return row.show_difference() + "*" * (row.low > 0 or row.high < 0)


def _list_figures(frames: Frames) -> Iterator[Made[Picture]]:
    """Yield the figures of printed sections, each for its first comparison table."""
    keys = [*dict.fromkeys(part.key for part in sections(frames) if part.printed)]
    drawings = (figure for figure in FIGURES.make(frames) if figure.name != LOSS_CURVES)
    every = [figure for figure in drawings if figure.part.section in keys]
    first = [
        figures_of_name[0] for figures_of_name in grouped(every, lambda one: one.name).values()
    ]
    yield from sorted(first, key=lambda one: keys.index(one.part.section))


def caption(frames: Frames, section: Section) -> str:
    """Write the caption of a section's LaTeX table: question, contents, and scale of training."""
    question = frames.plan.experiment.question or f"{frames.plan.experiment.name}."
    text = ": ".join(filter(None, (section.title, section.note.partition(". ")[0].rstrip("."))))
    return f"{question} {text}. {_describe_scale(frames, section.table)}"


def describe_table(frames: Frames) -> str:
    """Write the caption of the paper's comparison table."""
    table, experiment = frames.table, frames.plan.experiment
    several = len(frames.tables) > 1
    question = experiment.question or f"{experiment.name}."
    margin = f"Equivalent: the interval lies within {experiment.margin}. " * bool(experiment.margin)
    paired = any(row.train_speed.turns for row in table.comparison)
    has_speed = any(not math.isnan(row.train_speed.ratio) for row in table.comparison)
    stars = "an interval with * leaves out 1" if paired else "~ has no interval"
    speed_note = f"A speed is relative to the baseline's; {stars}. " * (has_speed and not several)
    return (
        f"{question} Mean {table.split_name} loss ({table.unit.full}) and its difference from the "
        f"baseline{' of the same table' * several}, paired by seed; below 0 is better. Brackets "
        f"are 95% intervals, which hold for all rows at once{'; * leaves out 0' * several}. "
        + margin * (not several)
        + speed_note
        + _describe_scale(frames)
    )


def _describe_scale(frames: Frames, table: str = "") -> str:
    """Write parameters, training tokens, texts and seeds of one comparison table or of all.

    `table` is the name of the comparison table; "" means all tables.
    """
    plans = [each_table.plan for each_table in frames.tables if table in ("", each_table.plan.name)]
    parameters = ends((plan.baseline.parameters for plan in plans), shorten_number)
    tokens = ends((plan.tokens_per_run for plan in plans), shorten_number)
    seeds = frames.plan.experiment.looks[-1]
    texts = dict.fromkeys(name_corpus(plan.text.source) for plan in plans)
    return (
        f"{parameters} parameters, {tokens} training tokens of {listed([*texts])}, {seeds} "
        f"{plural(seeds, 'seed')}."
    )


def describe_setup(frames: Frames) -> str:
    """Describe the experimental set-up and its limits in a paragraph."""
    parts = (_describe_models, _describe_training, _describe_rates, _describe_statistics)
    return " ".join(
        [*(part(frames) for part in parts), describe_computing(frames), *_list_limits(frames)]
    )


def _describe_models(frames: Frames) -> str:
    plans = [table.plan for table in frames.tables]
    model, first = plans[0].baseline.model, plans[0]
    names = [variant.label for variant in first.variants if not (variant.role or variant.baseline)]
    components = listed([_component(model[slot]) for slot in SLOTS if slot in model])
    shapes = dict.fromkeys(
        f"{shorten_number(plan.baseline.parameters)} parameters ({_list_sizes(plan)})"
        for plan in plans
    )
    matching = " or ".join(dict.fromkeys(plan.matching for plan in plans))
    variants = f"{len(names)} {plural(len(names), 'variant')} ({listed(names)})"
    compared = f"We compare {variants} with" if names else "We train"
    return (
        f"{compared} a baseline of {components}, which has {listed([*shapes])}. "
        f"Variants are {matching}."
    )


def _list_sizes(plan: PlannedTable) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in plan.size.items())


def _describe_training(frames: Frames) -> str:
    plans, train = [table.plan for table in frames.tables], frames.plan.experiment.train
    base = plans[0].baseline
    batch, context = base.train.get("batch", train.batch), base.model.get("context", "?")
    texts = dict.fromkeys(
        f"{name_corpus(plan.text.source)} ({shorten_number(plan.text.tokens['train'])} training "
        f"tokens of a vocabulary of {plan.text.vocab:,})"
        for plan in plans
    )
    tokens = ends((plan.tokens_per_run for plan in plans), shorten_number)
    most = max(plan.passes(plan.baseline) for plan in plans)
    passes = f" ({most:.3g} passes over it)" if most > 1 else ""
    steps = ends((plan.steps for plan in plans), "{:,}".format)
    return (
        f"A run reads {tokens} tokens of {listed([*texts])}{passes} in {steps} steps of {batch} "
        f"sequences of {context} tokens. {_describe_optimizer(frames)}"
    )


def _describe_optimizer(frames: Frames) -> str:
    train, variants = frames.plan.experiment.train, frames.table.plan.variants
    each = (_component(v.train.get("optimizer", train.optimizer)) for v in variants)
    options = {"weight decay": train.weight_decay, "gradient clipping": train.clip}
    betas = f"betas {train.betas[0]:g} and {train.betas[1]:g}"
    text = listed([betas, *(f"{name} {value:g}" for name, value in options.items() if value)])
    return (
        f"The optimizer is {' or '.join(dict.fromkeys(each))}{f' ({text})' * bool(text)}, the "
        f"learning rate schedule {_component(train.schedule)} after a warm-up over "
        f"{train.warmup:.0%} of the steps."
    )


def _describe_rates(frames: Frames) -> str:
    """Describe the learning rates: grid, criterion of the choice, and each variant's choice."""
    experiment = frames.plan.experiment
    rate = f"The learning rate is {write_rate(frames)}. " * ("lr" not in experiment.tune)
    if not experiment.tune:
        return f"{rate}Nothing is tuned."
    grid = "; ".join(f"{key} in {listed(values)}" for key, values in _write_grid(experiment.tune))
    chose = "the mean validation loss of the reported seeds"
    if frames.table.split == "validation":
        chose += ", which is reported, too, and is optimistic"
    if experiment.race:
        chose = f"the validation loss of {experiment.race} {plural(experiment.race, 'seed')}, "
        chose += "which no table reports"
    points: dict[str, list[str]] = {}
    for row in (row for table in frames.tables for row in table.comparison if not row.role):
        points.setdefault(row.label, []).append(row.point or "not chosen yet")
    differ = any(len({*each}) > 1 for each in points.values())
    same = grouped(points, lambda label: tuple(points[label] if differ else points[label][:1]))
    key = f"{next(iter(experiment.tune))} " if len(experiment.tune) == 1 else ""
    chosen = "; ".join(
        f"{', '.join(point.removeprefix(key) for point in values)} for {listed(names)}"
        for values, names in same.items()
    )
    order = ", in the order of the tables" * differ
    return f"{rate}Each variant is tuned ({grid}) by {chose}; chosen{order}: {chosen}."


def _write_grid(tune: Mapping[str, list[object]]) -> Iterator[tuple[str, list[str]]]:
    for key, values in tune.items():
        yield key, [f"{v:g}" if isinstance(v, float) else entry_text(v) for v in values]


def _describe_statistics(frames: Frames) -> str:
    seeds, table = frames.plan.experiment.looks[-1], frames.table
    tokens, _, documents = table.plan.text.size(table.split)
    of = f" of {documents:,} documents" if documents else ""
    return (
        f"Losses are of {shorten_number(tokens)} {table.split_name} tokens{of}. Each variant has "
        f"{seeds} {plural(seeds, 'seed')}; differences are paired by seed, and intervals are "
        "Student's t at 95%, Bonferroni over the rows of a table."
    )


def _list_limits(frames: Frames) -> list[str]:
    """List limits of the comparison in sentences.

    The limits are lost runs, limits of the answer, learning rates at the end of the grid, and
    questions that were not tested, such as other model sizes.
    """
    plans = [table.plan for table in frames.tables]
    experiment = frames.plan.experiment
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
    rates = [line for table in frames.tables for line in list_tuning_limits(table)]
    lost = [
        f"{row.label}{f' in {table.plan.name!r}' * bool(table.plan.name)}: {row.outcome}."
        for table in frames.tables
        for row in table.comparison
        if row.lost
    ]
    limits = (*lost, *list_limits(frames), *dict.fromkeys(rates))
    return [*limits, f"Not tested: {untested}."]


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
