"""Dropout whose masks are a function of seed, step and place (Srivastava et al. 2014).

A place is the name of a point in the model at which dropout applies. A mask does not depend on
other random draws. Variants therefore share masks wherever places and shapes agree, and a resumed
run has the masks of an uninterrupted run. Each micro-batch and data-parallel rank uses its rows of
the whole batch's mask, and a GPU has the same masks as a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from llama_ablate.config.spec import DropoutRates, ModelSpec
from llama_ablate.model.initialisation import stream

#: Name of the rate by the last part of a place's name; all other places are outputs of sub-layers.
_RATES = {"embedding": "embedding", "weights": "attention"}


@dataclass(frozen=True)
class Dropout:
    """Dropout masks for some rows of a training step's batch.

    Element i of a matrix (the last two axes) has the 32-bit hash `a + m * s_i`, and is dropped if
    the hash is below the rate's share of the range. The s_i are fixed random numbers; a, and an odd
    m, are drawn for each matrix of the whole batch from (seed, step, place). Masks of different
    matrices are therefore independent, and the elements of one matrix nearly pairwise independent
    (multiply-add hashing: Dietzfelbinger et al. 1997, A reliable randomized algorithm for the
    closest-pair problem). This takes one pass over memory; torch's dropout takes several times as
    long.
    """

    rates: DropoutRates
    seed: int
    step: int
    #: Number of rows of the whole batch, and index in it of the tensors' first row.
    batch: int
    first: int = 0

    @classmethod
    def for_step(cls, spec: ModelSpec, seed: int, step: int, batch: int) -> "Dropout | None":
        """Return the masks of a training step, or None if the model has no dropout."""
        return cls(spec.dropout, seed, step, batch) if spec.dropout != DropoutRates() else None

    def from_row(self, first: int) -> "Dropout":
        """Return the masks of the rows from `first` on."""
        return replace(self, first=first)

    def mask(self, place: str, shape: Sequence[int], like: Tensor) -> tuple[Tensor, float] | None:
        """Return the 0/1 mask and the scale 1/(1 - rate), or None if the rate is 0.

        The first axis of the shape is the batch; dtype and device are those of `like`. Mask and
        scale are returned separately: in bfloat16 the product of mask and scale would be off by up
        to 0.4%, by the same factor for all numbers.
        """
        rate: float = getattr(self.rates, _RATES.get(place.rpartition(".")[2], "sublayer"))
        if rate == 0:
            return None
        draw = torch.Generator().manual_seed(stream(self.seed, f"dropout/{self.step}/{place}"))
        keys = torch.empty(2, self.batch, *shape[1:-2], 1, dtype=torch.int32)
        keys.random_(-(1 << 31), None, generator=draw)
        add, times = keys[:, self.first : self.first + shape[0]].to(like.device)
        hashed = torch.addcmul(add, _fixed(shape[-2] * shape[-1], like.device), times | 1)
        mask = hashed >= min(round(rate * (1 << 32)), (1 << 32) - 1) - (1 << 31)
        return mask.to(like.dtype).view(*shape), 1 / (1 - rate)

    def __call__(self, x: Tensor, place: str) -> Tensor:
        """Apply dropout to x, scaled so that its expected value is unchanged."""
        dropout = self.mask(place, x.shape, x)
        return x if dropout is None else x * dropout[0] * dropout[1]


@lru_cache(maxsize=8)
def _fixed(count: int, device: torch.device) -> Tensor:
    """Return the fixed random numbers of the hash, (count,)."""
    numbers = torch.empty(count, dtype=torch.int32)
    numbers.random_(-(1 << 31), None, generator=torch.Generator().manual_seed(0))
    return numbers.to(device)
