"""The command `show`: print the comparison of experiments, or details of variants and runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TABLE, TableOptions, argument, option
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame

    from llama_ablate.results import Results
    from llama_ablate.results.plan_document import PlannedTable, PlannedVariant

HELP = "show the comparison, a variant or run, two variants, or several experiments"
EXAMPLE = "show results/first rope"


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TableOptions):
    """Options of `show`: the results, and the variants, run or further experiments to show."""

    what: tuple[str, ...] = argument(
        "VARIANT|RUN|DIR",
        "the label or id of a variant or run; a second variant, to show beside the first as its "
        "reference; or further results that share the baseline, to compare in one table",
        (),
        "*",
    )
    table: str | None = option(None, TABLE, "NAME")
    all: bool = option(False, "of a variant: every number, run and option, not the first lines")
    curve: bool = option(False, "of a run: its learning curve as CSV")


def run(options: ShowOptions) -> Answer:
    """Show a comparison table, one variant or run, or two variants side by side."""
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import columns, details, sections
    from llama_ablate.results import Results

    results = Results.open(options.folder)
    names, given = options.what, {name for name in ("table", "all", "curve") if vars(options)[name]}
    if names and _are_folders(results, names):
        _refuse(given - {"table"}, "several experiments")
        return _joined(results, names, options.table)
    if len(names) > 2:
        raise ConfigError(f"one argument too many: '{names[2]}'")
    if len(names) == 2:
        _refuse(given - {"table"}, "two variants")
        return _show_pair(results, *names, options.table)
    if names and (named := selection.run(results.plan, names[0])):
        _refuse(given - {"curve"}, "a run")
        return _curve(results, named) if options.curve else Answer(*details.run(results, named))
    if options.curve:
        raise ConfigError("--curve is of a run: name one, by its id or as 'LABEL sSEED'")
    table = selection.table({table.name: table for table in results.plan.tables}, options.table)
    if names:
        variant = selection.variant(results.plan, table, names[0], results.root, "variant or run")
        alone = Frames.of(_alone(results, table, variant)).named(table.name)
        return Answer(*details.variant(alone, variant, everything=options.all))
    _refuse(given - {"table"}, "a comparison")
    frames = Frames.of(results)
    frames = frames.only(frames.named(table.name))
    output: list[str | DataFrame] = []
    for name in ("axes", "factors", "interactions", "comparison", "steps", "stability", "metrics"):
        section = sections.SECTIONS[name].make(frames, name)
        if section and (section.printed or name == "metrics"):
            output += [section.title] * (section.title != "Comparison")
            output.append(section.cells)
    return Answer(output, columns.comparison(frames).to_dict("records"))


def _refuse(given: Collection[str], what: str) -> None:
    """Raise ConfigError for an option that this view does not take."""
    if given:
        raise ConfigError(f"--{min(given)} does not go with {what}")


def _are_folders(results: "Results", names: Sequence[str]) -> bool:
    """Return whether all names are existing folders, and no name is a variant or run."""
    plan = results.plan
    known_names = [name for name in names if plan.called(name) or name in plan.runs]
    return not known_names and all(Path(name).is_dir() for name in names)


def _joined(results: "Results", others: Sequence[str], table: str | None) -> Answer:
    """Show the variants of several experiments in one comparison with their common baseline."""
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings import union
    from llama_ablate.findings.answer import headline
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import columns
    from llama_ablate.report.details import describe_computing
    from llama_ablate.report.sections import sections
    from llama_ablate.results import Results

    first = Frames.of(results)
    first = first.only(selection.table(first.by_name, table))
    joined = union.union([first, *(Frames.of(Results.open(path)) for path in others)])
    section = next(part for part in sections(joined) if part.key == "comparison")
    cells = section.cells.copy()
    cells.insert(1, "experiment", [*joined.table.experiments.values()])
    remarks = [describe_computing(joined), *union.remarks(joined)]
    frame = columns.comparison(joined)
    output: list[str | DataFrame] = [cells, headline(joined), "\n".join(remarks)]
    return Answer(output, {"comparison": frame.to_dict("records"), "remarks": remarks})


def _curve(results: "Results", run: str) -> Answer:
    """Return the learning curve of a run as CSV."""
    import pandas as pd

    curve = results.curve(run)
    return Answer(pd.DataFrame(curve).to_csv(index=False).rstrip("\n"), curve)


def _show_pair(results: "Results", first: str, second: str, table: str | None) -> Answer:
    """Show two variants side by side; differences are the second minus the first."""
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.tuning import one_rate
    from llama_ablate.findings.warnings import list_machines
    from llama_ablate.report import details
    from llama_ablate.report.details import describe_computing

    frames = Frames.of(results)
    frames = frames.only(selection.table(frames.by_name, table))
    shown_table = frames.table
    a, b = (
        selection.variant(frames.plan, shown_table.plan, name, frames.root)
        for name in (first, second)
    )
    if a.id == b.id:
        raise ConfigError(f"'{first}' and '{second}' are the same variant: name two")
    text, values = details.pair(shown_table, a, b)
    remarks = [describe_computing(frames), *map(str, list_machines(frames))]
    if rate := one_rate(shown_table.plan, shown_table.experiment, b, a):
        remarks.append(f"Their optimizers differ, with {rate}.")
    return Answer("\n".join([text, "", *remarks]), {**values, "remarks": remarks})


def _alone(results: "Results", table: "PlannedTable", variant: "PlannedVariant") -> "Results":
    """Restrict results to the runs needed to describe a variant, to avoid reading thousands.

    The needed runs are the variant's own runs. If a run diverged or collapsed, all runs of its seed
    are needed, too, since the outcome is judged in comparison with them. In an experiment with
    stages, all runs are needed, since the results decide which runs are reported.
    """
    from llama_ablate.findings.outcomes import UNSTABLE

    if results.plan.experiment.is_staged:
        return results
    same = (variant.id, table.repeated.get(variant.id))  # a repeat uses the other's tuned values
    runs = [run for run in table.runs if run.variant in same]
    ended = [run for run in runs if run.id in results.finished]
    lost = {run.seed for run in ended if results.finished[run.id].outcome()[0] in UNSTABLE}
    lost_runs = [run for run in results.plan.runs.values() if run.seed in lost]
    return results.only({run.id for run in (*runs, *lost_runs)})
