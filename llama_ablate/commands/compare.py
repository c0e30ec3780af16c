"""The command `compare`: two variants side by side, or several experiments in one table."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands import options as shared
from llama_ablate.commands.answer import Answer
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.report.frames import Frames

HELP = "compare two variants, paired by seed, or experiments that share a baseline and a text"
EXAMPLE = "compare results/one_at_a_time baseline swiglu"
_FOLDERS = "compare results/norms results/feedforward"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the results, and what of them is compared."""
    shared.add_results(parser)
    parser.add_argument(
        "others",
        metavar="WHAT",
        nargs="+",
        help="two variants of DIR, labels or ids, the first the reference; or other results to put "
        "into one table with DIR",
    )
    shared.add_table(parser)
    shared.add_wide(parser)


def run(options: Namespace) -> Answer:
    """Compare two variants of an experiment, or the rows of several with their baseline."""
    from llama_ablate.commands import selection
    from llama_ablate.report import details
    from llama_ablate.report.frames import Frames
    from llama_ablate.report.headline import computed
    from llama_ablate.report.tuning import one_rate
    from llama_ablate.report.warnings import machines
    from llama_ablate.results import Results

    frames = Frames.of(Results.open(options.folder))
    frames = frames.only(selection.table(frames, options))
    variants = frames.table.plan.variants
    named = [any(name in (v.label, v.id) for v in variants) for name in options.others]
    if not any(named) and all(Path(name).exists() for name in options.others):
        return _experiments(frames, options.others)
    if len(options.others) != 2:
        raise ConfigError(
            f"after '{options.folder}' come two of its variants, as in `{EXAMPLE}`, or other "
            f"results, as in `{_FOLDERS}`"
        )
    a, b = (selection.variant(frames, name) for name in options.others)
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

    from llama_ablate.report import columns, union
    from llama_ablate.report.frames import Frames
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
