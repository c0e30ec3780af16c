"""Comparison of runs that another trainer made, from a table with a row for each run or step.

Columns are the variant, the seed, optionally the step, and metrics. The statistics are those of an
experiment's comparison: differences paired by seed, variances moderated by the other rows, and
simultaneous intervals (`docs/evidence.md`). The error from the held-out text is added if losses by
document are given.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.evidence.intervals import (
    ALPHA,
    NOTHING,
    Array,
    estimate_unpaired,
    simultaneous,
)
from llama_ablate.evidence.pairing import measure_pairing
from llama_ablate.evidence.verdicts import count_sides, judge, negate, seeds_to_decide
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, to_json, write_text
from llama_ablate.findings.columns import list_rows, make_frame
from llama_ablate.findings.compare import find_text_error
from llama_ablate.findings.targets import compare_times
from llama_ablate.terminal import listed

#: Names of the columns of a table of runs, the most usual first. An export of Weights & Biases has
#: `Name` and `config.seed`.
_NAMES = {
    "variant": ("variant", "name", "Name", "arm", "config.variant"),
    "seed": ("seed", "config.seed", "config.train.seed"),
    "step": ("step", "_step", "Step", "iter", "tokens"),
}
_SECONDS = ("seconds", "train_s", "time_s", "_runtime", "Relative Time (Process)")
_METRICS = ("loss", "val_loss", "validation_loss", "eval_loss", "val/loss", "eval/loss")
_KEYS = ["variant", "seed"]
_DOCUMENT = ["document", "tokens", "loss"]
#: Largest relative difference between a run's loss and the mean of its losses by document.
_SAME_LOSS = 0.01
#: Share of its variant's longest run before which the end of a run is early. Runs of equal seconds
#: differ by a few steps.
_EARLY = 0.9
#: File of the options, by which a folder of a comparison is known.
OPTIONS_FILE = "compare.json"


@dataclass(frozen=True)
class OwnRuns:
    """Runs of another trainer, and how to compare them."""

    #: The given rows; the columns `variant`, `seed` and `step` have these names.
    points: pd.DataFrame
    baseline: str
    metric: str
    #: Difference that does not matter, in the metric's unit.
    margin: float | None = None
    #: Loss whose steps and seconds are compared.
    target: float | None = None
    higher_is_better: bool = False
    unpaired: bool = False
    #: Columns whose values divide the runs into tables.
    by: Sequence[str] = ()
    #: Losses by document, with the columns of `_DOCUMENT` besides variant and seed.
    documents: pd.DataFrame | None = None
    #: Columns of the given table that were taken as variant, seed and step.
    taken: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: pd.DataFrame,
        baseline: str,
        *,
        metric: str | None = None,
        variant: str | None = None,
        seed: str | None = None,
        step: str | None = None,
        **options: Any,
    ) -> "OwnRuns":
        """Read a table of runs or steps.

        `variant`, `seed` and `step` name columns, which are found by their usual names otherwise;
        `options` are further fields. Raises ConfigError for a missing column or baseline, a metric
        that is not a number, and a run that is given twice.
        """
        given = {"variant": variant, "seed": seed, "step": step}
        taken = {kind: _find_column(table, kind, name) for kind, name in given.items()}
        taken = {kind: column for kind, column in taken.items() if column}
        if len({*taken.values()}) < len(taken):
            raise ConfigError(f"{listed([*taken])} need columns of their own: {taken}")
        chosen = _find_metric(table, metric, taken)
        values = _read_numbers(table, chosen)
        if "State" in table:  # of an export of Weights & Biases
            values = values.where(table["State"].eq("finished"))
        table = table.assign(**{chosen: values})
        others = [kind for kind, column in taken.items() if kind in table and kind != column]
        points = table.drop(columns=others).rename(columns={of: kind for kind, of in taken.items()})
        points = points.dropna(subset=[*taken]).reset_index(drop=True)
        points = points.assign(variant=points["variant"].astype(str))
        runs = cls(points, baseline, chosen, taken=taken, **options)
        runs._check()
        return runs

    @classmethod
    def open(cls, folder: Path) -> "OwnRuns":
        """Open the runs that `save` wrote. Raises ConfigError for a damaged file."""
        options = parse(disk.read(folder / OPTIONS_FILE), folder / OPTIONS_FILE)
        documents = folder / "documents.csv"
        options["documents"] = pd.read_csv(documents) if documents.is_file() else None
        try:
            return cls.of(pd.read_csv(folder / "points.csv"), **options)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"'{folder}': damaged: {error}") from None

    def save(self, folder: Path) -> None:
        """Write the runs and the options to a folder, for `open`."""
        disk.make(folder)
        for name in ("points", "documents"):
            table = getattr(self, name)
            if table is not None:
                disk.replace(folder / f"{name}.csv", table.to_csv(index=False).encode())
        write_text(folder / OPTIONS_FILE, to_json(self.options))

    @property
    def options(self) -> dict[str, Any]:
        """Options of the comparison, as `of` takes them."""
        left_out = ("points", "documents", "taken")
        names = (of.name for of in fields(self) if of.name not in left_out)
        return {name: getattr(self, name) for name in names}

    def _check(self) -> None:
        for name in ("margin", "target"):
            size = getattr(self, name)
            if size is not None and not 0 < size < math.inf:
                raise ConfigError(f"{name} {size}: must be a number above 0, such as 0.02")
        if missing := [name for name in self.by if name not in self.points]:
            columns = [*map(str, self.points)]
            raise ConfigError(f"by {missing[0]}: no such column{nearest(missing[0], columns)}")
        if self.documents is not None and (self.unpaired or self.by):
            raise ConfigError(
                "documents: give the error of pairs in one table, not with unpaired, by"
            )
        if self.target and "step" not in self.points:
            raise ConfigError("target: needs a row for each step, and a column of steps")
        keys = [*self.by, *_KEYS, *(["step"] if "step" in self.points else [])]
        twice = self.points.duplicated(keys)
        if twice.any():
            where = ", ".join(f"{key} {self.points.loc[twice, key].iloc[0]}" for key in keys)
            raise ConfigError(f"{where}: is given twice; a run needs a seed of its own")
        for name, runs in self.tables:
            names = [*runs["variant"].unique()]
            if self.baseline not in names:
                which = f" in {name}" if name else ""
                near = nearest(self.baseline, names)
                raise ConfigError(f"baseline '{self.baseline}': no such variant{which}{near}")
            if len(names) < 2:
                raise ConfigError(f"baseline '{self.baseline}': no other variant to compare")

    @property
    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Names and points of the tables that are compared, one for each value of `by`."""
        if not self.by:
            yield "", self.points
            return
        for values, rows in self.points.groupby([*self.by], sort=False):
            yield ", ".join(f"{key} {of}" for key, of in zip(self.by, values, strict=True)), rows

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Rows of all steps; empty without a column of steps."""
        return self.points if "step" in self.points else self.points.iloc[:0]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run: its last measured step, and in `lost` whether it has no end.

        A run is lost if its metric is NaN or infinite at the last of the steps at which any run was
        measured, or if it ends early: before nine tenths of the longest run of its variant.
        """
        return pd.concat([self._find_ends(rows).assign(table=name) for name, rows in self.tables])

    def _find_ends(self, points: pd.DataFrame) -> pd.DataFrame:
        is_finite = np.isfinite(points[self.metric])
        if not points.duplicated(_KEYS).any():
            return points.assign(lost=~is_finite)
        points = points[points["step"].isin(points.loc[is_finite, "step"])]
        ends = points.sort_values("step", kind="stable").drop_duplicates(_KEYS, keep="last")
        last = ends.groupby("variant")["step"].transform("max")
        return ends.assign(lost=~np.isfinite(ends[self.metric]) | (ends["step"] < _EARLY * last))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each number at the end of a run, with the columns `name` and `value`."""
        numbers = self.runs.set_index(["table", *_KEYS]).select_dtypes("number")
        return numbers.melt(var_name="name", ignore_index=False).reset_index()

    def comparison(self) -> pd.DataFrame:
        """Compare each variant with the baseline, in every table.

        Runs are paired by seed; if `unpaired`, the variances of the arms are moderated by each
        other and added (Welch, with Satterthwaite's degrees of freedom). Returns the columns of the
        section `own_runs`. Raises ConfigError for variants without a common seed.
        """
        return self._comparison

    @cached_property
    def _comparison(self) -> pd.DataFrame:
        each = [self._compare(rows) for _, rows in self.runs.groupby("table", sort=False)]
        return pd.concat(each, ignore_index=True)

    def _compare(self, runs: pd.DataFrame) -> pd.DataFrame:
        names = self._list_names(runs)
        values = runs.assign(value=runs[self.metric].mask(runs["lost"])).pivot_table(
            "value", "variant", "seed", dropna=False
        )
        values = values.reindex(names)
        ended = {
            name: rows["lost"].map({True: "diverged", False: "ok"})
            for name, rows in runs.groupby("variant")
        }
        if self.unpaired:
            means = estimate_unpaired(values.to_numpy(), ALPHA / (len(names) - 1))
            differences = pd.DataFrame(means)
        else:
            differences = self._pair(values)
        rows = []
        for name, row in zip(names, [None, *list_rows(differences)], strict=True):
            counts = count_sides(ended[name], ended[self.baseline])
            interval: dict[str, Any] = {**(row or NOTHING), **counts}
            judged = negate(interval) | counts if self.higher_is_better else interval
            word = judge(judged, self.margin) if row else "baseline"
            word = "lost" if word == "diverged" else word
            is_open = word == "inconclusive" and not self.unpaired and not counts["own_lost"]
            correlation, saved = measure_pairing(values.loc[name], values.loc[self.baseline])
            measured = {"value": values.loc[name].mean(), "sd": values.loc[name].std(ddof=1)}
            rows.append(
                {
                    **interval,
                    **measured,
                    "table": runs["table"].iloc[0],
                    "variant": name,
                    "baseline": not row,
                    "n": interval["n"] if row else len(values.loc[name].dropna()),
                    "difference": interval["mean"] if row else 0.0,
                    "verdict": word,
                    "seeds_low": seeds_to_decide(judged, self.margin) if is_open else math.nan,
                    "correlation": correlation if row else math.nan,
                    "pairing_saves": saved if row else math.nan,
                    "lost": counts["own_lost"],
                }
            )
        return make_frame(rows, "own_runs")

    def _pair(self, values: pd.DataFrame) -> pd.DataFrame:
        """Return the intervals of differences paired by seed, with the text's error if known."""
        differences = values.iloc[1:] - values.iloc[0]
        has_any = values.notna().any(axis=1)
        alone = [v for v in differences.index[differences.isna().all(axis=1)] if has_any[v]]
        if alone and has_any[self.baseline]:
            raise ConfigError(
                f"'{alone[0]}' and '{self.baseline}' have no seed in common: --unpaired (in Python "
                "`unpaired=True`) compares means"
            )
        if self.documents is None:
            return simultaneous(differences)
        documents = self._read_documents()
        errors = []
        for name, row in differences.iterrows():
            weights = {str(name): 1.0, self.baseline: -1.0}
            errors.append(find_text_error(dict.fromkeys(row.dropna().index, weights), documents))
        if None in errors:
            raise ConfigError("documents: a compared run has none, or others than its pair")
        pairs = [(error.se or math.nan, error.df) for error in errors if error]
        return simultaneous(differences, pd.DataFrame(pairs, differences.index, ["se", "df"]))

    def _read_documents(self) -> dict[tuple[str, Any], Array]:
        """Return total losses and tokens by document, (2, documents), for each run."""
        table = self.documents
        if table is None or not {*_KEYS, *_DOCUMENT} <= {*table.columns}:
            raise ConfigError(f"documents: needs the columns {listed([*_KEYS, *_DOCUMENT])}")
        means = self.runs.set_index(_KEYS)[self.metric].to_dict()
        documents = {}
        for (variant, seed), rows in table.sort_values("document").groupby(_KEYS):
            tokens = rows["tokens"].to_numpy(float)
            documents[str(variant), seed] = np.stack(
                [rows["loss"].to_numpy(float) * tokens, tokens]
            )
            mean = documents[str(variant), seed][0].sum() / tokens.sum()
            reported = means.get((str(variant), seed), math.nan)
            if abs(reported - mean) > _SAME_LOSS * abs(mean):
                what = f"documents of '{variant}', seed {seed}: their mean loss is {mean:.4g}"
                raise ConfigError(f"{what}, and {self.metric} is {reported:.4g}")
        return documents

    def targets(self) -> pd.DataFrame:
        """Compare the steps, and seconds if known, in which runs reach the target loss."""
        return self._targets

    @cached_property
    def _targets(self) -> pd.DataFrame:
        along = ["step", *[name for name in _SECONDS if name in self.points][:1]]
        each = []
        for name, points in self.tables if self.target else ():
            curves = points.assign(loss=points[self.metric]).dropna(subset=[*along, "loss"])
            times = compare_times(curves, self._list_names(points), self.target or 0, along)
            each.append(times.assign(table=name))
        return pd.concat(each, ignore_index=True) if each else make_frame([], "target")

    def _list_names(self, rows: pd.DataFrame) -> list[str]:
        """Return the variants of some rows, the baseline first."""
        return [*dict.fromkeys([self.baseline, *rows["variant"]])]


def read_rows(table: pd.DataFrame, pattern: str | None = None, file: str = "") -> pd.DataFrame:
    """Return a table with a row for each run, or each step of a run, with variant and seed.

    A wide table has a column for each run, named `RUN - METRIC` as in a history of Weights & Biases
    (whose lowest and highest values are left out), or as `pattern` says. With `pattern`, such as
    `{variant}-s{seed}`, the fields are read from the names of runs, or else from the file's name.
    Raises ConfigError for a name that does not fit.
    """
    fields = re.split(r"\{(\w+)\}", pattern or "{Name}")
    if len(fields) < 2:
        raise ConfigError(f"--pattern {pattern}: needs {{variant}} or {{seed}}")
    parts = [f"(?P<{part}>.+)" if at % 2 else re.escape(part) for at, part in enumerate(fields)]
    form = re.compile("".join(parts))
    runs = {}
    for column in map(str, table):
        run, _, metric = column.rpartition(" - ")
        if not run and pattern and form.fullmatch(column):
            run, metric = column, "loss"
        if run and not metric.endswith(("__MIN", "__MAX")):
            runs[column] = (run, metric)
    if runs:
        keys = [name for name in table if name not in runs and " - " not in str(name)]
        each = [
            table[[*keys, column]].dropna().rename(columns={column: metric}).assign(Name=run)
            for column, (run, metric) in runs.items()
        ]
        table = pd.concat(each, ignore_index=True)
    if pattern is None:
        return table
    names = table["Name"] if "Name" in table else pd.Series(file, table.index)
    for name in names.unique():
        if not form.fullmatch(str(name)):
            raise ConfigError(f"'{name}' does not fit --pattern {pattern}")
    return table.assign(**names.astype(str).str.extract(form))


def _find_column(table: pd.DataFrame, kind: str, given: str | None) -> str:
    """Return the column of a kind; "" for a missing step. Raises ConfigError for another."""
    columns = [*map(str, table)]
    if given is not None and given not in columns:
        raise ConfigError(f"{kind} {given}: no such column{nearest(given, columns)}")
    column = given or next((name for name in _NAMES[kind] if name in columns), "")
    if not column and kind != "step":
        names = listed([f"'{name}'" for name in columns], 8)
        more = " (a table has commas between columns)" if len(columns) == 1 else ""
        raise ConfigError(f"no column '{kind}' among {names}: name it with --{kind} COLUMN{more}")
    return column


def _find_metric(table: pd.DataFrame, given: str | None, taken: dict[str, str]) -> str:
    """Return the metric to compare: the given one, or the one that looks like a loss."""
    columns = [str(name) for name in table if name not in taken.values()]
    if given is not None and given not in columns:
        raise ConfigError(f"metric {given}: no such column{nearest(given, columns)}")
    usual = [name for name in _METRICS if name in columns]
    usual += [name for name in columns if "loss" in name]
    metric = given or next(iter(usual), "")
    if not metric:
        names = listed([f"'{name}'" for name in columns], 8)
        raise ConfigError(f"no loss among {names}: name the metric with --metric COLUMN")
    return metric


def _read_numbers(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return a column as numbers. Raises ConfigError for text, naming its row."""
    numbers = pd.to_numeric(table[column], errors="coerce")
    wrong = table[column].notna() & numbers.isna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ConfigError(
            f"{column} '{table[column].iloc[row]}': is not a number, in row {row + 1}"
        )
    return numbers.astype(float)
