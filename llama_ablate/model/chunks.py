"""A sequence in chunks of equal length, for recurrences that are computed chunk by chunk."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def chunk_lengths(tokens: int, longest: int) -> tuple[int, int]:
    """Return how many chunks of at most `longest` tokens hold a sequence, and their length.

    Chunks are as short as their number allows, so fewer tokens are padded than there are chunks.

    >>> chunk_lengths(100, 64), chunk_lengths(24, 64)
    ((2, 50), (1, 24))
    """
    number = -(-tokens // longest)
    return number, -(-tokens // number)


def in_chunks(x_BT: Tensor, number: int, length: int) -> Tensor:
    """Return (B, T, ...) as (B, n, C, ...), with zeros after the last token where T < n * C."""
    batch, tokens, *rest = x_BT.shape
    if number * length > tokens:
        x_BT = F.pad(x_BT, (0, 0) * len(rest) + (0, number * length - tokens))
    return x_BT.reshape(batch, number, length, *rest)


def decay_between(total_C: Tensor) -> Tensor:
    """Return the decay from each token to each later one, (..., C, C), zero above the diagonal.

    `total_C` is the logarithm of the decay from the chunk's start through each token: a
    difference of two, and no quotient, so nothing overflows.
    """
    length = total_C.shape[-1]
    later_CC = torch.ones(length, length, dtype=torch.bool, device=total_C.device).triu(1)
    log_CC = total_C[..., :, None] - total_C[..., None, :]
    return log_CC.masked_fill(later_CC, -math.inf).exp()
