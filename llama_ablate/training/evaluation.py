"""Held-out evaluation: loss of every token in non-overlapping windows, in float32."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from llama_ablate.data.tokens import Tokens
from llama_ablate.model.decoder import Decoder
from llama_ablate.training.compute import Compute
from llama_ablate.training.token_losses import even_share, rows_at_once

#: Tokens that a model reads at once, if they are of several windows. On a CPU as fast as 8,192 are,
#: or faster, in a quarter of the memory; a GPU needs them to be filled.
BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
_COUNTED = 1 << 24  # tokens of the training split that frequencies are taken from
_COUNTED_AT_ONCE = 1 << 20  # numpy makes eight bytes of each


@contextmanager
def reading(model: Decoder, tokens: Tokens, documents: str) -> Iterator[None]:
    """Let a model read text with its documents apart (`mask`), or as one (`continue`), for a while.

    With "" it reads as it was trained.
    """
    own = model.spec
    if documents:
        separator = tokens.separator if documents == "mask" else None
        model.spec = replace(own, separator=separator)
    try:
        yield
    finally:
        model.spec = own


def heldout_windows(
    model: Decoder, tokens: Tokens, split: str, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Return the windows of a split on which a model is evaluated."""
    return windows(tokens.split(split), model.spec.context, most, model.spec.separator)


def windows(
    tokens: NDArray[np.integer], context: int, most: int | None = None, separator: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut a split into windows of `context` predictions that do not overlap, (N, context + 1).

    Every token but the first is predicted once: the last, shorter window is an array of its own.
    With `most`, only the first that many predictions. With the `separator` of a model that keeps
    documents apart, a document is cut only where it is longer than the context, and from its
    beginning; as many whole ones as fit share a window, which is filled with -1 at the right.
    """
    predictions = min(len(tokens) - 1, most or len(tokens))
    if separator is not None:
        return [_of_documents(tokens[: predictions + 1], context, separator)]
    whole = predictions // context
    index = np.arange(whole)[:, None] * context + np.arange(context + 1)
    cut = [tokens[index].astype(np.int64)] if whole else []
    if rest := predictions - whole * context:
        cut.append(tokens[None, whole * context : whole * context + rest + 1].astype(np.int64))
    return cut


def _of_documents(tokens: NDArray[np.integer], context: int, separator: int) -> NDArray[np.int64]:
    """Return windows that begin where documents do, or that go on in a longer one."""
    end = len(tokens) - 1
    # A document's first prediction is made from the separator before it.
    begins = np.unique(np.append(0, np.flatnonzero(tokens[:end] == separator)))
    lengths = np.diff(begins, append=end)
    pieces = -(-lengths // context)
    within = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    edges = np.append(np.repeat(begins, pieces) + context * within, end)
    starts = [0]
    while starts[-1] < end:  # as many pieces as fit: always one, since none is longer
        starts.append(int(edges[np.searchsorted(edges, starts[-1] + context, "right") - 1]))
    at = np.array(starts[:-1])[:, None] + np.arange(max(map(int, np.diff(starts))) + 1)
    past = at > np.array(starts[1:])[:, None]
    return np.where(past, -1, tokens[np.minimum(at, end)].astype(np.int64))


def targets_of(cut: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return what is predicted in windows, in reading order."""
    return np.concatenate([part[:, 1:][part[:, 1:] >= 0] for part in cut])


def positions_of(cut: list[NDArray[np.int64]], separator: int | None) -> NDArray[np.int64]:
    """Return the position from which each prediction is made, from 0, in reading order."""
    found = []
    for part in cut:
        inputs, at = part[:, :-1], np.arange(part.shape[1] - 1)
        begins = np.where((inputs == separator) if separator is not None else False, at, 0)
        position = at - np.maximum.accumulate(np.broadcast_to(begins, inputs.shape), 1)
        found.append(position[part[:, 1:] >= 0])
    return np.concatenate(found)


def losses(model: Decoder, cut: list[NDArray[np.int64]], compute: Compute) -> NDArray[np.float64]:
    """Return the loss in nats of every prediction of `windows`, in reading order."""
    return of_predictions(model, cut, compute, _cross_entropy).ravel()


# Bound when this module is loaded, before any plug-in may replace torch's.
def _cross_entropy(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> list[torch.Tensor]:
    return [cross_entropy(logits_NV, targets_N, reduction="none")]


def of_predictions(
    model: Decoder,
    cut: list[NDArray[np.int64]],
    compute: Compute,
    of: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]],
) -> NDArray[np.float64]:
    """Return what `of` gives for logits (N, V) and targets (N,), K tensors (N,), as (K, all N).

    The numbers go to one array of their final size. Small arrays that were kept between batches
    would lie where the freed logits were, which then fit there no more: of 400,000 tokens and a
    vocabulary of 1,000 the process grew by 1.1 GB.
    """
    found, at = np.empty((0, 0)), 0
    for logits_NV, targets_N in predictions(model, cut, compute):
        some = of(logits_NV, targets_N)
        if not at:
            found = np.empty((len(some), len(targets_of(cut))))
        for row, numbers in zip(found, some, strict=True):
            row[at : at + len(targets_N)] = numbers.double().cpu().numpy()
        at += len(targets_N)
    return found


@torch.no_grad()
def predictions(
    model: Decoder, cut: list[NDArray[np.int64]], compute: Compute
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits (N, V) and targets (N,), some tokens at a time, in reading order.

    Computed in float32, in which the weights are: in bfloat16 a loss is off by up to 1.5e-4 nats,
    as much as some variants differ.
    """
    for part in cut:
        rows = even_share(len(part), max(1, BATCH_TOKENS[compute.device] // part.shape[1]))
        for start in range(0, len(part), rows):
            tokens = torch.from_numpy(part[start : start + rows]).to(compute.device)
            targets_N = tokens[:, 1:].flatten()
            hidden_ND = model.hidden(tokens[:, :-1].clamp(min=0)).flatten(0, 1)
            if (part[start : start + rows] < 0).any():
                known_N = targets_N >= 0
                hidden_ND, targets_N = hidden_ND[known_N], targets_N[known_N]
            some = rows_at_once(model, len(targets_N))
            for at in range(0, len(targets_N), some):
                yield model.logits(hidden_ND[at : at + some]).float(), targets_N[at : at + some]


def unigram_loss(tokens: Tokens, cut: list[NDArray[np.int64]]) -> float | None:
    """Return the loss in nats of predicting windows from the training split's token frequencies.

    Frequencies are of the first 16.8 million tokens, one added to each. None where the text has a
    known entropy that is less than 0.1 nats below this loss.
    """
    train = tokens.split("train")[:_COUNTED]
    parts = (train[at : at + _COUNTED_AT_ONCE] for at in range(0, len(train), _COUNTED_AT_ONCE))
    counts = [np.bincount(part, minlength=tokens.vocab) for part in parts]
    count_V = np.sum(counts, axis=0) + 1
    nats_V = -np.log(count_V / count_V.sum())
    loss = float(nats_V[targets_of(cut)].mean())
    if tokens.source:
        floor = np.concatenate([tokens.floor(part).ravel() for part in cut]).mean()
        if floor > loss - 0.1:
            return None
    return loss
