"""Held-out quality: loss, perplexity, bits per byte, excess loss and calibration."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from llama_ablate.config.spec import ModelSpec
from llama_ablate.data import overlap
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import text_error
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.results.record import Coordinate, Value, row
from llama_ablate.training.evaluation import heldout_windows, losses, map_predictions, windows

_BINS = 15  # of confidence, as in Guo et al. 2017


@METRICS.add(
    "perplexity",
    per="run",
    worse={"loss": "higher", "perplexity": "higher", "bits_per_byte": "higher"},
)
def perplexity(subject: Subject) -> Iterator[Value]:
    """Held-out loss, perplexity and bits per byte on whole splits, in non-overlapping windows.

    Validation is for choosing, test for reporting. `_se_nats` is the standard error over windows:
    the uncertainty from the text's finite length, not from the seed. In models that keep documents
    apart (per-document mask), windows begin with documents, and only documents longer than the
    context are cut. Bits per byte divide by the text's UTF-8 bytes, so values are comparable across
    tokenizers; bits per byte are left out if the tokenizer loses text. The samples of
    `_nats_by_document` and `_tokens_by_document` are sums over clusters of text, for the standard
    error due to the text's finite length; the coordinate `cluster` says whether clusters are
    documents, groups of documents or blocks.
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


@METRICS.add("excess_loss", per="run", worse={"excess_loss": "higher"})
def excess_loss(subject: Subject) -> Iterator[Value]:
    """Held-out loss minus the lowest possible loss, on a corpus of known entropy.

    The lowest possible loss (floor) is exact for the tokens that each window shows. `_se_nats` is
    the standard error over windows of the difference, in which most of the text's own randomness
    cancels. An excess below zero by more than three standard errors indicates a leak: the model
    sees tokens that it must not see.
    """
    for split in subject.tokens.heldout if subject.tokens.source else ():
        cut = heldout_windows(subject.model, subject.tokens, split)
        nats = losses(subject.model, cut, subject.compute)
        floor = np.concatenate([subject.tokens.floor(part).ravel() for part in cut])
        context = subject.model.spec.context
        excess = nats - floor
        error = _error(excess, context)
        yield row(f"{split}_floor_nats", floor.mean(), "nats", "floor", split=split)
        yield row(f"{split}_excess_nats", excess.mean(), "nats", "excess_loss", split=split)
        yield row(f"{split}_excess_se_nats", error, "nats", "excess_loss_se", split=split)


def _check_skill(spec: ModelSpec, tokens: Tokens) -> None:
    if (targets := _find_targets(spec, tokens)) and not (targets[1] >= 0).any():
        message = f"nothing follows for sure in windows of {spec.context} tokens"
        raise ConfigError(f"{message}: raise model.context, or take a smaller task")


@METRICS.add("skill", per="run", check=_check_skill, worse={"accuracy": "lower"})
def skill(subject: Subject) -> Iterator[Value]:
    """Accuracy on a synthetic corpus' questions, with chance level and best possible accuracy.

    For recall, induction, lag-copy, mqar, depo and mano, this is the accuracy of the likeliest
    token at positions where the window determines the next token, in whole windows of the last
    held-out split. The samples are the accuracies in each window. `_chance` is the accuracy of a
    guess among the tokens that are possible there; `_ceiling` is 1. Ordinary text has no such
    questions and no values.
    """
    source, targets = subject.tokens.source, _find_targets(subject.model.spec, subject.tokens)
    if targets is None or source is None:
        return
    cut, answers = targets
    likeliest = map_predictions(subject.model, [cut], subject.compute, _most_likely)
    is_told = answers >= 0
    scored = is_told.any(1)
    right = (likeliest.reshape(answers.shape) == answers) & is_told
    shares = right.sum(1)[scored] / is_told.sum(1)[scored]
    task = CORPORA.resolve(subject.tokens.entry).name
    accuracy = row(f"{task}_accuracy", shares.mean(), quantity="accuracy", task=task)
    yield replace(accuracy, samples=tuple(shares.round(4).tolist()))
    for name, value in (("chance", source.chance), ("ceiling", 1.0)):
        yield row(f"{task}_{name}", value, quantity=name, task=task)
    items = f"{subject.tokens.fingerprint}-{cut.shape[1]}"
    yield row(f"{task}_items", len(shares), quantity="items", task=task, fingerprint=items)


def _find_targets(
    spec: ModelSpec, tokens: Tokens
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the windows of the last held-out split, and the predictable tokens in the windows.

    Return None for ordinary text.
    """
    cut = windows(tokens.split(tokens.heldout[-1]), spec.context)[0]
    answers = tokens.answers(cut)
    return None if answers is None else (cut, answers)


def _most_likely(logits_NV: Tensor, _targets_N: Tensor) -> list[Tensor]:
    return [logits_NV.argmax(-1)]


@METRICS.add("calibration", per="run", worse={"calibration_error": "higher", "accuracy": "lower"})
def calibration(subject: Subject) -> Iterator[Value]:
    """Calibration: confidence against accuracy, and against the true distribution if known.

    This is the expected calibration error over 15 bins of the likeliest token's probability (Guo et
    al. 2017, arXiv:1706.04599), on the last held-out split. On a corpus of known entropy, a line is
    also fitted to the model's losses over the lowest possible losses, prediction by prediction:
    with a slope below 1 the model is not confident enough of likely tokens, with a slope above 1 it
    rates unlikely tokens too low.
    """
    split = subject.tokens.heldout[-1]
    cut = heldout_windows(subject.model, subject.tokens, split)

    def of(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs_NV = logits_NV.log_softmax(-1)
        best_N, likeliest_N = logs_NV.max(-1)
        nats_N = -logs_NV.gather(-1, targets_N[:, None])[:, 0]
        return best_N.exp(), likeliest_N == targets_N, nats_N

    confidence, hit, nats = map_predictions(subject.model, cut, subject.compute, of)
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
    """Return the mean over bins of |share of hits - mean confidence|, weighted by bin size."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    size = np.bincount(bins, minlength=_BINS)
    gaps = np.abs(np.bincount(bins, hit, _BINS) - np.bincount(bins, confidence, _BINS))
    return float(gaps.sum() / size.sum())


def _by_document(subject: Subject, split: str, nats: NDArray[np.float64]) -> Iterator[Value]:
    """Yield the nats and the predicted tokens of a split, with sums by cluster as samples."""
    # The first token is not predicted, so a document's predictions begin one before its tokens.
    documents = np.maximum(subject.tokens.documents(split) - 1, 0)
    # Equal documents form one cluster: their predictions are put next to each other.
    equal = overlap.find_first_equal(subject.tokens, split)
    if len(firsts := np.unique(equal)) < len(equal):
        parts = np.split(nats, documents[1:])
        nats = np.concatenate([parts[i] for i in np.argsort(equal, kind="stable")])
        sizes = np.bincount(equal, [len(part) for part in parts])[firsts].astype(np.int64)
        documents = np.cumsum(sizes) - sizes
    documents = np.unique(documents)
    starts = text_error.clusters(documents, len(nats), subject.model.spec.context)
    where: dict[str, Coordinate] = {
        "split": split,
        "cluster": text_error.kind(len(documents)),
        "documents": len(documents),
    }
    # Rounded to halve the stored size, with an error of 1e-4 nats in hundreds of tokens.
    sums = np.add.reduceat(nats, starts).round(4)
    tokens = np.diff(starts, append=len(nats))
    for name, unit, samples in (("loss", "nats", sums), ("tokens", "tokens", tokens)):
        plain = row(f"{split}_{unit}_by_document", samples.sum(), unit, f"{name}_by_document")
        yield replace(plain, samples=tuple(samples.tolist()), coordinates=where)


def _error(nats: NDArray[np.float64], context: int) -> float:
    """Return the standard error of a mean over windows; NaN for a single window."""
    means = [part.mean() for part in np.split(nats, range(context, len(nats), context))]
    return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
