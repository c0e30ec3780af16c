"""Python interface: run experiments, open results as data frames, write and join reports.

    import llama_ablate as la

    results = la.open("results/quickstart")
    results.comparison(), results.runs, results.curves, results.metrics
    results.model("rope", seed=0)

`docs/python.md` documents this interface. Mistakes in user input raise `ConfigError`, whose message
is the line that the command prints. Only `run` and `OpenedResults.model` import torch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.findings import union as unions
from llama_ablate.findings.answer import headline
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.own_runs import OPTIONS_FILE, OwnRuns
from llama_ablate.findings.warnings import warnings
from llama_ablate.report import columns
from llama_ablate.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from llama_ablate.interop.loader import OpenedModel
    from llama_ablate.report.sections import Section

__all__ = ["OpenedResults", "compare", "concat", "open", "report", "run"]

_TABLES_SHOWN = 3  # comparison tables in a notebook's view of the results


class OpenedResults:
    """Results of one or several experiments as data frames.

    Several experiments have a common baseline and text. Every frame is tidy: a row is one
    observation, and a column one quantity, whose name ends in its unit. Frames are computed at
    their first access and cached.
    """

    def __init__(self, frames: Frames, results: Sequence[Results]) -> None:
        #: Data behind the report, for custom sections and figures.
        self.frames = frames
        self._results = results
        self._experiments = (
            frames.experiments if isinstance(frames, unions.UnionFrames) else [frames]
        )

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.frames.plan.experiment.name

    @property
    def question(self) -> str:
        """The research question that the experiment file states."""
        return self.frames.plan.experiment.question

    @cached_property
    def headline(self) -> str:
        """Answer of the experiment in plain sentences, as at the top of the report."""
        return headline(self.frames)

    @cached_property
    def warnings(self) -> list[str]:
        """Limits of the comparison, one sentence each.

        Results of several experiments also list how these experiments differ.
        """
        if isinstance(self.frames, unions.UnionFrames):
            messages = [
                f"{e.plan.experiment.name}: {w}" for e in self._experiments for w in warnings(e)
            ]
            return unions.remarks(self.frames) + messages
        return [str(warning) for warning in warnings(self.frames)]

    @cached_property
    def tables(self) -> pd.DataFrame:
        """Data frame of comparison tables: text, size, matching, budget, and finished runs."""
        return self._over(columns.tables)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Data frame of runs, with a column for each measured number.

        A run that belongs to several comparison tables has a row for each.
        """
        return self._over(columns.runs)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Data frame of learning-curve points, by comparison table and run."""
        return self._over(columns.curves)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Data frame of metric values of runs and variants.

        Coordinates such as `layer` or `context` have columns of their own.
        """
        return self._over(columns.metrics)

    def only(self, table: str | None = None) -> "OpenedResults":
        """Return the results restricted to one comparison table, by default the first.

        Raises ConfigError if no table has the name.
        """
        return OpenedResults(self.frames.only(self.frames.named(table)), self._results)

    def comparison(self, table: str | None = None, *, level: float = ALPHA) -> pd.DataFrame:
        """Return a data frame of variants: loss, difference from the baseline, and costs.

        The frame has the rows of one comparison table, or by default of all tables. `level` is the
        two-sided error level that the intervals of a table's rows share; verdicts follow from the
        intervals. Raises ConfigError if no table has the name, and for a level that is not between
        0 and 1.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level {level}: must be between 0 and 1, such as 0.05")
        frames = self.frames if table is None else self.only(table).frames
        return columns.comparison(frames.at_level(level))

    def section(self, name: str) -> pd.DataFrame:
        """Return the numbers of a report section, such as `hypotheses`, as one data frame.

        The column `table` names the comparison table of each row. The frame is empty if the
        experiment has no data for the section. Raises ConfigError for an unknown section.
        """
        from llama_ablate.report.sections import SECTIONS, sections

        if name not in SECTIONS:
            raise ConfigError(f"there is no section '{name}'{nearest(name, SECTIONS)}")
        parts = [
            part.frame.assign(table=part.table)
            for part in sections(self.frames)
            if part.key == name
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def figures(self, name: str) -> "dict[str, Figure]":
        """Draw a figure of the report, such as `effects`, for the first comparison table.

        Returns matplotlib figures by name: several for a figure with one picture per metric, none
        if there is no data to draw. Raises ConfigError for an unknown figure.
        """
        from llama_ablate.report.figures import FIGURES, make

        if name not in FIGURES:
            raise ConfigError(f"there is no figure '{name}'{nearest(name, FIGURES)}")
        first = self.frames.only(self.frames.table)
        return {part.name: part.figure for part in make(name, first, experiment=self.frames)}

    def model(self, variant: str, seed: int | None = None) -> "OpenedModel":
        """Load the model and tokenizer of a finished run, as `.model` and `.tokenizer`.

        `variant` is a label or an id, and may be `baseline`. Without `seed`, the first run of the
        variant with stored weights is loaded. Imports torch.
        Raises ConfigError if there is no such run, or if its weights were not kept.
        """
        runs = self.runs
        variants = (self.frames.plan.variant(variant, t.plan) for t in self.frames.tables)
        ids = {variant.id for variant in variants if variant}
        named = runs[runs["variant_id"].isin(ids)]
        if named.empty:
            raise ConfigError(f"there is no variant '{variant}'{nearest(variant, {*runs.variant})}")
        ok = named[(named["use"] == "reported") & (named["outcome"] == "ok")]
        selected = ok if seed is None else ok[ok["seed"] == seed]
        if selected.empty:
            finished = ", ".join(str(seed) for seed in sorted({*ok["seed"]})) or "none"
            what = "run" if seed is None else f"run of seed {seed}"
            raise ConfigError(f"no {what} of '{variant}' has ended ok; seeds that did: {finished}")
        folders = [
            folder
            for id_ in selected["run"]
            for results in self._results
            if (folder := results.folder(id_))
        ]
        if not folders:
            raise ConfigError(f"'{self.frames.root}' is a pack, which holds no weights")
        from llama_ablate.interop.loader import open_model

        refused: list[ConfigError] = []
        for folder in folders:
            try:
                return open_model(folder)
            except ConfigError as error:
                refused.append(error)
        raise refused[0]

    def __repr__(self) -> str:
        tables = self.tables
        return (
            f"<results of '{self.name}': {tables['finished'].sum()} of {tables['runs'].sum()} runs "
            f"finished, {len(self.frames.tables)} table(s)>"
        )

    def _repr_html_(self) -> str:
        """Return the headline and short comparison tables as HTML without external resources."""
        from llama_ablate.report.sections import sections

        parts = [part for part in sections(self.frames) if part.key == "comparison"]
        more = len(parts) - _TABLES_SHOWN
        lines = [
            f"<h4>{escape(self.name)}</h4>",
            f"<p><em>{escape(self.question)}</em></p>" if self.question else "",
            f"<p>{escape(self.headline)}</p>",
            *(_html(part) for part in parts[:_TABLES_SHOWN]),
            f"<p>{more} more table(s): <code>.tables</code></p>" if more > 0 else "",
            f"<p>{len(self.warnings)} warning(s): <code>.warnings</code></p>"
            if self.warnings
            else "",
        ]
        return "\n".join(line for line in lines if line)

    def _over(self, make: Callable[[Frames], pd.DataFrame]) -> pd.DataFrame:
        frames = [make(frames) for frames in self._experiments]
        return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


def open(folder: Path | str) -> OpenedResults:  # noqa: A001  it is read as `la.open`
    """Open the results of an experiment from its results folder or from a pack.

    A pack is a folder with the same results in a few files, without weights. A folder written by
    the command `compare` opens as `OwnRuns`, which has the frames of the same names. Raises
    ConfigError if the folder has no results, or if a file is damaged.
    """
    path = Path(folder).expanduser()
    if (path / OPTIONS_FILE).is_file():
        return cast("OpenedResults", OwnRuns.open(path))
    results = Results.open(path)
    return OpenedResults(Frames.of(results), [results])


def concat(results: Sequence[OpenedResults | Path | str]) -> OpenedResults:
    """Join the results of several experiments: concatenated frames, and one comparison of all rows.

    Each row of the comparison is paired by seed with the baseline of its own experiment, and the
    confidence intervals are simultaneous over the rows of all experiments. `warnings` lists other
    differences between the experiments. Raises ConfigError, which names the difference, unless all
    baselines have the same architecture, text and training.
    """
    opened = [result if isinstance(result, OpenedResults) else open(result) for result in results]
    if not opened:
        raise ConfigError("concat: name one experiment or more")
    every = [frames for result in opened for frames in result._experiments]  # noqa: SLF001
    joined = unions.union(every) if len(every) > 1 else every[0]
    folders = [result for experiment in opened for result in experiment._results]  # noqa: SLF001
    return OpenedResults(joined, folders)


def compare(runs: pd.DataFrame, baseline: str, **options: Any) -> OwnRuns:
    """Compare the variants in a table of runs that another trainer made.

    `runs` has a row for each run, or each step of a run, with the columns `variant`, `seed`,
    optionally `step`, and metrics. `options` are `metric`, `margin`, `target` (a loss whose steps
    and seconds are compared), `higher_is_better`, `unpaired`, `by` (columns that divide the runs
    into tables), `documents` (a frame with `variant`, `seed`, `document`, `tokens` and `loss`), and
    names of columns for `variant`, `seed` and `step`. The result has the frames `comparison()`,
    `targets()`, `runs`, `curves` and `metrics`. Raises ConfigError for a missing baseline or
    column, and for a run that is given twice.
    """
    return OwnRuns.of(runs, baseline, **options)


def report(folder: Path | str) -> Path:
    """Write the report of an experiment's results; return the path of its HTML page.

    The page's folder also gets `tables/`, with `runs.csv` and `curves.csv`, and `figures/`. Raises
    ConfigError if the folder has no results.
    """
    from llama_ablate.commands.report import write

    answer = write(Results.open(Path(folder).expanduser()))
    return Path(answer.values["report"])  # noqa: PD011  no frame's


def run(
    experiment: Path | str | Mapping[str, Any],
    *,
    results: Path | str = "results",
    workers: int | None = None,
    device: str = "auto",
    keep_weights: str = "all",
    sets: Sequence[str] = (),
    plugins: Sequence[Path | str] = (),
    only: Sequence[str] = (),
    redo: Sequence[str] = (),
) -> OpenedResults:
    """Run an experiment, write its report, and open its results.

    `experiment` is the path of an experiment file, or a mapping with the same keys. `results` is
    the parent folder of all results. `workers` is the number of concurrent runs (default: one per
    core or GPU). `keep_weights` is `none`, `best` or `all`. `sets` are overrides such as
    `train.lr=3e-4`, and `plugins` are Python files that register components. `only` restricts
    training to the named variants; `redo` names variants to train again.
    Finished runs are not repeated; after an interrupt, the same call continues the experiment.
    Progress is shown on standard error. Raises ConfigError with the line that the command prints.
    """
    from llama_ablate.commands import run as command
    from llama_ablate.commands.shared.options import of
    from llama_ablate.config import experiment as files
    from llama_ablate.config import plugins as of_plugins

    options = of(
        command.RunOptions,
        file="experiment" if isinstance(experiment, Mapping) else experiment,
        sets=sets,
        plugins=plugins,
        results=results,
        only=only,
        redo=redo,
        workers=workers,
        device=device,
        keep_weights=keep_weights,
    )
    of_plugins.load(options.plugins)
    if isinstance(experiment, Mapping):
        source = files.from_mapping(experiment, options.sets)
    else:
        source = files.load(options.file.expanduser(), options.sets)
    command.run_source(source, options)
    return open(options.results / source.experiment.slug)


def _html(section: "Section") -> str:
    """Return the leading columns of a report section as an HTML table."""
    cells = section.cells.iloc[:, : section.short or None]
    return f"<p><b>{escape(section.title)}</b></p>\n" + cells.to_html(
        index=False, escape=True, border=0
    )
