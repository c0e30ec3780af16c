"""Context of one forward pass: positions, masks, and collected training losses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from llama_ablate.model.dropout import Dropout
from llama_ablate.model.kernels import Kernel, Maps
from llama_ablate.model.parametrization import Parametrization
from llama_ablate.model.positions import Position
from llama_ablate.model.state import State, Stateful

_STANDARD = Parametrization()


def _since(first_BT: Tensor | None, at_T: Tensor) -> Tensor:
    """Return positions `at_T` counted from a first token, 0 for tokens before the first token."""
    return at_T if first_BT is None else (at_T - first_BT).clamp(min=0)


@dataclass(eq=False)
class Context:
    """Context of a forward pass: positions, masks and training losses; each layer has a copy.

    `pos_T` are the positions of the new tokens: (T,), or (B, T) if sequences are padded on the left
    or documents are kept apart (per-document mask). `valid_BT` says which new tokens are not
    padding; None if none is padding. `begins_BT` says which tokens are the first of their document,
    at which a mixer's state must be reset; None if documents are not kept apart. `scores` and
    `residual` are the parametrization's factors of attention scores and of each sub-layer's output
    to the residual stream.

    `shared` maps names to tensors that a layer stores for later layers of the same pass. Each
    tensor is over the new tokens, (B, T, ...). The entry `tokens` has the token ids, (B, T).
    """

    #: Number of tokens before the new tokens, and number of new tokens.
    start: int
    new: int
    position: Position
    _: KW_ONLY
    kernel: Kernel = "fused"
    device: torch.device | str = "cpu"
    #: Number of padding tokens at the left of each sequence, (B,).
    pad_B: Tensor | None = None
    #: Index at which the document of each new token begins, (B, T); None if documents are not kept
    #: apart.
    first_BT: Tensor | None = None
    #: List to which attention appends its maps; None if maps are not recorded.
    maps: list[Maps] | None = None
    #: Losses by name, to which `add_loss` adds; None outside of training.
    losses: dict[str, Tensor] | None = None
    dropout: Dropout | None = None
    parametrization: Parametrization = _STANDARD
    tokens_BT: Tensor | None = None
    #: States of the Stateful modules, by the names of the modules.
    states: Mapping[str, State] | None = None
    layer: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Compute the positions of the new tokens."""
        self.scores, self.residual = self.parametrization.scores, self.parametrization.residual
        self._pad_B1 = None if self.pad_B is None else self.pad_B[:, None]
        # Index of the first token that each new token may see.
        self._seen_BT = self._pad_B1 if self.first_BT is None else self.first_BT
        at_T = torch.arange(self.start, self.start + self.new, device=self.device)
        self.pos_T = _since(self._seen_BT, at_T)
        self.valid_BT = None if self._pad_B1 is None else at_T >= self._pad_B1
        self.begins_BT = None if self.first_BT is None else at_T == self.first_BT
        self.shared = {} if self.tokens_BT is None else {"tokens": self.tokens_BT}
        self._masks: dict[tuple[int | None, int], tuple[Tensor | None, bool]] = {}

    def at(self, layer: int, position: Position) -> "Context":
        """Return a copy of the context for a layer; masks are shared with the other layers."""
        copy = Context.__new__(Context)
        vars(copy).update(vars(self), layer=layer, position=position)
        return copy

    def state(self, part: Stateful) -> State | None:
        """Return the state of a Stateful module, or None in a pass without states."""
        return (self.states or {}).get(part.state_name)

    def first(self, name: str, x: Tensor) -> Tensor:
        """Return the tensor that the first layer stored in `shared` under a name.

        If `shared` has no such name yet, `x` is stored there and returned.
        """
        return self.shared.setdefault(name, x)

    def rotate(self, q_BHTE: Tensor, k_BKTE: Tensor, pos_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by this layer's position scheme."""
        return self.position.rotate(q_BHTE, k_BKTE, pos_T)

    def rotate_values(self, v_BKTE: Tensor) -> Tensor:
        """Return values rotated by position, if this layer's position scheme rotates values."""
        return self.position.rotate_values(v_BKTE, self.pos_T)

    def mask(self, window: int | None, visible: int) -> tuple[Tensor | None, bool]:
        """Return the additive attention mask over the newest `visible` keys, S.

        The mask is (T, S), (H, T, S) or (B, 1 or H, T, S), or None if everything is visible. The
        second value returned says whether the mask is exactly the causal triangle, for which
        kernels have a fast path.
        """
        key = window, id(self.position)
        if key not in self._masks:
            self._masks[key] = self._mask(window or math.inf, visible - self.new)
        return self._masks[key]

    def _mask(self, window: float, held: int) -> tuple[Tensor | None, bool]:
        start, new, first_BT = self.start, self.new, self._seen_BT
        at_S = torch.arange(start - held, start + new, device=self.device)
        hidden_TS = None
        if new > 1 or start + new > window or first_BT is not None:
            back_TS = at_S[held:, None] - at_S
            hidden_TS = (back_TS < 0) | (back_TS >= window)
            if first_BT is not None:
                unseen_BTS = at_S < first_BT[..., None]
                # A padding token sees itself, or its softmax would be over nothing.
                hidden_TS = ((hidden_TS | unseen_BTS) & (back_TS != 0)).unsqueeze(1)
        # A position bias depends on distances only, which are the same for any origin of positions.
        mask = self.position.bias(*(_since(self._pad_B1, at) for at in (at_S[held:], at_S)))
        causal = new > 1 and mask is None and start == 0 and first_BT is None and new <= window
        if hidden_TS is not None:
            triangle_TS = torch.zeros(hidden_TS.shape, device=self.device)
            triangle_TS.masked_fill_(hidden_TS, -math.inf)
            mask = triangle_TS if mask is None else mask + triangle_TS
        return mask, causal

    def add_loss(self, name: str, value: Tensor, weight: float = 1.0) -> None:
        """Add a training loss of a component; losses with the same name are summed over layers."""
        if self.losses is not None:
            before = self.losses.get(name)
            self.losses[name] = weight * value if before is None else before + weight * value

    def add(self, x_BTD: Tensor, branch_BTD: Tensor, place: str) -> Tensor:
        """Add a sub-layer's output to the residual stream, after dropout and scaling."""
        return x_BTD + self.branch(branch_BTD, place)

    def branch(self, branch_BTD: Tensor, place: str) -> Tensor:
        """Apply dropout and the residual factor to a sub-layer's output."""
        branch_BTD = self.drop(branch_BTD, place)
        return branch_BTD if self.residual == 1 else self.residual * branch_BTD

    def drop(self, x: Tensor, place: str) -> Tensor:
        """Apply dropout to `x` at a named place of this layer, if the pass has dropout."""
        return x if self.dropout is None else self.dropout(x, f"blocks.{self.layer}.{place}")

    def dropped(
        self, place: str, shape: Sequence[int], like: Tensor
    ) -> tuple[Tensor, float] | None:
        """Return the mask and scale of `drop` for a tensor of a shape; None without dropout."""
        if self.dropout is None:
            return None
        return self.dropout.mask(f"blocks.{self.layer}.{place}", shape, like)
