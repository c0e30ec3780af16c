"""Standard error of a loss difference from the finite held-out text, clustered by document.

Seeds and documents are crossed: every seed is measured on the same documents. The variance over
seeds already contains the interaction of seeds and documents. This module subtracts that
interaction from the variance over documents, so that the error over seeds and the error over
documents can be added.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Fewest documents that serve as clusters of a split. A split with fewer documents is divided into
#: blocks instead, since so few documents do not determine an error.
DOCUMENTS = 20
#: Largest number of clusters of a split: more clusters hardly improve the error estimate, and every
#: run's record stores them.
CLUSTERS = 64
#: Lower bound on the degrees of freedom of a text error that is used alone. An estimate with fewer
#: is the difference of two nearly equal mean squares: it is small rather than uncertain.
LEAST_DF = 4.0
_FALL = 0.5  # the variance of a document's effect falls with this power of its length


@dataclass(frozen=True)
class StandardError:
    """Standard error in nats per token, with its degrees of freedom."""

    se: float
    df: float


def clusters(documents: ArrayLike, predictions: int, context: int) -> NDArray[np.int64]:
    """Return the start index of each text cluster of a split, counted in predictions.

    `documents` holds the index of each document's first prediction, beginning with 0. Each document
    is a cluster; with fewer than 20 documents, each window of `context` predictions is a cluster.
    More than 64 clusters are merged in reading order into stretches of about equally many
    predictions.
    """
    starts = np.asarray(documents, np.int64)
    if len(starts) < DOCUMENTS:
        starts = np.arange(0, predictions, context)
    if len(starts) <= CLUSTERS:
        return starts
    _, first = np.unique(starts * CLUSTERS // predictions, return_index=True)
    return starts[first]


def kind(documents: int) -> str:
    """Return the plural noun for a split's clusters, given its number of documents."""
    if documents < DOCUMENTS:
        return "blocks"
    return "documents" if documents <= CLUSTERS else "groups of documents"


def text_error(differences_SF: ArrayLike, tokens_F: ArrayLike) -> StandardError:
    """Compute the standard error of a loss difference over the choice of held-out text.

    `differences_SF` holds total nats, variant minus baseline, by seed and document; `tokens_F`
    holds the number of predicted tokens of each document. The estimated difference is the sum over
    documents divided by the sum of tokens, averaged over seeds: a ratio estimator (Cochran 1977,
    Sampling Techniques, section 6.4). Its variance is the variance over documents minus the
    variance of the interaction of seeds and documents, by moments of the crossed random effects
    (Searle, Casella & McCulloch 1992, Variance Components, chapter 5), and at least 0.

    Documents have unequal sizes. Therefore the correction factor (F / (F - 1) for equal documents)
    and the degrees of freedom (F - 1) come from a working model (Bell & McCaffrey 2002, Survey
    Methodology 28), in which the variance of a document's effect falls with the root of its length:
    with files of Python's library it fell with a power of 0.4 to 0.6. With one seed the interaction
    cannot be separated, and remains in the error. Raises ValueError for fewer than two documents,
    and for other shapes.
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
    """Return the correction factor and the degrees of freedom for documents of unequal size.

    With effects b of the documents, the residuals of the ratio estimator are tokens * (b - weighted
    mean of b), and the sum of their squares is a quadratic form in b. Its expectation is the trace
    of form * variance; its degrees of freedom are trace^2 / trace((form * variance)^2).
    """
    variance_F = tokens_F**-_FALL
    centred_FF = tokens_F[:, None] * (np.eye(len(tokens_F)) - tokens_F / tokens_F.sum())
    form_FF = centred_FF.T @ centred_FF * variance_F
    trace = np.trace(form_FF)
    true = tokens_F**2 @ variance_F
    return float(true / trace), float(trace**2 / (form_FF * form_FF.T).sum())
