"""Outcomes of runs, corrected by their learning curves, and the stability of training."""

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from llama_ablate.evidence.rates import share
from llama_ablate.findings.columns import iterate, make_frame
from llama_ablate.findings.table import Curves
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedTable

#: Outcomes that count against a variant, the worst first; the run has no loss to compare.
UNSTABLE = ("diverged", "collapsed")
_LOSS = "validation_loss_nats"
_SEVERITY = ("ok", "collapsed", "diverged")
#: Run with its outcome: a row of a frame of runs, or the status of a run.
EndedRun = Any


def milder_outcomes(
    runs: Iterable[EndedRun], curve: Curves, tables: Sequence[PlannedTable]
) -> dict[str, tuple[str, str]]:
    """Return corrected outcomes, with reasons, for runs whose outcome is too harsh, by run id.

    The outcome in a run's record is determined from the run's own learning curve. A run that stays
    flat near chance may therefore be recorded as `collapsed`, although its losses are lower
    throughout than the losses of an `ok` run that falls from above chance. So that such a run never
    ranks as worse, its outcome is corrected to the mildest outcome of all runs of the same seed
    whose losses are as high or higher at every evaluation. `ok` is milder than `collapsed`, and
    `collapsed` is milder than `diverged`. A run that is corrected to `ok` was too short. Losses on
    other tokens or at other steps are not comparable. Each of `runs` belongs to one of `tables`.
    """
    final = sorted((run for run in runs if run.outcome in FINAL), key=lambda run: run.seed)
    text_of: dict[str, str] = {}
    outcomes: dict[str, tuple[str, str]] = {}
    for _, group in groupby(final, key=lambda run: run.seed):
        seed_runs = list(group)
        if len({run.outcome for run in seed_runs}) == 1:
            continue  # no curve needs to be read
        text_of = text_of or _list_texts(tables)
        alike: dict[tuple[object, ...], list[tuple[EndedRun, list[float]]]] = {}
        for run in seed_runs:
            points = [point for point in curve(run.id) if math.isfinite(point[_LOSS])]
            kind = (text_of[run.id], *(point["step"] for point in points))
            if points:
                alike.setdefault(kind, []).append((run, [point[_LOSS] for point in points]))
        for alike_runs in alike.values():
            outcomes |= _milder_of(alike_runs)
    return outcomes


def _list_texts(tables: Sequence[PlannedTable]) -> dict[str, str]:
    """Return the fingerprint of each run's text, by run id."""
    text_of: dict[str, str] = {}
    for table in tables:
        texts = {variant.id: table.text_of(variant).fingerprint for variant in table.variants}
        text_of |= {run.id: texts[run.variant] for run in table.runs}
    return text_of


def _milder_of(group: Sequence[tuple[EndedRun, list[float]]]) -> dict[str, tuple[str, str]]:
    """Return corrected outcomes for a group of runs with comparable loss curves."""
    outcomes = {}
    for run, curve in group:
        milder = [
            other
            for other, losses in group
            if _severity(other) < _severity(run) and all(map(operator.ge, losses, curve))
        ]
        if milder:
            mildest = min(milder, key=_severity)
            reason = f"{run.reason}; '{mildest.label}' lies no lower at any evaluation"
            outcomes[run.id] = (mildest.outcome, reason)
    return outcomes


def _severity(run: EndedRun) -> int:
    return _SEVERITY.index(run.outcome)


def correct_outcomes(
    runs: pd.DataFrame, curve: Curves, tables: Sequence[PlannedTable]
) -> pd.DataFrame:
    """Return runs with outcomes corrected by `milder_outcomes`."""
    milder = milder_outcomes(iterate(runs), curve, tables)
    if not milder:
        return runs
    runs = runs.copy()
    for at, id_ in runs["id"].items():
        if id_ in milder:
            outcome, reason = milder[id_]
            runs.loc[[at], ["outcome", "reason", "too_short"]] = outcome, reason, outcome == "ok"
    return runs


#: Training metrics whose means over runs describe stability.
_SPIKES = ("loss_spike_share", "grad_norm_spike_share", "grad_norm_median", "grad_norm_max")


def describe_stability(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each variant, over its finished runs at all tuning points.

    The shares of diverged and collapsed runs have exact 95% intervals.
    """
    rows = []
    for label, variant_runs in runs[runs["outcome"].isin(FINAL)].groupby("label", sort=False):
        row: dict[str, Any] = {"label": label, "runs": len(variant_runs)}
        for word in UNSTABLE:
            hits = int(variant_runs["outcome"].eq(word).sum())
            low, high = share(hits, len(variant_runs))
            row |= {word: hits, f"{word}_share": hits / len(variant_runs)}
            row |= {f"{word}_low": low, f"{word}_high": high}
        rows.append(row | {n: variant_runs[n].mean() for n in _SPIKES if n in variant_runs})
    return make_frame(rows, "stability")


def count_outcomes(outcomes: Iterable[str]) -> str:
    """Format the counts of run outcomes: `3 ok`, or `2 ok, 1 diverged`."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome] = counts.get(outcome, 0) + 1
    order = sorted(counts, key=lambda outcome: (outcome != "ok", outcome))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)
