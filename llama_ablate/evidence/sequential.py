"""Group-sequential designs: the error spent at each look, and where each arm stands after it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.intervals import FEWEST_SEEDS, Interval, joined_df
from llama_ablate.evidence.student import quantile
from llama_ablate.evidence.text_error import StandardError
from llama_ablate.evidence.verdicts import verdict

Row = TypeVar("Row")
#: Of the runs that a look at an arm takes: all have ended, some have not, some failed.
State = Literal["complete", "pending", "failed"]
#: The chance of being decided at the last look below which an arm goes on no further. Of seven arms
#: three of which equal the baseline it saves a fifth of the runs, and half a percent of the power
#: (tests/evidence/test_sequential.py).
FUTILE = 0.1
_POINTS = 40  # of the distribution of a mean that is predicted


def spending(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the error that each look spends: that of the seeds it adds.

    The linear spending function of Lan & DeMets 1983, Biometrika 70. A look's share is all that it
    may use (Bonferroni over looks), so the shares hold whatever joins the looks' statistics.

    >>> spending((3, 6, 12))
    (0.25, 0.25, 0.5)
    """
    return tuple((later - earlier) / looks[-1] for earlier, later in pairwise((0, *looks)))


@dataclass(frozen=True)
class Standing(Generic[Row]):
    """Where an arm stands: at which look it was last judged, how, and which one it needs."""

    #: The index of the look whose seeds it is judged by; -1 before the first.
    look: int
    #: The index of the look whose seeds it is to have.
    needs: int
    #: Its judgement at that look; before the first, of no seeds.
    row: Row
    #: Whether it is to be judged again, at the look that it needs.
    is_open: bool


def chance_to_decide(
    row: Interval, seeds: int, level: float, is_decided: Callable[[Interval], bool]
) -> float:
    """Return the predicted chance that a row of more `seeds` in all, judged at a level, is decided.

    Its mean then is distributed about that of now as Student's t, with the variance over the seeds
    that are still to come; its variance and the text's part stay (the predictive power of
    Spiegelhalter, Freedman & Blackburn 1986, Control. Clin. Trials 7).
    """
    wider = row.seed_se * math.sqrt(seeds / row.n - 1) * math.sqrt(row.n / seeds)
    error = StandardError(row.seed_se * math.sqrt(row.n / seeds), row.seed_df + seeds - row.n)
    total = math.hypot(error.se, row.text_se)
    text = StandardError(row.text_se, row.text_df)
    half = quantile(1 - level / 2, joined_df(error, text, level)) * total if total else 0.0
    means = row.mean + wider * _quantiles(row.seed_df)
    shifted = (replace(row, mean=m, low=m - half, high=m + half) for m in map(float, means))
    return sum(map(is_decided, shifted)) / len(means)


def is_futile(
    row: Interval,
    look: int,
    looks: Sequence[int],
    shares: Sequence[float],
    is_decided: Callable[[Interval], bool],
) -> bool:
    """Return whether a row that is undecided at a look will hardly be decided at the last.

    It is then left undecided: such a stop can only take from the chance of a false verdict. Fewer
    than five seeds say too little of their spread to tell.
    """
    if look == len(looks) - 1 or row.n < FEWEST_SEEDS or not row.seed_se > 0:
        return False
    level = row.alpha * shares[-1] / shares[look]
    return chance_to_decide(row, looks[-1], level, is_decided) < FUTILE


def is_settled(
    row: Interval,
    look: int,
    looks: Sequence[int],
    shares: Sequence[float],
    margin: float | None,
) -> bool:
    """Return whether a row has a verdict at a look, or will hardly have one at the last."""

    def is_decided(one: Interval) -> bool:
        return verdict(one, margin) != "inconclusive"

    return is_decided(row) or is_futile(row, look, looks, shares, is_decided)


@cache
def _quantiles(df: float) -> NDArray[np.float64]:
    """Return evenly spaced quantiles of Student's t."""
    from scipy import special

    return np.asarray(special.stdtrit(df, (np.arange(_POINTS) + 0.5) / _POINTS), float)


def standings(
    looks: int,
    first: Mapping[str, int],
    state: Callable[[str, int], State],
    judge: Callable[[Mapping[str, int]], Mapping[str, Row]],
    decided: Callable[[str, int, Row], bool],
) -> dict[str, Standing[Row]]:
    """Return where each arm stands after the looks that are complete; arms that are decided stop.

    `first` has for each arm the look at which it is first judged. `state` tells of an arm and a
    look whether the runs that it takes have ended; a look is complete where no arm that goes on is
    pending. `judge` is given the look at which each arm stands, arms that stopped earlier included,
    and returns the rows of all as one table, of no seeds for those not given. `decided` tells of an
    arm whether its row at a look is. An arm keeps the row of the look at which it was decided,
    whatever is run later. An arm with a failed run stays behind, until that is tried again.
    """
    nothing = judge({})
    stands = {arm: Standing(-1, 0, nothing[arm], is_open=True) for arm in first}
    behind: set[str] = set()
    for look in range(looks):
        going_on = [arm for arm, at in stands.items() if at.is_open and arm not in behind]
        states = {arm: state(arm, look) for arm in going_on}
        stands |= {arm: replace(stands[arm], needs=look) for arm in going_on}
        if "pending" in states.values():
            break
        behind |= {arm for arm, its_state in states.items() if its_state == "failed"}
        complete = [arm for arm in going_on if arm not in behind]
        stands |= {arm: replace(stands[arm], needs=look + 1) for arm in complete}
        judged = [arm for arm in complete if first[arm] <= look]
        at = {arm: standing.look for arm, standing in stands.items() if standing.look >= 0}
        rows = judge({**at, **dict.fromkeys(judged, look)})
        for arm in judged:
            stops = look == looks - 1 or decided(arm, look, rows[arm])
            stands[arm] = Standing(look, look if stops else look + 1, rows[arm], is_open=not stops)
    return stands
