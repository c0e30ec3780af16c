"""Stability of training: how runs count, rates of divergence and collapse, spikes, norms."""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from llama_ablate.evidence import Ended
from llama_ablate.evidence.rates import share
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
_NUMBERS = ("loss_spike_share", "grad_norm_spike_share", "grad_norm_median", "grad_norm_max")


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


def stability(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each variant, over its finished runs at every tuned point.

    Columns: `label, runs`; for each outcome of `UNSTABLE` how many runs ended so, their share and
    the ends of its interval (`diverged, diverged_share, diverged_low, diverged_high` ...); and the
    means of the numbers that a run notes while it trains.
    """
    finished = runs[runs["outcome"].isin(FINAL)]
    rows = []
    for label, own in finished.groupby("label", sort=False):
        row = {"label": label, "runs": len(own)}
        for outcome in UNSTABLE:
            count = int((own["outcome"] == outcome).sum())
            low, high = share(count, len(own))
            row |= {
                outcome: count,
                f"{outcome}_share": count / len(own),
                f"{outcome}_low": low,
                f"{outcome}_high": high,
            }
        rows.append(row | {n: float(own[n].mean()) if n in own else math.nan for n in _NUMBERS})
    return pd.DataFrame(rows)
