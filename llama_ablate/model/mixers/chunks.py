"""Sequences in chunks of equal length, for recurrences that are computed chunk by chunk."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def chunk_lengths(tokens: int, longest: int) -> tuple[int, int]:
    """Return the number and length of a sequence's chunks, each of at most `longest` tokens.

    Chunks are as short as their number allows, so there are fewer padding tokens than chunks.

    >>> chunk_lengths(100, 64), chunk_lengths(24, 64)
    ((2, 50), (1, 24))
    """
    number = -(-tokens // longest)
    return number, -(-tokens // number)


def in_chunks(x_BTH: Tensor, number: int, length: int) -> Tensor:
    """Reshape (B, T, H, ...) to (n, B, H, C, ...), with zeros after the last token if T < n * C."""
    batch, tokens, *rest = x_BTH.shape
    if number * length > tokens:
        x_BTH = F.pad(x_BTH, (0, 0) * len(rest) + (0, number * length - tokens))
    return x_BTH.reshape(batch, number, length, *rest).movedim((1, 3), (0, 2))


class Decays(NamedTuple):
    """Decay factors from earlier tokens to later tokens, within chunks of C tokens."""

    #: From each token to each later token, (..., C, C): zero above the diagonal.
    between_CC: Tensor
    #: From the chunk's start through each token, (..., C).
    since_start_C: Tensor
    #: From each token to the chunk's end, (..., C).
    to_end_C: Tensor


def decays(log_C: Tensor, begins_C: Tensor | None = None) -> Decays:
    """Compute the decay factors within chunks from each token's log decay, (..., C).

    At a token that `begins` marks as the first of a document, everything from before decays to
    zero. Factors are exponentials of differences of two sums, not quotients, so nothing overflows.
    """
    length = log_C.shape[-1]
    total_C = log_C.cumsum(-1)
    gone_CC = torch.ones(length, length, dtype=torch.bool, device=log_C.device).triu(1)
    since_start_C, to_end_C = total_C.exp(), (total_C[..., -1:] - total_C).exp()
    if begins_C is not None:
        document_C = begins_C.cumsum(-1)
        gone_CC = gone_CC | (document_C[..., :, None] != document_C[..., None, :])
        since_start_C = since_start_C.masked_fill(document_C != 0, 0)
        to_end_C = to_end_C.masked_fill(document_C != document_C[..., -1:], 0)
    log_CC = total_C[..., :, None] - total_C[..., None, :]
    return Decays(log_CC.masked_fill(gone_CC, -math.inf).exp(), since_start_C, to_end_C)
