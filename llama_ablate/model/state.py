"""What mixers keep between tokens: an argument of a forward pass, never a part of the model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

#: What an attention keeps per token: (heads, width) of each tensor.
CachedShapes = Sequence[tuple[int, int]]


class State(ABC):
    """What one layer's mixer keeps of the `length` tokens that it has read.

    The mixer advances it in its forward pass. `keep` makes the present length one that `rewind` can
    come back to; what it copies is no part of `nbytes`.
    """

    length: int = 0

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors."""

    @abstractmethod
    def keep(self) -> None:
        """Make it possible to come back to this length, whatever is read from here."""

    @abstractmethod
    def holds(self, length: int) -> bool:
        """Whether `rewind` can go to a length."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Drop the tokens beyond a length that it `holds`."""

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
        self._kept: tuple[int, tuple[Tensor, ...]] | None = None

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

    def keep(self) -> None:
        """Copy what is held: a window may drop it."""
        held = tuple(tensor[:, :, : self.held].clone() for tensor in self._tensors)
        self._kept = self.length, held

    def holds(self, length: int) -> bool:
        """Whether no token up to this length was dropped since, or it was kept."""
        if self._kept is not None and length == self._kept[0]:
            return True
        return length == self.length or (length < self.length <= self.room)

    def rewind(self, length: int) -> None:
        """Drop the tokens beyond a length that it `holds`."""
        if length < self.length and self.length > self.room:
            assert self._kept is not None, "holds() comes first"
            self.length, tensors = self._kept
            for live, kept in zip(self._tensors, tensors, strict=True):
                live[:, :, : self.held] = kept
        self.length = length
        if self._kept is not None and length < self._kept[0]:
            self._kept = None  # what is read from here is another text


class RecurrentState(State):
    """Tensors of a fixed size, by name, that a recurrence overwrites: (batch, ...) each."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._live = dict(tensors)
        self._kept: tuple[int, dict[str, Tensor]] | None = None

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

    def keep(self) -> None:
        """Copy the tensors: a recurrence cannot be run backwards."""
        self._kept = self.length, {name: tensor.clone() for name, tensor in self._live.items()}

    def holds(self, length: int) -> bool:
        """Whether this is the present length, or the kept one."""
        return length == self.length or (self._kept is not None and length == self._kept[0])

    def rewind(self, length: int) -> None:
        """Drop the tokens beyond a length that it `holds`."""
        if length != self.length:
            assert self._kept is not None, "holds() comes first"
            self.length, kept = self._kept
            for name, tensor in kept.items():
                self._live[name].copy_(tensor)


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

    def keep(self) -> None:
        """Make the present length one that `rewind` can come back to."""
        for state in self.states:
            state.keep()

    def rewind(self, length: int) -> None:
        """Drop the tokens beyond `length`.

        Raises ValueError for a length at which a window or a recurrence was not kept.
        """
        names = *(f"layer {i}" for i in range(len(self.layers))), *self.others
        for name, state in zip(names, self.states, strict=True):
            if not state.holds(length):
                raise ValueError(
                    f"{name} cannot go back from {state.length} tokens to {length}: it no "
                    "longer holds that state; call keep() there first"
                )
        for state in self.states:
            state.rewind(length)
        self.length = length

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, for the whole capacity and batch."""
        return sum(state.nbytes for state in self.states)
