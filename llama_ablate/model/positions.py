"""Position schemes: each overrides one hook of Position; NoPE overrides none.

Positions are explicit integers (`pos_T`), so prefill, chunks and single tokens share one code path.
If sequences are padded on the left, `pos_T` has a row for each sequence, (B, T). Tables belong to
an instance: two schemes with different thetas in one process never share a table.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import need
from llama_ablate.model.linear import Embedding


class Position(nn.Module):
    """Use no position information but the causal mask (Haviv et al. 2022, arXiv:2203.16634).

    This is also the base class of every position scheme; a scheme overrides some of its methods.
    """

    #: Whether attention scores depend on positions only through their differences.
    relative: bool = True
    #: Whether the scheme also rotates values, which only softmax attention supports.
    rotates_values: bool = False

    def prepare(self, end: int) -> None:
        """Prepare positions 0 to `end - 1`. Raises ValueError if the scheme has fewer positions."""

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return the token embeddings with position information added."""
        del pos_T
        return x_BTD

    def rotate(self, q_BHTE: Tensor, k_BKTE: Tensor, pos_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by position."""
        del pos_T
        return q_BHTE, k_BKTE

    def rotate_values(self, v_BKTE: Tensor, pos_T: Tensor) -> Tensor:
        """Return values rotated by position."""
        del pos_T
        return v_BKTE

    def bias(self, pos_T: Tensor, pos_S: Tensor) -> Tensor | None:
        """Compute the bias of attention scores, (H, T, S) or (B, H, T, S), or None."""
        del pos_T, pos_S
        return None


def _with_a_hook(component: Callable[..., Any], _name: str) -> Callable[..., Any]:
    """Return a scheme. Raises TypeError for a class that overrides no hook of `Position`."""
    overridden = [
        hook for hook in _HOOKS if getattr(component, hook, None) is not getattr(Position, hook)
    ]
    if isinstance(component, type) and component is not Position and not overridden:
        raise TypeError(f"it overrides none of {', '.join(_HOOKS)}")
    return component


_HOOKS = ("embed", "rotate", "rotate_values", "bias")
POSITIONS = Registry("position", sizes=SIZES, interface=Position, adapt=_with_a_hook)
POSITIONS.register("none")(Position)


@POSITIONS.register("sinusoidal")
class Sinusoidal(Position):
    """Add fixed sines and cosines to the embeddings (Vaswani et al. 2017, arXiv:1706.03762).

    Even columns are sines, odd columns cosines. The paper also scales the embeddings by sqrt(dim);
    without that, the position code, of length sqrt(dim/2), would dominate them.
    """

    relative = False

    def __init__(self, dim: int, *, base: float = 10000.0, scale: bool = True) -> None:
        super().__init__()
        need(base > 0, f"base {base:g}: must be above 0")
        self.dim = dim
        self.base = base
        self.scale = math.sqrt(dim) if scale else 1.0

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return `sqrt(dim) * x + code(pos)`."""
        even = torch.arange(0, self.dim, 2, dtype=torch.float64, device=pos_T.device)
        angle = pos_T.double()[..., None] * self.base ** (-even / self.dim)
        code_TD = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., : self.dim]
        return torch.add(code_TD.to(x_BTD.dtype), x_BTD, alpha=self.scale)


@POSITIONS.register("learned")
class Learned(Position):
    """Add a trained vector for each position of the context (Radford et al. 2019, GPT-2)."""

    relative = False

    def __init__(self, dim: int, context: int) -> None:
        super().__init__()
        self.table = Embedding(context, dim)

    def prepare(self, end: int) -> None:
        """Raise ValueError for positions beyond the trained table."""
        if end > self.table.num_embeddings:
            raise ValueError(
                f"learned positions end at {self.table.num_embeddings}, {end} were asked for"
            )

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return `x + table[pos]`."""
        table_TD: Tensor = self.table(pos_T)
        return x_BTD + table_TD


@POSITIONS.register("alibi")
class ALiBi(Position):
    """Penalise scores linearly with distance (Press et al. 2021, arXiv:2108.12409).

    Each head h has a slope. For a power of two of heads, the slopes are 2^(-8h/H); for other
    numbers, they are the slopes of the next lower power, then every second slope of the next higher
    power.
    """

    slope_H: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slope_H", torch.tensor(self._slopes(heads)), persistent=False)

    @staticmethod
    def _slopes(heads: int) -> list[float]:
        def geometric(n: int) -> list[float]:
            return [2 ** (-8 * (h + 1) / n) for h in range(n)]

        power = 1 << (heads.bit_length() - 1)
        return geometric(power) + geometric(2 * power)[::2][: heads - power]

    def bias(self, pos_T: Tensor, pos_S: Tensor) -> Tensor:
        """Return `-slope * (query position - key position)`, (H, T, S)."""
        distance_1TS = _distance(pos_T, pos_S).float().unsqueeze(-3)
        return -self.slope_H[:, None, None] * distance_1TS


@POSITIONS.register("t5")
class T5Bias(Position):
    """Add a learned bias for each head and bucket of distance (Raffel et al. 2019, 1910.10683).

    Half of the buckets have one distance each; the others grow logarithmically up to
    `max_distance`, and all larger distances share the last bucket. One table serves every layer, as
    in T5.
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        need(
            2 <= buckets <= 1 << 20 and buckets // 2 < max_distance <= 1 << 30,
            f"t5 needs 2 buckets or more, and max_distance beyond half of them: "
            f"got {buckets} and {max_distance}",
        )
        self.exact, self.max_distance = buckets // 2, max_distance
        self.table = Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance to an earlier token; later tokens have bucket 0."""
        distance = distance.clamp(min=0)
        ratio = math.log(self.max_distance / self.exact)
        buckets = self.table.num_embeddings - self.exact
        grown = (distance.clamp(min=1) / self.exact).log() / ratio * buckets
        far = (self.exact + grown.long()).clamp(max=self.table.num_embeddings - 1)
        return torch.where(distance < self.exact, distance, far)

    def bias(self, pos_T: Tensor, pos_S: Tensor) -> Tensor:
        """Return each head's learned bias per query-key pair, (H, T, S)."""
        bias_TSH: Tensor = self.table(self.bucket(_distance(pos_T, pos_S)))
        return bias_TSH.movedim(-1, -3)


def _distance(pos_T: Tensor, pos_S: Tensor) -> Tensor:
    """Return the distance from each query back to each key, (T, S) or (B, T, S)."""
    return pos_T[..., :, None] - pos_S[..., None, :]
