"""The key/value cache: an argument of a forward pass, never a part of the model."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: What an attention keeps per token: (heads, width) of each tensor.
CachedShapes = Sequence[tuple[int, int]]


class LayerCache:
    """What one layer's attention has kept, (batch, heads, capacity, width) a tensor."""

    def __init__(
        self,
        shapes: CachedShapes,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.tensors = tuple(
            torch.zeros(batch, heads, capacity, width, dtype=dtype, device=device)
            for heads, width in shapes
        )
        self.start = 0

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Write the new tokens behind those kept, and return views of all that are visible."""
        end = self.start + new[0].shape[2]
        for kept, tensor in zip(self.tensors, new, strict=True):
            kept[:, :, self.start : end] = tensor
        return tuple(kept[:, :, :end] for kept in self.tensors)


class KVCache:
    """The caches of all layers, and how many tokens they hold. The decoder alone advances it.

    Key/value heads are stored as they are computed, never expanded to the query heads, so
    `nbytes` measures what grouped-query attention saves.
    """

    def __init__(self, layers: Sequence[LayerCache], capacity: int) -> None:
        self.layers = layers
        self.capacity = capacity
        self.length = 0

    def advance(self, tokens: int) -> None:
        """Count `tokens` as kept."""
        self.rewind(self.length + tokens)

    def rewind(self, length: int) -> None:
        """Go back (or on) to a length: what lies behind it is forgotten."""
        self.length = length
        for layer in self.layers:
            layer.start = length

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in layer.tensors)
