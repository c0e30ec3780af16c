"""What mixers keep between tokens: an argument of a forward pass, never a part of the model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

#: What an attention keeps per token: (heads, width) of each tensor.
CachedShapes = Sequence[tuple[int, int]]


class State(ABC):
    """What one layer's mixer keeps of the `length` tokens that it has read.

    The mixer advances it in its forward pass. `copy.deepcopy` keeps a state to come back to.
    """

    length: int = 0

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors."""

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class KVState(State):
    """Keys and values, or latents, of the newest tokens: each tensor (batch, heads, room, width).

    Heads are kept as they are computed, never expanded to the query heads. When it is full the
    oldest tokens are dropped: a sliding window needs no more.
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
        self._tensors = tuple(
            torch.zeros(batch, heads, room, width, dtype=dtype, device=device)
            for heads, width in shapes
        )
        self.room = room

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is kept of each token."""
        return self._tensors

    @property
    def held(self) -> int:
        """How many tokens are held: the newest ones."""
        return min(self.length, self.room)

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append the new tokens, (B, heads, T, width); return those held before and all new."""
        held, end = self.held, self.length + new[0].shape[2]
        if end <= self.room:
            for kept, tensor in zip(self._tensors, new, strict=True):
                kept[:, :, self.length : end] = tensor
            seen = tuple(kept[:, :, :end] for kept in self._tensors)
        else:
            pairs = zip(self._tensors, new, strict=True)
            seen = tuple(torch.cat([kept[:, :, :held], tensor], 2) for kept, tensor in pairs)
            for kept, tensor in zip(self._tensors, seen, strict=True):
                kept.copy_(tensor[:, :, -self.room :])
        self.length = end
        return seen


class RecurrentState(State):
    """Tensors of a fixed size, by name, that a recurrence overwrites: (batch, ...) each."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._live = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._live[name]

    def advance(self, tokens: int, **tensors: Tensor) -> None:
        """Replace the tensors by what they are after `tokens` more."""
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)
        self.length += tokens

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors by which the mixer remembers."""
        return tuple(self._live.values())


class Stateful(nn.Module, ABC):
    """What keeps something between tokens beside a mixer: a block, a feed-forward network, a part.

    In a forward pass it finds its state by `ctx.state(self)`, and advances it.
    """

    #: By which the decoder that it is a part of knows it.
    state_name: str = ""

    @abstractmethod
    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty state of `batch` sequences of at most `capacity` tokens."""

    @abstractmethod
    def state_bytes(self, context: int, dtype: torch.dtype) -> int:
        """Bytes of the state of one sequence of `context` tokens, in closed form."""


class DecoderState:
    """The states of all layers; the decoder's forward pass advances it.

    `layers` are those of the mixers, `others` those of Stateful parts by name. `first_BS` is the
    index at which the document of each token begins, None where a text is one document. Like the
    length it is the decoder's own and no part of `nbytes`.
    """

    def __init__(
        self,
        layers: Sequence[State],
        capacity: int,
        first_BS: Tensor | None = None,
        others: Mapping[str, State] | None = None,
    ) -> None:
        self.layers = layers
        self.others = others or {}
        self.capacity = capacity
        self.first_BS = first_BS
        self.length = 0

    @property
    def states(self) -> tuple[State, ...]:
        """All of them: of the mixers, one for each layer, then the others."""
        return *self.layers, *self.others.values()

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(state.nbytes for state in self.states)
