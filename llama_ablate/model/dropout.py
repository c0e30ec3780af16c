"""Dropout whose masks are a function of seed, step and place (Srivastava et al. 2014).

Nothing is drawn one after another, so a mask does not depend on what else was drawn: variants
share masks wherever places and shapes agree, a resumed run has those of one that never stopped,
micro-batches and data-parallel ranks have their rows of the whole batch's mask, and a GPU has the
same as a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from llama_ablate.config.spec import DropoutRates, ModelSpec
from llama_ablate.model.initialisation import stream

#: The last part of a place's name, and the rate there; all else is the output of a sub-layer.
_RATES = {"embedding": "embedding", "weights": "attention"}


@dataclass(frozen=True)
class Dropout:
    """Dropout masks for some rows of a training step's batch.

    The number at i of a matrix (the last two axes) is `a + m * s_i` in 32 bits, and is dropped
    where that is below the rate's share of the range. The s_i are fixed random numbers; a, and an
    odd m, are drawn for each matrix of the whole batch from (seed, step, place). So masks of
    different matrices are independent, and the numbers within one nearly so by pairs (multiply-add
    hashing: Dietzfelbinger et al. 1997, A reliable randomized algorithm for the closest-pair
    problem). It takes one pass over memory where torch's dropout takes several times as long.
    """

    rates: DropoutRates
    seed: int
    step: int
    #: Rows of the whole batch, and the one that comes first in the tensors.
    batch: int
    first: int = 0

    @classmethod
    def for_step(cls, spec: ModelSpec, seed: int, step: int, batch: int) -> "Dropout | None":
        """Return the masks of a step; None where a model has no dropout."""
        return cls(spec.dropout, seed, step, batch) if spec.dropout != DropoutRates() else None

    def from_row(self, first: int) -> "Dropout":
        """Return the masks of the rows from `first` on."""
        return replace(self, first=first)

    def mask(self, place: str, shape: Sequence[int], like: Tensor) -> tuple[Tensor, float] | None:
        """Return the 0/1 mask and the scale 1/(1 - rate).

        None for a rate of 0. The first axis of the shape is the batch's; type and device are those
        of `like`. They are not multiplied: in bfloat16 their product would be off
        by up to 0.4%, for all numbers alike.
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
        """Apply dropout to x, scaled so that its mean stays."""
        dropout = self.mask(place, x.shape, x)
        return x if dropout is None else x * dropout[0] * dropout[1]


@lru_cache(maxsize=8)
def _fixed(count: int, device: torch.device) -> Tensor:
    """Return the fixed random numbers of the hash, (count,)."""
    numbers = torch.empty(count, dtype=torch.int32)
    numbers.random_(-(1 << 31), None, generator=torch.Generator().manual_seed(0))
    return numbers.to(device)
