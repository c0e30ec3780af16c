"""Stability of training: how runs count, rates of divergence and collapse, spikes, norms."""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from llama_ablate.evidence import Ended, written
from llama_ablate.evidence.rates import share
from llama_ablate.findings.rows import Row, cell, column, means
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedTable

#: Reads the learning curve of a run.
Curves = Callable[[str], Sequence[Mapping[str, float]]]
_LOSS = "validation_loss_nats"


def milder_outcomes(
    runs: Iterable[Any], curve: Curves, tables: Sequence[PlannedTable]
) -> dict[str, tuple[str, str]]:
    """Return the outcome and reason of each run that counts as less than its own, by id.

    Whether a run collapsed or diverged is told from its own curve. One that is flat near chance may
    still be better all along than one that falls from above: so that it is never called worse, it
    counts as the mildest outcome of all runs of its seed whose losses are as high or higher at
    every evaluation. Where that is `ok`, it was too short. Losses of other tokens, or at other
    steps, do not compare. `runs` are of the tables, whichever of them they are in, and have `id,
    label, seed, outcome, reason`.
    """
    text_of: dict[str, str] = {}
    for table in tables:
        texts = {variant.id: table.text_of(variant).fingerprint for variant in table.variants}
        text_of |= {run.id: texts[run.variant] for run in table.runs}
    by_seed: dict[int, list[Any]] = {}
    for run in runs:
        if run.outcome in FINAL:
            by_seed.setdefault(run.seed, []).append(run)
    found: dict[str, tuple[str, str]] = {}
    for of_seed in by_seed.values():
        if len({run.outcome for run in of_seed}) == 1:
            continue  # no curve needs to be read
        alike: dict[tuple[object, ...], list[tuple[Any, list[float]]]] = {}
        for run in of_seed:
            points = [point for point in curve(run.id) if math.isfinite(point[_LOSS])]
            kind = (text_of[run.id], *(point["step"] for point in points))
            if points:
                alike.setdefault(kind, []).append((run, [point[_LOSS] for point in points]))
        for group in alike.values():
            found |= _milder_of(group)
    return found


def _milder_of(group: Sequence[tuple[Any, list[float]]]) -> dict[str, tuple[str, str]]:
    """Return the same of runs whose losses compare: each with those of its evaluations."""
    found = {}
    for run, own in group:
        milder = [
            other
            for other, losses in group
            if _severity(other) < _severity(run) and all(map(operator.ge, losses, own))
        ]
        if milder:
            mildest = min(milder, key=_severity)
            reason = f"{run.reason}; '{mildest.label}' lies no lower at any evaluation"
            found[run.id] = (mildest.outcome, reason)
    return found


def _severity(run: Any) -> int:
    return ("ok", "collapsed", "diverged").index(run.outcome)


#: Outcomes that count against a variant, the worst first: a run that ended so has no loss to
#: compare.
UNSTABLE: tuple[Literal["diverged", "collapsed"], ...] = ("diverged", "collapsed")


def counted(runs: pd.DataFrame, curve: Curves, tables: Sequence[PlannedTable]) -> pd.DataFrame:
    """Return planned runs with `milder_outcomes`: as they count beside the others."""
    runs = runs.copy()
    for id_, (outcome, reason) in milder_outcomes(list(runs.itertuples()), curve, tables).items():
        own = runs["id"] == id_
        runs.loc[own, "outcome"], runs.loc[own, "reason"] = outcome, reason
        runs.loc[own, "too_short"] = outcome == "ok"
    return runs


def words(runs: pd.DataFrame) -> list[str]:
    """Return how runs ended in words: their outcomes, and `too short` where they are."""
    ended = zip(runs["outcome"], runs["too_short"], strict=True)
    return ["too short" if too_short else str(outcome) for outcome, too_short in ended]


def sides(runs: pd.DataFrame, own: Collection[str], base: Collection[str]) -> tuple[Ended, Ended]:
    """Count how the runs of variants ended and those of others, by id, over the seeds of both."""
    first, second = (runs[runs["variant"].isin(ids)] for ids in (own, base))
    shared = {*first["seed"]} & {*second["seed"]}
    first, second = (side[side["seed"].isin(shared)] for side in (first, second))
    return Ended.of(words(first)), Ended.of(words(second))


@dataclass(frozen=True)
class StabilityRow(Row):
    """How the finished runs of a variant trained, at every tuned point."""

    label: str = column("label of the variant", "variant")
    runs: int = column("finished runs", "runs")
    diverged: int = column("how many of them diverged")
    diverged_share: float = column("their share")
    diverged_low: float = column("lower end of its exact 95% interval")
    diverged_high: float = column("upper end of it")
    collapsed: int = column("how many of them collapsed")
    collapsed_share: float = column("their share")
    collapsed_low: float = column("lower end of its exact 95% interval")
    collapsed_high: float = column("upper end of it")

    @cell("diverged [95% interval]", when=lambda row: bool(row.diverged))
    def of_diverged(self) -> str:
        """Write the share of the runs that diverged."""
        return written.share(self.diverged_share, self.diverged_low, self.diverged_high)

    @cell("collapsed [95% interval]", when=lambda row: bool(row.collapsed))
    def of_collapsed(self) -> str:
        """Write the share of the runs that collapsed."""
        return written.share(self.collapsed_share, self.collapsed_low, self.collapsed_high)

    # What a run notes while it trains is found by its name: each is the mean over the runs.
    loss_spike_share: float = column(
        "share of the steps at which the loss spiked", "loss spikes", ".2%", default=math.nan
    )
    grad_norm_spike_share: float = column(
        "share of the steps at which the gradient norm spiked",
        "gradient spikes",
        ".2%",
        default=math.nan,
    )
    grad_norm_median: float = column(
        "median gradient norm", "gradient norm, median", ".3f", default=math.nan
    )
    grad_norm_max: float = column("largest gradient norm", "largest", ".2f", default=math.nan)


def stability(runs: pd.DataFrame) -> list[StabilityRow]:
    """Return one row for each variant with finished runs, at every tuned point."""
    finished = runs[runs["outcome"].isin(FINAL)]
    rows = []
    for label, own in finished.groupby("label", sort=False):
        noted = [name for name in means(StabilityRow) if name in own]
        values: dict[str, Any] = {name: float(own[name].mean()) for name in noted}
        for outcome in UNSTABLE:
            count = int((own["outcome"] == outcome).sum())
            low, high = share(count, len(own))
            ends = {"share": count / len(own), "low": low, "high": high}
            values |= {outcome: count, **{f"{outcome}_{end}": v for end, v in ends.items()}}
        rows.append(StabilityRow(label=str(label), runs=len(own), **values))
    return rows
