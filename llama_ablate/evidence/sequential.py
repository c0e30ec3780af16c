"""Group-sequential designs: the error spent at each look, and the look of each arm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Literal, TypeVar

Row = TypeVar("Row")
#: Of the runs that a look at an arm takes: all have ended, some have not, some failed.
State = Literal["complete", "pending", "failed"]


def spending(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the error that each look spends, by the seeds that it adds.

    The linear spending function of Lan & DeMets 1983, Biometrika 70. A look's share is all that it
    may use (Bonferroni over looks), so the shares hold whatever joins the looks' statistics.

    >>> spending((3, 6, 12))
    (0.25, 0.25, 0.5)
    """
    return tuple((later - earlier) / looks[-1] for earlier, later in pairwise((0, *looks)))


@dataclass(frozen=True)
class Standing(Generic[Row]):
    """Last look of an arm, and its row there."""

    #: The index of the look whose seeds it is judged by; -1 before the first.
    look: int
    #: The index of the look whose seeds it is to have.
    needs: int
    #: Its judgement at that look; before the first, of no seeds.
    row: Row
    #: Whether it is to be judged again, at the look that it needs.
    is_open: bool


def standings(
    looks: int,
    arms: Sequence[str],
    state: Callable[[str, int], State],
    judge: Callable[[Mapping[str, int]], Mapping[str, Row]],
    decided: Callable[[str, int, Row], bool],
) -> dict[str, Standing[Row]]:
    """Judge arms at each look that is complete; arms that are decided stop.

    `state` says of an arm and a look whether the runs that it takes have ended; a look is complete
    where no arm that goes on is pending. `judge` is given the look of each arm, arms that stopped
    earlier included, and returns the rows of all as one table, of no seeds for those not given. An
    arm keeps the row of the look at which it was decided, whatever is run later. An arm with a
    failed run stays behind, until that is tried again.
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
