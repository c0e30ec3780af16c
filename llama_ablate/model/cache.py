"""The key/value cache: an argument of a forward pass, never a part of the model."""

from collections.abc import Sequence

import torch
from torch import Tensor

#: What an attention keeps per token: (heads, width) of each tensor.
CachedShapes = Sequence[tuple[int, int]]


class LayerCache:
    """The tensors that one layer's attention caches, each (batch, heads, capacity, width).

    When it is full the oldest tokens are dropped: a sliding window needs no more.
    """

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
        """Append the new tokens; return those held before and all of the new."""
        held, end = self.held, self.start + new[0].shape[2]
        if end <= self.room:
            for kept, tensor in zip(self.tensors, new, strict=True):
                kept[:, :, self.start : end] = tensor
            return tuple(kept[:, :, :end] for kept in self.tensors)
        seen = [torch.cat([k[:, :, :held], n], 2) for k, n in zip(self.tensors, new, strict=True)]
        for kept, tensor in zip(self.tensors, seen, strict=True):
            kept.copy_(tensor[:, :, -self.room :])
        return tuple(seen)

    @property
    def room(self) -> int:
        """How many tokens can be held."""
        return self.tensors[0].shape[2]

    @property
    def held(self) -> int:
        """How many tokens are held: the newest ones."""
        return min(self.start, self.room)


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
        """Add `tokens` to the length."""
        self.rewind(self.length + tokens)

    def rewind(self, length: int) -> None:
        """Set the length; tokens beyond it are dropped.

        Raises ValueError for going back to tokens that a window has dropped.
        """
        if length < self.length and any(layer.start > layer.room for layer in self.layers):
            raise ValueError(f"a window of {self.layers[0].room} cannot go back to {length}")
        self.length = length
        for layer in self.layers:
            layer.start = length

    @property
    def held(self) -> int:
        """How many tokens are still held: all of them, unless there is a window."""
        return self.layers[0].held

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in layer.tensors)
