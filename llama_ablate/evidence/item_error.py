"""Standard error of a difference of scores from the finite number of a task's items."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.text_error import StandardError


def item_error(differences_SF: ArrayLike, *, least: float = 0.0) -> StandardError:
    """Compute the standard error of a mean score difference over the choice of items.

    `differences_SF` are variant minus baseline, by seed and item. Seeds and items are crossed, as
    seeds and documents are in `text_error`, which this equals for documents of one length; by
    moments of the crossed random effects (Searle, Casella & McCulloch 1992, Variance Components,
    chapter 5). Scores of single items are coarse: a few seeds may agree in their mean by chance,
    and would seem to have no error. So it is at least as large as to make, with the variance over
    seeds, that of seeds and items together; and at least `least`. Raises ValueError for fewer than
    two items, and for other shapes.
    """
    score_SF = np.asarray(differences_SF, float)
    if score_SF.ndim != 2 or score_SF.shape[0] < 1 or score_SF.shape[1] < 2:
        raise ValueError(f"differences {score_SF.shape}: must be (seeds, items), two items or more")
    seeds, items = score_SF.shape
    item_mean_F = score_SF.mean(0)
    total, interaction, missing = float(item_mean_F.var(ddof=1)) / items, 0.0, 0.0
    freedom = max(seeds - 1, 1) * (items - 1)
    if seeds > 1:
        seed_mean_S = score_SF.mean(1)
        residual_SF = score_SF - item_mean_F - seed_mean_S[:, None] + score_SF.mean()
        interaction = float((residual_SF**2).sum()) / freedom / (seeds * items)
        missing = interaction - float(seed_mean_S.var(ddof=1)) / seeds
    floor, alone = max(missing, least**2), total - interaction
    if alone <= floor:
        return StandardError(math.sqrt(floor), freedom)
    # Satterthwaite 1946, Biometrics Bulletin 2, of the difference of two mean squares.
    dispersion = total**2 / (items - 1) + interaction**2 / freedom
    return StandardError(math.sqrt(alone), alone**2 / dispersion)


def by_group(scores_SF: ArrayLike, groups_F: ArrayLike) -> NDArray[np.float64]:
    """Return scores by seed and group, (S, G), whose mean over groups is that over items.

    Items of a group, such as those of one template, are alike: what a change does to one it does to
    the others, and the groups are what other items would be drawn from.
    """
    score_SF = np.asarray(scores_SF, float)
    _, group_F = np.unique(np.asarray(groups_F), return_inverse=True)
    member_FG = np.eye(group_F.max() + 1)[group_F]
    return np.asarray(score_SF @ member_FG * member_FG.shape[1] / len(group_F), float)


def least_error(items: int) -> float:
    """Return the smallest standard error of an accuracy difference over some items.

    That of one more item won and one more lost (Agresti & Min 2005, Statistics in Medicine 24):
    two variants that answer all items alike would not answer all that there are alike.
    """
    return 1 / (items + 2)
