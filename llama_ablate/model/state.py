"""States of token mixers, such as KV caches: arguments of a forward pass, not model parts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Shapes of an attention's cached tensors per token: (heads, width) of each tensor, by name.
CachedShapes = Mapping[str, tuple[int, int]]


class State(ABC):
    """State of one layer's mixer after the `length` tokens that it has read.

    The mixer updates the state in its forward pass. `copy.deepcopy` saves a state for later use.
    """

    length: int = 0

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Live tensors of the state."""

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class KVState(State):
    """KV cache: tensors of the newest tokens by name (keys and values, or latents).

    Each tensor has the shape (batch, heads, room, width). Heads are stored as computed, never
    expanded to the query heads. A full cache drops the oldest tokens, which a sliding window no
    longer needs.
    """

    def __init__(
        self,
        shapes: CachedShapes,
        batch: int,
        room: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self._cached = {
            name: torch.zeros(batch, heads, room, width, dtype=dtype, device=device)
            for name, (heads, width) in shapes.items()
        }
        self.room = room

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Cached tensors, with one position for each of the newest tokens."""
        return tuple(self._cached.values())

    @property
    def cached_tokens(self) -> int:
        """Number of cached tokens, the newest of the sequence."""
        return min(self.length, self.room)

    def update(self, **new: Tensor) -> dict[str, Tensor]:
        """Append tensors of new tokens, (B, heads, T, width), to the cache.

        Returns, by name, the cached tensors followed by the new ones. Raises ValueError if the
        names differ from the names of the cached tensors.
        """
        if new.keys() != self._cached.keys():
            raise ValueError(f"'cached' declares {[*self._cached]}, and given are {[*new]}")
        cached_count, end = self.cached_tokens, self.length + next(iter(new.values())).shape[2]
        visible = {}
        for name, tensor in new.items():
            cached = self._cached[name]
            if end <= self.room:
                cached[:, :, self.length : end] = tensor
                visible[name] = cached[:, :, :end]
            else:
                visible[name] = torch.cat([cached[:, :, :cached_count], tensor], 2)
                cached.copy_(visible[name][:, :, -self.room :])
        self.length = end
        return visible


class RecurrentState(State):
    """Recurrent state: tensors of fixed size by name, (batch, ...) each, overwritten in place."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._live = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._live[name]

    def advance(self, tokens: int, **tensors: Tensor) -> None:
        """Overwrite the state's tensors with the values after `tokens` further tokens."""
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)
        self.length += tokens

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Live tensors of the recurrence."""
        return tuple(self._live.values())


class Stateful(nn.Module, ABC):
    """Base class of modules other than mixers that keep a state between tokens.

    Examples are blocks, feed-forward networks and their parts. In a forward pass, the module gets
    its state from `ctx.state(self)` and updates it.
    """

    #: Name of the module's state in its decoder.
    state_name: str = ""

    @abstractmethod
    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty state of `batch` sequences of at most `capacity` tokens."""


@dataclass(eq=False)
class DecoderState:
    """State of a decoder: the states of all layers, which a forward pass updates.

    Neither `first_BS` nor `length` is counted in `nbytes`.
    """

    #: States of the mixers, one per layer.
    layers: Sequence[State]
    capacity: int
    #: States of Stateful modules, by the names of the modules.
    others: Mapping[str, State]
    #: Index at which the document of each token begins; None if documents are not kept apart.
    first_BS: Tensor | None = None
    length: int = 0

    @property
    def states(self) -> tuple[State, ...]:
        """States of the mixers, one per layer, followed by the other states."""
        return *self.layers, *self.others.values()

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(state.nbytes for state in self.states)
