"""How runs count that diverged or collapsed: beside the others, so that none is called worse."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llama_ablate.results.plan import PlannedTable
from llama_ablate.results.record import FINAL

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
