"""Learning-rate sensitivity."""

import math
from collections.abc import Sequence

import numpy as np


def sensitivity(losses: Sequence[float]) -> float:
    """Return the mean over a grid of learning rates of the loss above its minimum, in nats.

    Wortsman et al. 2023, arXiv:2309.14322: the expected deviation from the optimum when the rate
    is drawn from the grid (there even in its logarithm), with losses capped at that of the
    untrained model, which the caller has done. NaN for fewer than three rates.
    """
    values = np.asarray(losses, float)
    return float((values - values.min()).mean()) if len(values) > 2 else math.nan
