"""Comparison of runs that another trainer made, from a table with a row for each run or step.

Columns are the variant, the seed, optionally the step, and metrics. The statistics are those of an
experiment's comparison: differences paired by seed, variances moderated by the other rows, and
simultaneous intervals (`docs/evidence.md`). The error from the held-out text is unknown, since no
losses by document are given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.evidence.intervals import (
    ALPHA,
    NOTHING,
    Array,
    join,
    moderate_variances,
    simultaneous,
)
from llama_ablate.evidence.pairing import measure_pairing
from llama_ablate.evidence.verdicts import SIDES, count_ended, judge, negate, seeds_to_decide
from llama_ablate.findings.columns import list_rows, make_frame
from llama_ablate.terminal import listed, plural

#: Names of the columns of a table of runs, the most usual first. An export of Weights & Biases has
#: `Name` and `config.seed`.
_NAMES = {
    "variant": ("variant", "name", "Name", "arm", "config.variant"),
    "seed": ("seed", "config.seed", "config.train.seed"),
    "step": ("step", "_step", "Step", "iter", "tokens"),
}
_METRICS = (
    "loss",
    "val_loss",
    "validation_loss",
    "eval_loss",
    "test_loss",
    "val/loss",
    "eval/loss",
)


@dataclass(frozen=True)
class OwnRuns:
    """Runs of another trainer, and how to compare them."""

    #: A row for each variant and seed, with the columns `variant`, `seed` and metrics.
    frame: pd.DataFrame
    metric: str
    #: Columns of the given table that were taken as variant, seed and step.
    taken: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pd.DataFrame, metric: str | None = None, **given: str | None) -> "OwnRuns":
        """Read a table of runs or steps; of several steps, the last one of each run counts.

        `given` names the columns of `variant`, `seed` and `step`, which are found by their usual
        names otherwise. Raises ConfigError for a missing column, a metric that is not a number, and
        a run that is given twice.
        """
        taken = {kind: _find_column(table, kind, given.get(kind)) for kind in _NAMES}
        chosen = _find_metric(table, metric, taken)
        renamed = {column: kind for kind, column in taken.items() if column}
        frame = table.rename(columns=renamed)
        keys = ["variant", "seed"]
        frame = frame.dropna(subset=keys).assign(variant=frame["variant"].astype(str))
        if taken["step"]:
            frame = frame.sort_values("step", kind="stable").dropna(subset=chosen)
            frame = frame.drop_duplicates([*keys, "step"], keep="last") if metric is None else frame
            repeated = frame.duplicated([*keys, "step"])
        else:
            repeated = frame.duplicated(keys)
        if repeated.any():
            variant, seed = frame.loc[repeated, keys].iloc[0]
            raise ConfigError(
                f"variant '{variant}', seed {seed}: is given twice; a run needs a seed of its own"
            )
        frame = frame.drop_duplicates(keys, keep="last")
        return cls(frame, chosen, {kind: column for kind, column in taken.items() if column})


def _find_column(table: pd.DataFrame, kind: str, given: str | None) -> str:
    """Return the column of a kind; "" for a missing step. Raises ConfigError for another."""
    if given is not None and given not in table:
        raise ConfigError(f"--{kind} {given}: there is no such column{nearest(given, [*table])}")
    column = given or next((name for name in _NAMES[kind] if name in table), "")
    if not column and kind != "step":
        columns = listed([f"'{name}'" for name in table], 8)
        raise ConfigError(f"no column '{kind}' among {columns}: name it with --{kind} COLUMN")
    return column


def _find_metric(table: pd.DataFrame, given: str | None, taken: dict[str, str]) -> str:
    """Return the metric to compare: the given one, or the one that looks like a loss."""
    numbers = [str(name) for name in table.select_dtypes("number") if name not in taken.values()]
    usual = [name for name in _METRICS if name in numbers]
    usual += [name for name in numbers if "loss" in name and name not in usual]
    metric = given or next(iter(usual or numbers), "")
    if metric not in numbers:
        what = f"--metric {given}: is no column of numbers" if given else "no column has numbers"
        raise ConfigError(f"{what}; columns of numbers: {listed(numbers, 8) or 'none'}")
    return metric


def compare_runs(
    runs: OwnRuns,
    baseline: str,
    *,
    margin: float | None = None,
    higher_is_better: bool = False,
    unpaired: bool = False,
) -> pd.DataFrame:
    """Compare each variant of another trainer's runs with the baseline.

    Runs are paired by seed; with `unpaired`, the variances of the arms are moderated by each other
    and added (Welch, with Satterthwaite's degrees of freedom). A NaN or infinite value is a lost
    run. Verdicts are of lower values unless `higher_is_better`. Returns the columns of the section
    `own_runs`. Raises ConfigError for a missing baseline, and for variants without a common seed.
    """
    wide = runs.frame.pivot_table(runs.metric, "variant", "seed", sort=False, dropna=False)
    wide = wide.reindex(index=runs.frame["variant"].unique())
    if baseline not in wide.index:
        names = [*map(str, wide.index)]
        raise ConfigError(
            f"baseline '{baseline}': there is no such variant{nearest(baseline, names)}"
        )
    has_run = ~runs.frame.assign(run=1).pivot_table("run", "variant", "seed").isna()
    has_run = has_run.reindex(index=wide.index, columns=wide.columns).fillna(False)
    values = wide.where(np.isfinite(wide))
    others = [name for name in wide.index if name != baseline]
    differences = _compare_arms(values, baseline, others, unpaired=unpaired)
    ended = pd.DataFrame(np.where(values.isna(), "diverged", "ok"), values.index, values.columns)
    ended = ended.where(has_run, "")
    rows = []
    for name, row in zip([baseline, *others], [None, *list_rows(differences)], strict=True):
        losses = values.loc[name]
        sides = [count_ended(ended.loc[[of]].to_numpy()[0]) for of in (name, baseline)]
        counts = dict(zip(SIDES, [n for side in sides for n in side.values()], strict=True))
        interval: dict[str, Any] = {**(row or NOTHING), **counts}
        judged = negate(interval) | counts if higher_is_better else interval
        word = judge(judged, margin) if row else "baseline"
        correlation, saved = measure_pairing(losses, values.loc[baseline])
        rows.append(
            {
                **interval,
                "label": name,
                "baseline": name == baseline,
                "n": interval["n"] if row else int(losses.notna().sum()),
                "value": losses.mean(),
                "sd": losses.std(ddof=1),
                "difference": interval["mean"] if row else 0.0,
                "verdict": word,
                "seeds_low": seeds_to_decide(judged, margin)
                if word == "inconclusive" and not unpaired
                else math.nan,
                "correlation": correlation if row else math.nan,
                "pairing_saves": saved if row else math.nan,
                "lost": sides[0]["lost"],
            }
        )
    return make_frame(rows, "own_runs")


def _compare_arms(
    values: pd.DataFrame, baseline: str, others: Sequence[str], *, unpaired: bool
) -> pd.DataFrame:
    """Return the intervals of all differences from the baseline, as rows of `NOTHING`."""
    if unpaired:
        return pd.DataFrame(_compare_means(values.loc[[baseline, *others]].to_numpy(float)))
    differences = values.loc[[*others]] - values.loc[baseline]
    alone = [name for name in others if differences.loc[name].isna().all()]
    if alone and values.loc[alone].notna().any(axis=None):
        raise ConfigError(
            f"'{alone[0]}' and '{baseline}' have no seed in common: --unpaired compares their means"
        )
    return simultaneous(differences)


def _compare_means(values_AN: Array) -> dict[str, Array]:  # noqa: N803 - axes
    """Compare the means of all arms with the first arm's, without pairs.

    `values_AN` has a row for each arm, the baseline first, with NaN for a missing seed.
    """
    n = np.sum(~np.isnan(values_AN), 1)
    variances = [
        np.nanvar(of, ddof=1) if count > 1 else math.nan
        for of, count in zip(values_AN, n, strict=True)
    ]
    variance, df, pooled = moderate_variances(variances, n - 1.0)
    parts = variance / n
    mean = np.nanmean(values_AN, 1)
    squared = parts[1:] + parts[0]
    joined = squared**2 / (parts[1:] ** 2 / df[1:] + parts[0] ** 2 / df[0])
    seeds = np.minimum(n[1:], n[0])
    level = ALPHA / len(squared)
    interval = join(mean[1:] - mean[0], np.sqrt(squared), joined, 0.0, math.inf, seeds, level)
    return {**interval, "pooled": pooled[1:]}


def describe_limits(rows: pd.DataFrame, runs: OwnRuns, *, unpaired: bool) -> list[str]:
    """Return sentences on what such a comparison cannot know."""
    columns = ", ".join(f"{kind} from '{column}'" for kind, column in runs.taken.items())
    correlations = rows["correlation"].dropna()
    pairing = "Unpaired: the means of arms are compared"
    if not unpaired:
        pairing = "Paired by seed"
        if len(correlations):
            pairing += (
                f"; correlation over seeds {correlations.min():.2f} to {correlations.max():.2f}"
            )
    others = len(rows) - 1
    return [
        f"Read {columns}; the metric is '{runs.metric}', its last value of each run.",
        f"{pairing}. The intervals hold for all {others} {plural(others, 'row')} at once.",
        "Not known: the error from the finite held-out text, whether the harness treats arms alike "
        "(no repeated baseline), and whether arms read equal tokens.",
    ]


def read_margin(stated: str | None) -> float | None:
    """Return a margin in the metric's unit. Raises ConfigError unless it is a number above 0."""
    if stated is None:
        return None
    try:
        size = float(stated)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise ConfigError(f"--margin {stated}: must be a number above 0, such as 0.02")
    return size
