"""Likelihood of texts after contexts, for the scores of tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from llama_ablate.data.encoding import changed
from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.errors import ConfigError
from llama_ablate.model.decoder import Decoder
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.token_losses import rows_at_once


class Encoded(NamedTuple):
    """Tokens of a context, and tokens of the continuation to score."""

    context: list[int]
    continuation: list[int]


class Likelihood(NamedTuple):
    """Log-likelihood of a text in nats, and whether greedy decoding would write the text."""

    nats: float
    is_greedy: bool


def encode(tokenizer: Tokenizer, context: str, continuation: str, first: int | None) -> Encoded:
    """Encode a text, split into context and continuation.

    As in lm-evaluation-harness, context and continuation are encoded together, white space at the
    end of the context belongs to the continuation, and a text without context follows the token
    `first`. Without a token `first`, the first token of such a text is not scored. Raises
    ConfigError if the tokens do not decode to the text.
    """
    head = context.rstrip()
    sequence = context + continuation
    tokens = tokenizer.encode(sequence).tolist()
    back = tokenizer.decode(tokens)
    if back.removeprefix(" ") != sequence.removeprefix(" "):  # some put a space before every text
        raise ConfigError(f"the tokenizer loses text: {changed(sequence, back)}")
    if head:
        start = len(tokenizer.encode(head))
        return Encoded(tokens[:start], tokens[start:])
    if first is None or tokens[:1] == [first]:
        return Encoded(tokens[:1], tokens[1:])
    return Encoded([first], tokens)


@torch.no_grad()
def likelihoods(
    model: Decoder, texts: Sequence[Encoded], done: Callable[[int], object] = lambda _count: None
) -> list[Likelihood]:
    """Return the likelihood of each continuation after its context, in float32.

    After each batch, `done` is called with the number of texts in the batch. A text longer than the
    model's context loses its beginning. Raises ValueError for a continuation that is empty or
    longer than the context.
    """
    results: list[Likelihood | None] = [None] * len(texts)
    for batch in _batches(model, texts):
        rows = [_fitting(model, texts[i]) for i in batch]
        width = max(len(row) for row in rows) - 1
        padded = np.zeros((len(rows), width), np.int64)  # on the right, which no token sees
        for row, line in zip(padded, rows, strict=True):
            row[: len(line) - 1] = line[:-1]
        device = model.embedding.weight.device
        hidden_BTD = model.hidden(torch.from_numpy(padded).to(device))
        for i, hidden_TD, line in zip(batch, hidden_BTD, rows, strict=True):
            count = len(texts[i].continuation)
            targets_N = torch.tensor(line[-count:], device=device)
            results[i] = _likelihood(
                model, hidden_TD[len(line) - 1 - count : len(line) - 1], targets_N
            )
        done(len(batch))
    return [result for result in results if result is not None]


def _likelihood(model: Decoder, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> Likelihood:
    nats, is_greedy = 0.0, True
    some = rows_at_once(model, len(targets_N)) or 1
    for at in range(0, len(targets_N), some):
        logits_NV = model.logits(hidden_ND[at : at + some]).float()
        targets = targets_N[at : at + some]
        logs_N = logits_NV.log_softmax(-1).gather(-1, targets[:, None])
        nats += float(logs_N.double().sum())
        is_greedy = is_greedy and bool((logits_NV.argmax(-1) == targets).all())
    return Likelihood(nats, is_greedy)


def _fitting(model: Decoder, text: Encoded) -> list[int]:
    """Return the last tokens of a text: a full context at most, and the last predicted token."""
    if not 0 < len(text.continuation) <= model.spec.context or not text.context:
        raise ValueError(
            f"a continuation of {len(text.continuation)} tokens after {len(text.context)}: must be "
            f"1 to {model.spec.context} after one or more"
        )
    return (text.context + text.continuation)[-model.spec.context - 1 :]


def _batches(model: Decoder, texts: Sequence[Encoded]) -> Iterator[list[int]]:
    """Yield batches of indices of texts of similar length, the longest first."""
    lengths = [min(len(t.context) + len(t.continuation), model.spec.context + 1) for t in texts]
    order = sorted(range(len(texts)), key=lambda i: -lengths[i])
    most = BATCH_TOKENS[model.embedding.weight.device.type]
    while order:
        rows = max(1, most // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]
