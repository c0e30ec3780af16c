"""A measured number of a variant, by seed or by process, and its difference from another's."""

import math
from statistics import median

from llama_ablate.findings.stability import UNSTABLE
from llama_ablate.findings.tasks import Table
from llama_ablate.findings.tuning import SPLITS
from llama_ablate.results.record import TRAINING

#: Numbers by seed, or medians by process of an interleaved pass.
Samples = dict[int, float]


def samples(table: Table, label: str, name: str | None) -> Samples:
    """Return a number of a variant: by seed if of its runs, by process if of the variant.

    Empty where nothing of that name was measured, and where the variant was not tried at every
    tuned point. Runs are those at the chosen point. One that diverged has the loss of chance, and
    one that collapsed no more than that: both count against their variant, and none that diverged
    is better than one that did not. Neither has any other number of what it learned.
    """
    name = name or table.loss
    if name in table.ranked:
        runs = table.ranked[table.ranked["label"] == label].copy()
        lost = runs["outcome"].isin(UNSTABLE)
        if split_of(table, name):
            runs.loc[lost, name] = (
                runs.loc[lost, name].fillna(table.chance).clip(upper=table.chance)
            )
        elif not of_training(table, name):
            runs = runs[~lost]
        runs = runs[runs[name].notna()]
        return {int(s): float(v) for s, v in zip(runs["seed"], runs[name], strict=True)}
    metrics = table.metrics
    own = metrics[(metrics["run"] == "") & (metrics["label"] == label) & (metrics["name"] == name)]
    return dict(enumerate(map(median, own["by_process"].iloc[0]))) if len(own) else {}


def split_of(table: Table, name: str | None) -> str:
    """Return the split whose loss a number is; "" of any other number."""
    return next((s for s in SPLITS if (name or table.loss) == f"{s}_{table.unit.number}"), "")


def of_training(table: Table, name: str) -> bool:
    """Return whether a number of runs says how training went, and not what was learned."""
    metrics = table.metrics
    own = metrics[(metrics["name"] == name) & (metrics["run"] != "")]
    return bool((own["metric"] == TRAINING).all())


def differences(own: Samples, other: Samples, *, relative: bool) -> Samples:
    """Return a number minus another's where both have one; of shares, the log of the ratio."""
    shared = [key for key in own if key in other]
    if relative:  # a share of nothing is not defined
        positive = [key for key in shared if own[key] > 0 and other[key] > 0]
        return {key: math.log(own[key] / other[key]) for key in positive}
    return {key: own[key] - other[key] for key in shared}
