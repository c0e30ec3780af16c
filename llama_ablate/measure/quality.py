"""Held-out quality: loss, perplexity, bits per byte, excess loss and calibration."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from llama_ablate.evidence import text_error
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.results.record import Coordinate, Value, row
from llama_ablate.training.evaluation import heldout_windows, losses, of_predictions

_BINS = 15  # of confidence, as in Guo et al. 2017


@METRICS.add(
    "perplexity",
    per="run",
    worse={"loss": "higher", "perplexity": "higher", "bits_per_byte": "higher"},
)
def perplexity(subject: Subject) -> Iterator[Value]:
    """Held-out loss, perplexity and bits per byte on whole splits, in non-overlapping windows.

    Validation is for choosing, test for reporting. `_se_nats` is the standard error over windows:
    the uncertainty from the text's finite length, not from the seed. Where a model keeps documents
    apart, windows begin where they do, and each is scored whole. Bits per byte divide by the
    text's UTF-8 bytes, so they compare across tokenizers; a tokenizer that loses text has none.
    The samples of `_nats_by_document` and `_tokens_by_document` are sums over the clusters that the
    text's own error is computed by; the coordinate `cluster` says what those are.
    """
    for split in subject.tokens.heldout:
        context = subject.model.spec.context
        cut = heldout_windows(subject.model, subject.tokens, split)
        nats = losses(subject.model, cut, subject.compute)
        mean = float(nats.mean())
        yield row(f"{split}_loss_nats", mean, "nats", "loss", split=split)
        yield row(f"{split}_loss_se_nats", _error(nats, context), "nats", "loss_se", split=split)
        perplexity = math.exp(min(mean, 700.0))
        yield row(f"{split}_perplexity", perplexity, quantity="perplexity", split=split)
        name = f"{split}_predicted_tokens"
        yield row(name, len(nats), "tokens", "predicted_tokens", split=split)
        yield from _by_document(subject, split, nats)
        if not subject.tokens.lost:
            tokens, size = subject.tokens.counts[split], subject.tokens.bytes[split]
            bits = mean / math.log(2) * tokens / size
            name = f"{split}_bits_per_byte"
            yield row(name, bits, "bits/byte", "bits_per_byte", split=split)


@METRICS.add("excess_loss", per="run", worse={"excess_loss": "higher", "skill_accuracy": "lower"})
def excess_loss(subject: Subject) -> Iterator[Value]:
    """Held-out loss minus the best possible, on a corpus of known entropy.

    The floor is exact for what each window shows. `_se_nats` is the standard error over windows of
    the difference, in which most of the text's own randomness cancels. An excess below zero by more
    than three standard errors means that the model sees what it must not see: a leak. Of a source
    that asks for a skill (counting, induction, lag-copy, recall) `_skill_accuracy` is how often the
    likeliest token is the one that the window tells for sure, where it tells one.
    """
    for split in subject.tokens.heldout if subject.tokens.source else ():
        cut = heldout_windows(subject.model, subject.tokens, split)
        nats, likeliest = _losses_and_likeliest(subject, cut)
        floor = np.concatenate([subject.tokens.floor(part).ravel() for part in cut])
        context = subject.model.spec.context
        excess = nats - floor
        error = _error(excess, context)
        yield row(f"{split}_floor_nats", floor.mean(), "nats", "floor", split=split)
        yield row(f"{split}_excess_nats", excess.mean(), "nats", "excess_loss", split=split)
        yield row(f"{split}_excess_se_nats", error, "nats", "excess_loss_se", split=split)
        told = [
            answers.ravel() for part in cut if (answers := subject.tokens.answers(part)) is not None
        ]
        if told and (is_told := (answers := np.concatenate(told)) >= 0).any():
            accuracy = (likeliest == answers)[is_told].mean()
            yield row(f"{split}_skill_accuracy", accuracy, quantity="skill_accuracy", split=split)


def _losses_and_likeliest(
    subject: Subject, cut: list[NDArray[np.int64]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the loss in nats of every prediction, and the likeliest token there."""

    def of(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        loss_N = F.cross_entropy(logits_NV, targets_N, reduction="none")
        return loss_N, logits_NV.argmax(-1)

    nats, likeliest = of_predictions(subject.model, cut, subject.compute, of)
    return nats, likeliest.astype(np.int64)


@METRICS.add("calibration", per="run", worse={"calibration_error": "higher", "accuracy": "lower"})
def calibration(subject: Subject) -> Iterator[Value]:
    """Calibration: confidence against accuracy, and against the true distribution if known.

    The expected calibration error over 15 bins of the likeliest token's probability (Guo et al.
    2017, arXiv:1706.04599), of the last held-out split. On a corpus of known entropy also the line
    of the model's losses on the floor's, prediction by prediction: with a slope below 1 the model
    is not confident enough of likely tokens, with one above 1 it rates unlikely tokens too low.
    """
    split = subject.tokens.heldout[-1]
    cut = heldout_windows(subject.model, subject.tokens, split)

    def of(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs_NV = logits_NV.log_softmax(-1)
        best_N, likeliest_N = logs_NV.max(-1)
        nats_N = -logs_NV.gather(-1, targets_N[:, None])[:, 0]
        return best_N.exp(), likeliest_N == targets_N, nats_N

    confidence, hit, nats = of_predictions(subject.model, cut, subject.compute, of)
    yield row("calibration_error", calibration_error(confidence, hit), split=split)
    yield row("confidence_mean", confidence.mean(), split=split)
    yield row("accuracy", hit.mean(), split=split)
    if subject.tokens.source:
        floor = np.concatenate([subject.tokens.floor(part).ravel() for part in cut])
        if np.isfinite(floor).all() and floor.std() > 0:
            slope, intercept = np.polyfit(floor, nats, 1)
            yield row("floor_slope", slope, split=split)
            yield row("floor_intercept_nats", intercept, "nats", "floor_intercept", split=split)


def calibration_error(confidence: NDArray[np.float64], hit: NDArray[np.float64]) -> float:
    """Return the mean over bins of |share of hits - mean confidence|, weighted by their sizes."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    size = np.bincount(bins, minlength=_BINS)
    gaps = np.abs(np.bincount(bins, hit, _BINS) - np.bincount(bins, confidence, _BINS))
    return float(gaps.sum() / size.sum())


def _by_document(subject: Subject, split: str, nats: NDArray[np.float64]) -> Iterator[Value]:
    """Yield the nats and the predicted tokens of a split, with those of each cluster as samples."""
    # The first token is not predicted, so a document's predictions begin one before its tokens.
    documents = np.unique(np.maximum(subject.tokens.documents(split) - 1, 0))
    starts = text_error.clusters(documents, len(nats), subject.model.spec.context)
    where: dict[str, Coordinate] = {
        "split": split,
        "cluster": text_error.kind(len(documents)),
        "documents": len(documents),
    }
    # Rounded: an error of 1e-4 nats in hundreds of tokens, at half the size.
    sums = np.add.reduceat(nats, starts).round(4)
    tokens = np.diff(starts, append=len(nats))
    for name, unit, samples in (("loss", "nats", sums), ("tokens", "tokens", tokens)):
        plain = row(f"{split}_{unit}_by_document", samples.sum(), unit, f"{name}_by_document")
        yield replace(plain, samples=tuple(samples.tolist()), coordinates=where)


def _error(nats: NDArray[np.float64], context: int) -> float:
    """Return the standard error of a mean over windows; NaN where there is one window."""
    means = [part.mean() for part in np.split(nats, range(context, len(nats), context))]
    return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
