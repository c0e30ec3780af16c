"""Causal self-attention: `f(x_BTD, ctx, cache) -> x_BTD`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.cache import CachedShapes, LayerCache
from llama_ablate.model.kernels import Kernel, attend
from llama_ablate.model.linear import Linear, OutLinear
from llama_ablate.registry import Registry

ATTENTIONS = Registry("attention")

Rotate = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AttentionContext:
    """What the decoder computes once per forward pass and every layer's attention needs."""

    pos_T: Tensor
    rotate: Rotate
    #: Added to the scores, (T, S) or (H, T, S); None where every key is visible to every query.
    mask: Tensor | None
    #: The mask is the plain causal triangle and nothing else, which kernels have a fast path for.
    causal: bool
    kernel: Kernel


class Attention(nn.Module):
    """Softmax attention in which `heads // kv_heads` query heads share a key/value head."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        if kv_heads < 1 or heads % kv_heads:
            raise ConfigError(f"{heads} query heads do not divide into {kv_heads} kv_heads")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q = Linear(dim, heads * head_dim, bias=bias)
        self.k = Linear(dim, kv_heads * head_dim, bias=bias)
        self.v = Linear(dim, kv_heads * head_dim, bias=bias)
        self.out = OutLinear(heads * head_dim, dim, bias=bias)

    def forward(
        self, x_BTD: Tensor, ctx: AttentionContext, cache: LayerCache | None = None
    ) -> Tensor:
        """Return the mixed values, (B, T, D); with a cache, the new tokens also see the old."""
        q_BHTE, k_BKTE, v_BKTE = self._project(x_BTD)
        q_BHTE, k_BKTE = ctx.rotate(q_BHTE, k_BKTE, ctx.pos_T)
        k_BKSE, v_BKSE = cache.update(k_BKTE, v_BKTE) if cache else (k_BKTE, v_BKTE)
        mixed_BTe = attend(q_BHTE, k_BKSE, v_BKSE, ctx.mask, causal=ctx.causal, kernel=ctx.kernel)
        out_BTD: Tensor = self.out(mixed_BTe)
        return out_BTD

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # One matrix product instead of three: the small weights are joined, not the activations.
        parts = (self.q, self.k, self.v)
        weight = torch.cat([part.weight for part in parts])
        bias = None if self.q.bias is None else torch.cat([part.bias for part in parts])
        joined_BTe = F.linear(x_BTD, weight, bias)
        joined_BTNE = joined_BTe.view(*x_BTD.shape[:2], -1, self.head_dim)
        # One copy that puts heads first in memory: all that follows then runs over whole rows.
        joined_BNTE = joined_BTNE.permute(2, 0, 1, 3).contiguous().transpose(0, 1)
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q_BHTE, k_BKTE, v_BKTE = joined_BNTE.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        return q_BHTE, k_BKTE, v_BKTE

    @property
    def cached(self) -> CachedShapes:
        """What a cache keeps per token: keys and values, unexpanded."""
        return [(self.kv_heads, self.head_dim)] * 2

    def flops(self, context: int) -> int:
        """Forward FLOPs per token: the projections, and dense scores and mixing over `context`."""
        projections = (self.q, self.k, self.v, self.out)
        dense = 2 * context * self.heads * self.head_dim
        return 2 * (sum(p.weight.numel() for p in projections) + dense)


@ATTENTIONS.register("mha")
def mha(dim: int, heads: int, head_dim: int, bias: bool) -> Attention:
    """Give every query head a key/value head (Vaswani et al. 2017, arXiv:1706.03762)."""
    return Attention(dim, heads, heads, head_dim, bias)


@ATTENTIONS.register("gqa")
def gqa(dim: int, heads: int, head_dim: int, bias: bool, *, kv_heads: int = 2) -> Attention:
    """Share `kv_heads` among groups of query heads (Ainslie et al. 2023, arXiv:2305.13245)."""
    return Attention(dim, heads, kv_heads, head_dim, bias)


@ATTENTIONS.register("mqa")
def mqa(dim: int, heads: int, head_dim: int, bias: bool) -> Attention:
    """Share one key/value head among all query heads (Shazeer 2019, arXiv:1911.02150)."""
    return Attention(dim, heads, 1, head_dim, bias)
