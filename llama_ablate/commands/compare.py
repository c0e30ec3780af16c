"""The command `compare`: compare variants in a table of runs that another trainer made."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, option
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

HELP = "compare the variants of a table of runs that another trainer made"
EXAMPLE = "compare runs.csv --baseline base"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Options of `compare`: files of runs, their columns, and the baseline."""

    files: tuple[Path, ...] = argument(
        "FILE",
        "CSV, JSON lines or Parquet with a row for each run, or each step of a run; with --pattern "
        "a file is one run",
        nargs="+",
    )
    baseline: str = option(..., "the variant that the others are compared with", "VARIANT")
    metric: str | None = option(None, "what to compare (default: the first loss)", "COLUMN")
    margin: str | None = option(None, "difference that does not matter, such as 0.02", "SIZE")
    higher_is_better: bool = option(False, "a higher value is better")
    unpaired: bool = option(False, "compare means, and not pairs of runs with the same seed")
    by: str | None = option(None, "a table for each value of a column, such as size", "COLUMN")
    variant: str | None = option(None, "column that names the variant", "COLUMN")
    seed: str | None = option(None, "column of the seed", "COLUMN")
    step: str | None = option(None, "column of the step, of which the last counts", "COLUMN")
    pattern: str | None = option(
        None, "read variant and seed of a file from its name: '{variant}-s{seed}.csv'", "PATTERN"
    )
    out: Path | None = option(None, "write comparison.csv, .md and .tex to a folder", "DIR")


def run(options: CompareOptions) -> Answer:
    """Compare the variants of another trainer's runs with the baseline."""
    import pandas as pd

    from llama_ablate.findings.columns import list_rows
    from llama_ablate.findings.own_runs import OwnRuns, compare_runs, describe_limits, read_margin
    from llama_ablate.report import columns, tables

    table = pd.concat([_read(path, options.pattern) for path in options.files], ignore_index=True)
    groups: list[tuple[str, pd.DataFrame]] = [("", table)]
    if options.by:
        if options.by not in table:
            raise ConfigError(f"--by {options.by}: there is no such column")
        groups = [(f"{options.by} {value}", rows) for value, rows in table.groupby(options.by)]
    output: list[Any] = []
    values: list[dict[str, Any]] = []
    for name, rows in groups:
        named = {"variant": options.variant, "seed": options.seed, "step": options.step}
        runs = OwnRuns.of(rows, options.metric, **named)
        compared = compare_runs(
            runs,
            options.baseline,
            margin=read_margin(options.margin),
            higher_is_better=options.higher_is_better,
            unpaired=options.unpaired,
        )
        cells = columns.cells(compared, "own_runs")
        limits = describe_limits(compared, runs, unpaired=options.unpaired)
        output += [*[name] * bool(name), cells, "\n".join(limits)]
        values += [{"table": name, **row} for row in list_rows(compared)]
        if options.out:
            stem = "comparison" + f"-{name.replace(' ', '-')}" * bool(name)
            caption = f"Differences in {runs.metric} from {options.baseline}."
            tables.save(cells, compared, caption, options.out / stem, note=" ".join(limits))
    return Answer(output, {"comparison": values})


def _read(path: Path, pattern: str | None) -> "pd.DataFrame":
    """Read a file of runs; with a pattern, its name gives columns such as variant and seed."""
    import pandas as pd

    readers: dict[str, Any] = {
        ".csv": pd.read_csv,
        ".jsonl": lambda file: pd.read_json(file, lines=True),
        ".parquet": pd.read_parquet,
    }
    if path.suffix not in readers:
        raise ConfigError(f"'{path}': must end in {', '.join(readers)}")
    try:
        table: pd.DataFrame = readers[path.suffix](path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}") from None
    if pattern is None:
        return table
    parts = re.split(r"\{(\w+)\}", Path(pattern).name)
    fields = [f"(?P<{part}>.+)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    named = re.fullmatch("".join(fields), path.name)
    if named is None:
        raise ConfigError(f"'{path.name}' does not fit --pattern {pattern}")
    return table.assign(**named.groupdict())
