"""How a model fares along its context, and beyond the length that it was trained at."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.measure.registry import METRICS, Subject
from llama_ablate.training.evaluation import losses, windows

_TEXTS = 16  # longer ones take their square in time: so many of each length are enough


@METRICS.add("loss_by_position", per="run")
def loss_by_position(subject: Subject) -> dict[str, float]:
    """Held-out loss by how many tokens a prediction has before it, in bands that double.

    Early tokens are hard for any model, which flatters a longer window in the mean (the early-token
    curse, Press et al. 2021, arXiv:2108.12409, appendix B).
    """
    context = subject.model.spec.context
    cut = windows(subject.tokens.split(subject.tokens.heldout[-1]), context)[:1]
    by_position = losses(subject.model, cut, subject.compute).reshape(-1, context).mean(0)
    values, first = {}, 1
    while first <= context:
        last = min(2 * first - 1, context)
        mean = float(by_position[first - 1 : last].mean())
        values[f"loss_at_position_{first}_to_{last}_nats"] = mean
        first = last + 1
    return values


def _check_times(_spec: ModelSpec, _tokens: Tokens, *, times: Sequence[int]) -> None:
    if not times or min(times) < 1:
        message = f"length: times {[*times]!s:.60} must be whole numbers of 1 or more"
        raise ConfigError(message, ("times",))


@METRICS.add("length", per="run", check=_check_times)
def length(subject: Subject, *, times: Sequence[int] = (1, 2, 4, 8, 16)) -> dict[str, float]:
    """Held-out loss at multiples of the training context: extending it, and sliding within it.

    For each multiple the last half context of every text is predicted twice: `extended` from all
    that stands before, however long; `sliding` from half a context to a whole one, as in training.
    Both see the same predictions, so their difference is what length itself does. A scheme that
    ends (learned positions) has no `extended` beyond its table.
    """
    context, half = subject.model.spec.context, subject.model.spec.context // 2
    text = subject.tokens.split(subject.tokens.heldout[-1])
    values: dict[str, float] = {}
    for multiple in times:
        if multiple * context >= len(text):
            continue  # the split is shorter than one text of this length
        whole = windows(text, multiple * context)[0][:_TEXTS]
        sliding = _last(subject, whole[:, -context - 1 :], half)
        values[f"loss_{multiple}x_sliding_nats"] = float(sliding.mean())
        try:
            extended = _last(subject, whole, half)
        except ValueError:
            continue  # the position scheme ends before: there is no such loss
        values[f"loss_{multiple}x_extended_nats"] = float(extended.mean())
        values[f"loss_{multiple}x_extended_minus_sliding_nats"] = float((extended - sliding).mean())
    return values


def _last(subject: Subject, cut: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the losses of the last `count` predictions of each window, (N, count)."""
    nats = losses(subject.model, [cut], subject.compute)
    return nats.reshape(len(cut), -1)[:, -count:]
