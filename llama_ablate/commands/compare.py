"""The command `compare`: several experiments in one table."""

from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TABLE, WIDE, ResultsOptions, argument, option
from llama_ablate.errors import ConfigError

HELP = "compare experiments that share a baseline and a text, in one table"
EXAMPLE = "compare results/norms results/feedforward"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ResultsOptions):
    """The results to compare."""

    others: tuple[Path, ...] = argument(
        "MORE", "other results to put into one table with DIR", (), nargs="+"
    )
    table: str | None = option(None, TABLE, "NAME")
    wide: bool = option(False, WIDE)


def run(options: CompareOptions) -> Answer:
    """Compare the rows of several experiments with the baseline that they share."""
    from pandas import DataFrame

    from llama_ablate.commands.shared import selection
    from llama_ablate.findings import union
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import columns
    from llama_ablate.report.headline import computed, headline
    from llama_ablate.report.sections import sections
    from llama_ablate.results import Results

    if missing := [path for path in options.others if not path.exists()]:
        raise ConfigError(
            f"'{missing[0]}' is no results folder; two variants of one experiment: "
            f"`llama-ablate show {options.folder} A B`"
        )
    first = Frames.of(Results.open(options.folder))
    first = first.only(selection.table(first.by_name, options.table))
    joined = union.union([first, *(Frames.of(Results.open(path)) for path in options.others)])
    section = next(part for part in sections(joined) if part.key == "comparison")
    cells = section.cells.copy()
    cells.insert(1, "experiment", [*joined.table.experiments.values()])
    remarks = [computed(joined), *union.remarks(joined)]
    frame = columns.comparison(joined)
    shown: list[str | DataFrame] = [cells, headline(joined), "\n".join(remarks)]
    return Answer(shown, {"comparison": frame.to_dict("records"), "remarks": remarks})
