"""Standard error of a loss difference from the finite held-out text, clustered by document.

Seeds and documents are crossed: every seed is measured on the same documents. The variance over
seeds holds the noise of seeds within a document already, so that part is taken out here, and the
two errors add.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: A split with fewer documents is cut into blocks instead: their number is too small for an error.
DOCUMENTS = 20
#: Clusters of a split at most: more say little more of the error, and every run's record has them.
CLUSTERS = 64
#: Least degrees of freedom of a text's error by itself: where its estimate has fewer, two mean
#: squares nearly cancel in it, and it is small rather than uncertain.
LEAST_DF = 4.0
_FALL = 0.5  # of the variance of a document's effect, as a power of its length


@dataclass(frozen=True)
class StandardError:
    """A standard error in nats per token, and its degrees of freedom."""

    se: float
    df: float


def clusters(documents: ArrayLike, predictions: int, context: int) -> NDArray[np.int64]:
    """Return the start of each cluster of a split, as an index of its predictions.

    `documents` are the predictions at which documents begin, the first at 0. Clusters are the
    documents; of fewer than 20, the windows of `context` predictions. More than 64 are joined, in
    reading order, to stretches of about as many predictions each.
    """
    starts = np.asarray(documents, np.int64)
    if len(starts) < DOCUMENTS:
        starts = np.arange(0, predictions, context)
    if len(starts) <= CLUSTERS:
        return starts
    _, first = np.unique(starts * CLUSTERS // predictions, return_index=True)
    return starts[first]


def kind(documents: int) -> str:
    """Name the clusters of a split by its number of documents."""
    if documents < DOCUMENTS:
        return "blocks"
    return "documents" if documents <= CLUSTERS else "groups of documents"


def text_error(differences_SF: ArrayLike, tokens_F: ArrayLike) -> StandardError:
    """Compute the standard error of a loss difference over the choice of held-out text.

    `differences_SF` are total nats, variant minus baseline, by seed and document; `tokens_F` the
    predicted tokens of each document. The estimate is the sum over documents divided by the sum of
    tokens, mean over seeds: a ratio (Cochran 1977, Sampling Techniques, section 6.4). Its variance
    over documents less that of the interaction of seeds and documents, by moments of the crossed
    random effects (Searle, Casella & McCulloch 1992, Variance Components, chapter 5), at least 0.

    Documents have unequal sizes: the correction (F / (F - 1) for equal ones) and the degrees of
    freedom (F - 1) are those of a working model (Bell & McCaffrey 2002, Survey Methodology 28), in
    which the variance of a document's effect falls with the root of its length: with files of
    Python's library it fell with a power of 0.4 to 0.6. With one seed the interaction cannot be
    told apart and stays in. Raises ValueError for fewer than two documents, and for other shapes.
    """
    nats_SF, tokens = np.asarray(differences_SF, float), np.asarray(tokens_F, float)
    if nats_SF.ndim != 2 or nats_SF.shape[1:] != tokens.shape or len(tokens) < 2:
        raise ValueError(
            f"differences {nats_SF.shape} and tokens {tokens.shape}: must be (seeds, documents) "
            "and (documents,), of two documents or more"
        )
    total, seeds = tokens.sum(), len(nats_SF)
    residuals_SF = nats_SF - nats_SF.sum(1, keepdims=True) / total * tokens
    mean_F = residuals_SF.mean(0)
    correction, freedom = _unequal(tokens)
    documents = correction * float(mean_F @ mean_F) / total**2
    if seeds == 1:
        return StandardError(math.sqrt(documents), freedom)
    within = float(((residuals_SF - mean_F) ** 2).sum())
    interaction = correction * within / (seeds * (seeds - 1)) / total**2
    text = documents - interaction
    if text <= 0:
        return StandardError(0.0, freedom)
    # Satterthwaite 1946, Biometrics Bulletin 2, of the difference of two mean squares.
    dispersion = documents**2 / freedom + interaction**2 / (freedom * (seeds - 1))
    return StandardError(math.sqrt(text), text**2 / dispersion)


def _unequal(tokens_F: NDArray[np.float64]) -> tuple[float, float]:
    """Return the correction and the degrees of freedom of squared residuals of a ratio.

    With effects b of the documents, the residuals are tokens * (b - weighted mean of b) and the sum
    of their squares is a quadratic form in b: its expectation is the trace of form * variance, its
    degrees of freedom are trace^2 / trace((form * variance)^2).
    """
    variance_F = tokens_F**-_FALL
    centred_FF = tokens_F[:, None] * (np.eye(len(tokens_F)) - tokens_F / tokens_F.sum())
    form_FF = centred_FF.T @ centred_FF * variance_F
    trace = np.trace(form_FF)
    true = tokens_F**2 @ variance_F
    return float(true / trace), float(trace**2 / (form_FF * form_FF.T).sum())
