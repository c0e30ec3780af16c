"""The command `compare`: two variants side by side, or several experiments in one table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TABLE, WIDE, ResultsOptions, argument, option
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.findings.frames import Frames

HELP = "compare two variants, experiments that share a baseline, or how lengths and sizes rank arms"
EXAMPLE = "compare results/one_at_a_time baseline swiglu"
_FOLDERS = "compare results/norms results/feedforward"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ResultsOptions):
    """The results, and what of them is compared."""

    others: tuple[str, ...] = argument(
        "WHAT",
        "two variants of DIR, labels or ids, the first the reference; or other results to put "
        "into one table with DIR, or whose pairs of arms are counted with those of DIR",
        (),
        nargs="+",
    )
    lengths: bool = option(
        False,
        "the share of pairs of arms that each branch of the runs ranks as their end does, as "
        "in `compare results/norms results/positions --lengths`; and the cheapest length and "
        "number of seeds that do so in 80%%",
    )
    sizes: bool = option(
        False,
        "the same of the sizes of a ladder, against the largest; with --lengths of every "
        "length of every size",
    )
    table: str | None = option(None, TABLE, "NAME")
    wide: bool = option(False, WIDE)


def run(options: CompareOptions) -> Answer:
    """Compare two variants of an experiment, or the rows of several with their baseline."""
    if options.lengths or options.sizes:
        return _agreement(options)
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.tuning import one_rate
    from llama_ablate.report import details
    from llama_ablate.report.headline import computed
    from llama_ablate.report.warnings import machines
    from llama_ablate.results import Results

    frames = Frames.of(Results.open(options.folder))
    frames = frames.only(selection.table(frames.by_name, options.table))
    planned = frames.table.plan
    named = [frames.plan.variant(name, planned) for name in options.others]
    if options.others and not any(named) and all(Path(name).exists() for name in options.others):
        return _experiments(frames, options.others)
    if len(options.others) != 2:
        raise ConfigError(
            f"after '{options.folder}' come two of its variants, as in `{EXAMPLE}`, or other "
            f"results, as in `{_FOLDERS}`"
        )
    a, b = (selection.variant(frames.plan, planned, name, frames.root) for name in options.others)
    if a.id == b.id:
        first, second = options.others
        raise ConfigError(f"'{first}' and '{second}' are the same variant: name two")
    text, values = details.pair(frames.table, a, b)
    table, remarks = frames.table, [computed(frames), *machines(frames)]
    if rate := one_rate(table.plan, table.experiment, b, a):
        remarks.append(f"Their optimizers differ, with {rate}.")
    return Answer("\n".join([text, "", *remarks]), {**values, "remarks": remarks})


def _experiments(first: "Frames", folders: Sequence[str]) -> Answer:
    """Compare the rows of several experiments with the baseline that they share."""
    from pandas import DataFrame

    from llama_ablate.findings import union
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import columns
    from llama_ablate.report.headline import computed, headline
    from llama_ablate.report.sections import sections
    from llama_ablate.results import Results

    joined = union.union([first, *(Frames.of(Results.open(folder)) for folder in folders)])
    section = next(part for part in sections(joined) if part.key == "comparison")
    cells = section.cells.copy()
    cells.insert(1, "experiment", [*joined.table.experiments.values()])
    remarks = [computed(joined), *union.remarks(joined)]
    frame = columns.comparison(joined)
    shown: list[str | DataFrame] = [cells, headline(joined), "\n".join(remarks)]
    return Answer(shown, {"comparison": frame.to_dict("records"), "remarks": remarks})


def _agreement(options: CompareOptions) -> Answer:
    """Compare how the pairs of arms of one or several results are ranked at several settings."""
    from llama_ablate.commands.shared import selection
    from llama_ablate.findings import agreement
    from llama_ablate.findings.frames import Frames
    from llama_ablate.results import Results

    if options.sizes and options.table is not None:
        raise ConfigError(
            f"--table {options.table}: --sizes compares the tables of a ladder; allowed with "
            "--lengths alone"
        )
    folders = [options.folder, *map(Path, options.others)]
    for place, folder in enumerate(folders):
        if not folder.exists():
            raise ConfigError(
                f"'{folder}' is no folder: --lengths and --sizes are about all arms; allowed after "
                "DIR: other results, and no variants"
            )
        if any(folder.samefile(other) for other in folders[:place]):
            raise ConfigError(f"'{folder}' is given twice: its pairs would count twice")
    names = [folder.resolve().name for folder in folders]
    if len({*names}) < len(names):
        names = [*map(str, folders)]
    parts, turned = [], []
    for name, folder in zip(names, folders, strict=True):
        frames = Frames.of(Results.open(folder))
        try:
            table = selection.table(frames.by_name, options.table)
        except ConfigError as error:
            raise ConfigError(f"'{folder}': {error}") from None
        found = agreement.settings(frames, table, by_length=options.lengths, by_size=options.sizes)
        alone = options.sizes or len(frames.tables) == 1
        title = name if alone else f"{name} ({table.plan.name})"
        parts.append(agreement.pairs(title, found))
        turned += agreement.turned(title, found)
    pairs = agreement.joined(parts)
    ranked, seeds = agreement.ranked(pairs), agreement.by_seeds(pairs)
    best = agreement.cheapest(seeds)
    remarks = agreement.remarks(best, turned)
    shown = [agreement.cells(ranked), *([agreement.cheapest_cells(best)] if best else [])]
    records = {
        "ranked": [*map(asdict, ranked)],
        "seeds": [*map(asdict, seeds)],
        "cheapest": [*map(asdict, best)],
        "turned": [*map(asdict, turned)],
    }
    return Answer([*shown, "\n".join(remarks)], {**records, "remarks": remarks})
