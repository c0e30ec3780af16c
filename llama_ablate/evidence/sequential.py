"""Error spending of group-sequential designs.

A look is an interim analysis at a number of seeds that is fixed before the first run.
"""

from collections.abc import Sequence
from itertools import pairwise


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
