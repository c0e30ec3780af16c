"""How well a trained model predicts text that it never saw."""

import math

import numpy as np

from llama_ablate.measure.registry import METRICS, Subject
from llama_ablate.training.loop import losses, windows


@METRICS.add("perplexity", per="run")
def perplexity(subject: Subject) -> dict[str, float]:
    """Held-out loss, perplexity and bits per byte on whole splits, in non-overlapping windows.

    Validation is for choosing, test for reporting. `_se_nats` is the standard error over windows:
    the uncertainty from the text's finite length, not from the seed. Bits per byte divide by the
    text's UTF-8 bytes, so they compare across tokenizers.
    """
    values: dict[str, float] = {}
    for split in subject.tokens.heldout:
        context = subject.model.spec.context
        cut = windows(subject.tokens.split(split), context)
        nats = losses(subject.model, cut, subject.engine)
        means = [part.mean() for part in np.split(nats, range(context, len(nats), context))]
        mean = float(nats.mean())
        tokens, size = subject.tokens.counts[split], subject.tokens.bytes[split]
        values |= {
            f"{split}_loss_nats": mean,
            f"{split}_loss_se_nats": float(np.std(means, ddof=1) / math.sqrt(len(means)))
            if len(means) > 1
            else math.nan,
            f"{split}_perplexity": math.exp(min(mean, 700.0)),
            f"{split}_bits_per_byte": mean / math.log(2) * tokens / size,
            f"{split}_predicted_tokens": float(len(nats)),
        }
    return values


@METRICS.add("excess_loss", per="run")
def excess_loss(subject: Subject) -> dict[str, float]:
    """Held-out loss over the best possible, token by token, on a corpus of known entropy.

    The floor is exact for what each window shows. `_se_nats` is the standard error over windows of
    the difference, in which most of the text's own chance cancels. An excess below zero by more
    than three of them means that the model knows what it cannot know: a leak.
    """
    values: dict[str, float] = {}
    for split in subject.tokens.heldout if subject.tokens.source else ():
        cut = windows(subject.tokens.split(split), subject.model.spec.context)
        nats = losses(subject.model, cut, subject.engine)
        floor = np.concatenate([subject.tokens.floor(part).ravel() for part in cut])
        context = subject.model.spec.context
        excess = nats - floor
        means = [part.mean() for part in np.split(excess, range(context, len(excess), context))]
        values |= {
            f"{split}_floor_nats": float(floor.mean()),
            f"{split}_excess_nats": float(excess.mean()),
            f"{split}_excess_se_nats": float(np.std(means, ddof=1) / math.sqrt(len(means)))
            if len(means) > 1
            else math.nan,
        }
    return values
