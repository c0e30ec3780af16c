"""Loss by position, and length extrapolation: loss at multiples of the training context."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.results.record import Coordinate, Value, row
from llama_ablate.training.evaluation import heldout_windows, losses, positions_of, windows

_TEXTS = 16  # of each length: attention over long texts takes time quadratic in their length


@METRICS.add("loss_by_position", per="run", worse={"loss": "higher"})
def loss_by_position(subject: Subject) -> Iterator[Value]:
    """Held-out loss by position in the context, in bands that double in width.

    In models that keep documents apart (per-document mask), positions count from the document's
    start. Early tokens are hard for any model, which makes the mean loss favour longer windows (the
    early-token curse, Press et al. 2021, arXiv:2108.12409, appendix B).
    """
    context, split = subject.model.spec.context, subject.tokens.heldout[-1]
    cut = heldout_windows(subject.model, subject.tokens, split)[:1]
    nats = losses(subject.model, cut, subject.compute)
    position = positions_of(cut, subject.model.spec.separator)
    first = 1
    while first <= context:
        last = min(2 * first - 1, context)
        band = (first - 1 <= position) & (position < last)
        if band.any():
            yield row(
                f"loss_at_position_{first}_to_{last}_nats",
                nats[band].mean(),
                "nats",
                "loss",
                split=split,
                first_position=first,
                last_position=last,
            )
        first = last + 1


def _check_times(_spec: ModelSpec, _tokens: Tokens, *, times: Sequence[int]) -> None:
    if not times or min(times) < 1:
        message = f"length: times {[*times]!s:.60} must be whole numbers of 1 or more"
        raise ConfigError(message, ("times",))


@METRICS.add(
    "length", per="run", check=_check_times, worse={"loss": "higher", "loss_difference": "higher"}
)
def length(subject: Subject, *, times: Sequence[int] = (1, 2, 4, 8, 16)) -> Iterator[Value]:
    """Held-out loss at multiples of the training context: extended, and with a sliding window.

    For each multiple, the last half context of every text is predicted twice: `extended`, from all
    preceding tokens of the text; `sliding`, from half a training context (the first prediction) up
    to a whole one (the last). Both losses are over the same tokens, so their difference is the
    effect of length alone. A position scheme with a table (learned positions) has no `extended`
    loss beyond its table.
    """
    context, half = subject.model.spec.context, subject.model.spec.context // 2
    split = subject.tokens.heldout[-1]
    text = subject.tokens.split(split)
    for multiple in times:
        if multiple * context >= len(text):
            continue  # the split is shorter than one text of this length
        at: dict[str, Coordinate] = {"split": split, "context": multiple * context}
        texts = windows(text, multiple * context)[0][:_TEXTS]
        sliding = _last(subject, texts[:, -context - 1 :], half)
        name = f"loss_{multiple}x"
        yield row(f"{name}_sliding_nats", sliding.mean(), "nats", "loss", **at, window="sliding")
        try:
            extended = _last(subject, texts, half)
        except ValueError:
            continue  # the position scheme ends before: there is no such loss
        yield row(f"{name}_extended_nats", extended.mean(), "nats", "loss", **at, window="extended")
        difference = (extended - sliding).mean()
        yield row(
            f"{name}_extended_minus_sliding_nats", difference, "nats", "loss_difference", **at
        )


def _last(subject: Subject, cut: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the losses of the last `count` predictions of each window, (N, count)."""
    nats = losses(subject.model, [cut], subject.compute)
    return nats.reshape(len(cut), -1)[:, -count:]
