"""Group-sequential designs: error spending over looks, and the progress of each arm.

A look is an interim analysis at a number of seeds that is fixed before the first run. An arm is a
variant that is compared with the baseline; an arm that is decided at a look gets no further seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Literal, TypeVar

Row = TypeVar("Row")
#: State of the runs that a look needs of an arm: all have ended, some have not, or some failed.
State = Literal["complete", "pending", "failed"]


def spending(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the error level that each look spends.

    The shares are proportional to the new seeds of each look. `looks` lists the total number of
    seeds at each look. This is the linear spending function of Lan & DeMets 1983, Biometrika 70.
    Each look tests at its own share alone (Bonferroni over looks), so the total error is kept for
    any correlation between looks.

    >>> spending((3, 6, 12))
    (0.25, 0.25, 0.5)
    """
    return tuple((later - earlier) / looks[-1] for earlier, later in pairwise((0, *looks)))


@dataclass(frozen=True)
class Standing(Generic[Row]):
    """Progress of an arm: its last look, and its table row at the last look."""

    #: Index of the last look at which the arm was judged; -1 before the first look.
    look: int
    #: Index of the look for which the arm needs runs.
    needs: int
    #: Row of the arm at its last look; before the first look, a row without seeds.
    row: Row
    #: Whether the arm will be judged again, at the look `needs`.
    is_open: bool


def standings(
    looks: int,
    arms: Sequence[str],
    state: Callable[[str, int], State],
    judge: Callable[[Mapping[str, int]], Mapping[str, Row]],
    decided: Callable[[str, int, Row], bool],
) -> dict[str, Standing[Row]]:
    """Judge the arms at each complete look, and stop the arms that are decided.

    `state` returns whether the runs of an arm for a look are complete, pending or failed. A look is
    complete if no open arm is pending. `judge` takes the look of each arm, including arms that
    stopped earlier, and returns the rows of all arms as one table; an arm without a look has a row
    without seeds. `decided` returns whether a row stops its arm. An arm keeps the row of the look
    that decided the arm, whatever is run later. An arm with a failed run is judged at no further
    look until the run is tried again.
    """
    nothing = judge({})
    stands = {arm: Standing(-1, 0, nothing[arm], is_open=True) for arm in arms}
    behind: set[str] = set()
    for look in range(looks):
        going_on = [arm for arm, at in stands.items() if at.is_open and arm not in behind]
        states = {arm: state(arm, look) for arm in going_on}
        stands |= {arm: replace(stands[arm], needs=look) for arm in going_on}
        if "pending" in states.values():
            break
        behind |= {arm for arm, its_state in states.items() if its_state == "failed"}
        complete = [arm for arm in going_on if arm not in behind]
        at = {arm: standing.look for arm, standing in stands.items() if standing.look >= 0}
        rows = judge({**at, **dict.fromkeys(complete, look)})
        for arm in complete:
            stops = look == looks - 1 or decided(arm, look, rows[arm])
            stands[arm] = Standing(look, look if stops else look + 1, rows[arm], is_open=not stops)
    return stands
