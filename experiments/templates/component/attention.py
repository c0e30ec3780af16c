"""An attention of one's own.

With `forward(x)` alone it trains, and does not decode; its FLOPs and cache are missing in reports.
For these inherit `Attention` of llama_ablate.model.mixers.attention, as `SharedHeads` does there.
"""

import torch
import torch.nn.functional as F
from llama_ablate.model.linear import Linear, OutLinear
from llama_ablate.model.mixers.attention import ATTENTIONS
from torch import Tensor, nn


@ATTENTIONS.register("mine")
class MineAttention(nn.Module):
    """Gate what the heads have mixed by a sigmoid (Qiu et al. 2025, arXiv:2505.06708)."""

    # Before a '*' sizes that the model supplies, behind it what the experiment file may set.
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkvg = Linear(dim, 4 * dim, bias=False)
        self.out = OutLinear(dim, dim, bias=False)  # starts smaller in a deeper model

    def forward(self, x: Tensor) -> Tensor:
        """Return what tokens take from those before them, (batch, tokens, dim)."""
        parts = (p.unflatten(-1, (self.heads, -1)) for p in self.qkvg(x).chunk(4, dim=-1))
        q, k, v, gate = (part.transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out((torch.sigmoid(gate) * mixed).transpose(1, 2).flatten(2))
