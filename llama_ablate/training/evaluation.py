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
from llama_ablate.training.token_losses import rows_at_once, split_evenly

#: Tokens per forward pass over several windows. On a CPU, 2,048 are as fast as 8,192 or faster, in
#: a quarter of the memory; a GPU needs 8,192 for full utilization.
BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
_COUNTED = 1 << 24  # training tokens for the token frequencies
_COUNTED_AT_ONCE = 1 << 20  # numpy converts each to eight bytes


@contextmanager
def document_mode(model: Decoder, tokens: Tokens, documents: str) -> Iterator[None]:
    """Set a model's document mode temporarily: `mask` (separate documents) or `continue`.

    With "" the model keeps the document mode of its training.
    """
    spec = model.spec
    if documents:
        separator = tokens.separator if documents == "mask" else None
        model.spec = replace(spec, separator=separator)
    try:
        yield
    finally:
        model.spec = spec


def heldout_windows(
    model: Decoder, tokens: Tokens, split: str, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Return the windows of a split on which a model is evaluated."""
    return windows(tokens.split(split), model.spec.context, most, model.spec.separator)


def windows(
    tokens: NDArray[np.integer], context: int, most: int | None = None, separator: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut a split into non-overlapping windows of `context` predictions, (N, context + 1).

    Every token except the first is predicted once: the last, shorter window is a separate array.
    `most` limits the number of predictions. With the `separator` of a model that keeps documents
    apart, a document is cut only if it is longer than the context, and from its beginning; as many
    whole documents as fit share a window, which is padded with -1 at the right.
    """
    predictions = min(len(tokens) - 1, most or len(tokens))
    if separator is not None:
        return [_cut_documents(tokens[: predictions + 1], context, separator)]
    full = predictions // context
    index = np.arange(full)[:, None] * context + np.arange(context + 1)
    cut = [tokens[index].astype(np.int64)] if full else []
    if rest := predictions - full * context:
        cut.append(tokens[None, full * context : full * context + rest + 1].astype(np.int64))
    return cut


def _cut_documents(tokens: NDArray[np.integer], context: int, separator: int) -> NDArray[np.int64]:
    """Cut tokens into windows that begin with documents, or continue a long document."""
    end = len(tokens) - 1
    # A document's first prediction is made from the separator before it.
    begins = np.unique(np.append(0, np.flatnonzero(tokens[:end] == separator)))
    lengths = np.diff(begins, append=end)
    pieces = -(-lengths // context)
    within = np.arange(pieces.sum()) - np.repeat(pieces.cumsum() - pieces, pieces)
    edges = np.append(np.repeat(begins, pieces) + context * within, end)
    starts = [0]
    while starts[-1] < end:  # at least one piece fits, since no piece exceeds the context
        starts.append(int(edges[np.searchsorted(edges, starts[-1] + context, "right") - 1]))
    at = np.array(starts[:-1])[:, None] + np.arange(max(map(int, np.diff(starts))) + 1)
    past = at > np.array(starts[1:])[:, None]
    return np.where(past, -1, tokens[np.minimum(at, end)].astype(np.int64))


def targets_of(cut: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the tokens to predict in windows, in reading order."""
    return np.concatenate([part[:, 1:][part[:, 1:] >= 0] for part in cut])


def positions_of(cut: list[NDArray[np.int64]], separator: int | None) -> NDArray[np.int64]:
    """Return the position of each prediction in its document or window, in reading order."""
    positions = []
    for part in cut:
        inputs, at = part[:, :-1], np.arange(part.shape[1] - 1)
        begins = np.where((inputs == separator) if separator is not None else False, at, 0)
        position = at - np.maximum.accumulate(np.broadcast_to(begins, inputs.shape), 1)
        positions.append(position[part[:, 1:] >= 0])
    return np.concatenate(positions)


def losses(model: Decoder, cut: list[NDArray[np.int64]], compute: Compute) -> NDArray[np.float64]:
    """Return the loss in nats of every prediction of `windows`, in reading order."""
    return map_predictions(model, cut, compute, _cross_entropy).ravel()


# The function is bound when this module is loaded, before a plug-in could replace torch's.
def _cross_entropy(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> list[torch.Tensor]:
    return [cross_entropy(logits_NV, targets_N, reduction="none")]


def map_predictions(
    model: Decoder,
    cut: list[NDArray[np.int64]],
    compute: Compute,
    of: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]],
) -> NDArray[np.float64]:
    """Apply `of` to the logits and targets of all predictions; return an array (K, predictions).

    `of` maps logits (N, V) and targets (N,) to K tensors (N,). The numbers are written to one array
    of their final size. Small arrays kept between batches would occupy the memory of freed logits,
    so that new logits no longer fit there: with 400,000 tokens and a vocabulary of 1,000 the
    process grew by 1.1 GB.
    """
    results, at = np.empty((0, 0)), 0
    for logits_NV, targets_N in predictions(model, cut, compute):
        some = of(logits_NV, targets_N)
        if not at:
            results = np.empty((len(some), len(targets_of(cut))))
        for row, numbers in zip(results, some, strict=True):
            row[at : at + len(targets_N)] = numbers.double().cpu().numpy()
        at += len(targets_N)
    return results


@torch.no_grad()
def predictions(
    model: Decoder, cut: list[NDArray[np.int64]], compute: Compute
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits (N, V) and targets (N,) of a few tokens at a time, in reading order.

    Logits are computed in float32, the precision of the weights: in bfloat16 a loss has an error of
    up to 1.5e-4 nats, as large as the difference between some variants.
    """
    for part in cut:
        rows = split_evenly(len(part), max(1, BATCH_TOKENS[compute.device] // part.shape[1]))
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
    """Compute the unigram loss of windows in nats, from the training split's token frequencies.

    Frequencies come from the first 16.8 million tokens, with one added to each count. Return None
    for a text whose known entropy is less than 0.1 nats below the unigram loss.
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
