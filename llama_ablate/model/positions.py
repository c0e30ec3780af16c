"""Where order enters. A scheme overrides one hook of Position; NoPE overrides none.

Positions are explicit integers (`pos_T`), so prefill, chunks and single tokens take one code path.
Tables belong to an instance: two thetas in one process never share one.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.linear import Embedding
from llama_ablate.registry import Registry

POSITIONS = Registry("position")


@POSITIONS.register("none")
class Position(nn.Module):
    """Leave order to the causal mask alone (Haviv et al. 2022, arXiv:2203.16634)."""

    #: Attention scores depend on positions only through their differences.
    relative: ClassVar[bool] = True

    def reach(self, end: int) -> None:
        """Make ready for positions 0 to `end - 1`. Raises ValueError where the scheme ends."""

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return the token embeddings with position mixed in."""
        del pos_T
        return x_BTD

    def rotate(self, q_BHTE: Tensor, k_BKTE: Tensor, pos_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with position turned into them."""
        del pos_T
        return q_BHTE, k_BKTE

    def bias(self, pos_T: Tensor, pos_S: Tensor) -> Tensor | None:
        """Return what is added to the scores, (H, T, S), or None."""
        del pos_T, pos_S
        return None


@POSITIONS.register("sinusoidal")
class Sinusoidal(Position):
    """Add fixed sines and cosines to the embeddings (Vaswani et al. 2017, arXiv:1706.03762).

    Sines stand in even columns, cosines in odd ones. The paper also scales the embeddings by
    sqrt(dim); without that the code, of length sqrt(dim/2), would drown them.
    """

    relative = False

    def __init__(self, dim: int, *, base: float = 10000.0, scale: bool = True) -> None:
        super().__init__()
        self.dim = dim
        self.base = base
        self.scale = math.sqrt(dim) if scale else 1.0

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return `sqrt(dim) * x + code(pos)`."""
        even = torch.arange(0, self.dim, 2, dtype=torch.float64, device=pos_T.device)
        angle = torch.outer(pos_T.double(), self.base ** (-even / self.dim))
        code_TD = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, : self.dim]
        return torch.add(code_TD.to(x_BTD.dtype), x_BTD, alpha=self.scale)


@POSITIONS.register("learned")
class Learned(Position):
    """Add a trained vector for each position of the context (Radford et al. 2019, GPT-2)."""

    relative = False

    def __init__(self, dim: int, context: int) -> None:
        super().__init__()
        self.table = Embedding(context, dim)

    def reach(self, end: int) -> None:
        """Refuse positions that were never trained."""
        if end > self.table.num_embeddings:
            raise ValueError(
                f"learned positions end at {self.table.num_embeddings}, {end} were asked for"
            )

    def embed(self, x_BTD: Tensor, pos_T: Tensor) -> Tensor:
        """Return `x + table[pos]`."""
        table_TD: Tensor = self.table(pos_T)
        return x_BTD + table_TD


@POSITIONS.register("rope")
class RoPE(Position):
    """Turn coordinate pairs by angles linear in position (Su et al. 2021, arXiv:2104.09864).

    Pair i is the coordinates (i, i + E/2), the half-split layout
    that Hugging Face's Llama uses; angles are `pos * theta^(-2i/E)`, computed in float32.
    """

    cos_SE: Tensor
    sin_SE: Tensor

    def __init__(self, head_dim: int, *, theta: float = 10000.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ConfigError(f"rope turns pairs of coordinates: head_dim {head_dim} is odd")
        self.theta = theta
        self.head_dim = head_dim
        self.register_buffer("cos_SE", torch.empty(0, head_dim), persistent=False)
        self.register_buffer("sin_SE", torch.empty(0, head_dim), persistent=False)

    def frequencies(self) -> Tensor:
        """Return the angle in radians that each pair turns per position, (E/2,) in float64."""
        even_E2 = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=self.cos_SE.device)
        return self.theta ** (-even_E2 / self.head_dim)

    def reach(self, end: int) -> None:
        """Grow this instance's tables, in steps of powers of two, to cover `end` positions."""
        if end <= self.cos_SE.shape[0]:
            return
        device = self.cos_SE.device
        pos_S = torch.arange(1 << (end - 1).bit_length(), dtype=torch.float64, device=device)
        # Angles in float64: at position 100,000 a float32 angle is off by up to 0.004 radians.
        angle_SE2 = torch.outer(pos_S, self.frequencies())
        cos_SE2, sin_SE2 = angle_SE2.cos().float(), angle_SE2.sin().float()
        self.cos_SE = torch.cat([cos_SE2, cos_SE2], dim=-1)
        # The first half's sine carries the sign of (x1, x2) -> (-x2, x1), so no half is negated.
        self.sin_SE = torch.cat([-sin_SE2, sin_SE2], dim=-1)

    def rotate(self, q_BHTE: Tensor, k_BKTE: Tensor, pos_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k turned; lengths are kept, and q·k depends on the distance alone."""
        cos_TE = self.cos_SE[pos_T].to(q_BHTE.dtype)
        sin_TE = self.sin_SE[pos_T].to(q_BHTE.dtype)
        return self._turn(q_BHTE, cos_TE, sin_TE), self._turn(k_BKTE, cos_TE, sin_TE)

    def _turn(self, x: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        return torch.addcmul(x * cos_TE, x.roll(self.head_dim // 2, -1), sin_TE)


@POSITIONS.register("alibi")
class ALiBi(Position):
    """Penalise scores linearly with distance (Press et al. 2021, arXiv:2108.12409).

    Slopes, one for each head, are 2^(-8h/H) for a power of two of heads; other
    counts take the next lower power's slopes, then every second one of the next higher.
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
        distance_TS = (pos_T[:, None] - pos_S[None, :]).float()
        return -self.slope_H[:, None, None] * distance_TS
