"""The command `compare`: compare variants in a table of runs that another trainer made."""

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
_OPTIONS = (
    *("baseline", "metric", "margin", "target", "higher_is_better", "unpaired"),
    *("variant", "seed", "step"),
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Options of `compare`: files of runs, their columns, and the baseline."""

    files: tuple[Path, ...] = argument(
        "FILE",
        "CSV, JSON lines or Parquet with a row for each run, or for each step of a run",
        nargs="+",
    )
    baseline: str = option(..., "the variant that the others are compared with", "VARIANT")
    metric: str | None = option(None, "what to compare (default: the first loss)", "COLUMN")
    margin: float | None = option(None, "difference that does not matter, such as 0.02", "SIZE")
    target: float | None = option(None, "compare the steps and seconds to this loss", "LOSS")
    higher_is_better: bool = option(False, "a higher value is better")
    unpaired: bool = option(False, "compare means, and not pairs of runs with the same seed")
    by: str | None = option(None, "a table for each value of these, as size,text", "COLUMNS")
    documents: Path | None = option(
        None, "losses by document: variant, seed, document, tokens, loss", "FILE"
    )
    variant: str | None = option(None, "column that names the variant", "COLUMN")
    seed: str | None = option(None, "column of the seed", "COLUMN")
    step: str | None = option(None, "column of the step, of which the last counts", "COLUMN")
    pattern: str | None = option(
        None, "read variant and seed from names of runs or files: '{variant}-s{seed}'", "PATTERN"
    )
    out: Path | None = option(None, "write page, tables and pictures to a folder", "DIR")


def run(options: CompareOptions) -> Answer:
    """Compare the variants of another trainer's runs with the baseline."""
    import pandas as pd

    from llama_ablate.findings.columns import list_rows
    from llama_ablate.findings.own_runs import OwnRuns, read_rows
    from llama_ablate.report import own_page

    each = [read_rows(_read(path), options.pattern, path.stem) for path in options.files]
    given = {name: getattr(options, name) for name in _OPTIONS}
    given["by"] = options.by.split(",") if options.by else ()
    given["documents"] = _read(options.documents) if options.documents else None
    runs = OwnRuns.of(pd.concat(each, ignore_index=True), **given)
    output: list[Any] = []
    for section in own_page.list_sections(runs):
        output += [section.title, section.cells]
    output.append("\n".join(own_page.describe(runs).values()))
    values: dict[str, Any] = {
        "comparison": list_rows(runs.comparison()),
        "target": list_rows(runs.targets()),
    }
    if options.out:
        values["report"] = str(own_page.write(runs, options.out))
        output.append(f"report: {values['report']}")
    return Answer(output, values)


def _read(path: Path) -> "pd.DataFrame":
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
        raise ConfigError(f"'{path}' cannot be read: {str(error).strip()}") from None
    return table
