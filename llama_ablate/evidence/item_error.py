"""Standard error of a score difference due to the finite number of items."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.text_error import StandardError


def item_error(differences_SF: ArrayLike, *, least: float = 0.0) -> StandardError:
    """Compute the standard error of a mean score difference over the choice of items.

    `differences_SF` holds score differences, variant minus baseline, of shape (seeds, items). Seeds
    and items are crossed random effects, estimated by moments (Searle, Casella & McCulloch 1992,
    Variance Components, chapter 5), as seeds and documents are in `text_error`; both functions
    agree for documents of equal length. Scores of single items are coarse, so the means of a few
    seeds may agree by chance and seem to have no error. Therefore the squared result is at least
    the interaction variance of seeds and items minus the variance over seeds, and the result is at
    least `least`. Raises ValueError for fewer than two items, and for other shapes.
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
    """Aggregate item scores by group, (S, G), without changing the mean of each seed.

    Items of one group, for example items from one template, are correlated: a change affects all
    items of the group alike. The groups therefore replace the items as sampling units of the
    standard error.
    """
    score_SF = np.asarray(scores_SF, float)
    _, group_F = np.unique(np.asarray(groups_F), return_inverse=True)
    member_FG = np.eye(group_F.max() + 1)[group_F]
    return np.asarray(score_SF @ member_FG * member_FG.shape[1] / len(group_F), float)


def least_error(items: int) -> float:
    """Return the smallest standard error of an accuracy difference over `items` items.

    It is the standard error for two variants that answer all items alike, after half an item is
    added to each of the four combinations of right and wrong answers (Agresti & Min 2005,
    Statistics in Medicine 24). Equal answers to these items do not imply equal answers to all other
    items.
    """
    return 1 / (items + 2)
