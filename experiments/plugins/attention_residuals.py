"""Attention residuals, a block whose sub-layers attend over all earlier outputs.

Between the first layer, which is given the embeddings, (B, T, D), and the last, which returns their
shape, the stream is (B, T, N, D): the embedding and every output so far.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.model.blocks import BLOCKS, Block
from llama_ablate.model.context import Context
from llama_ablate.model.state import State


@BLOCKS.register("attention-residuals")
class AttentionResiduals(Block):
    """Sub-layers that attend over all earlier outputs (Kimi 2026, arXiv:2603.15031).

    The input of a sub-layer is a weighted sum of the embedding and of what all sub-layers before it
    have returned; weights are the softmax of the products of a learned vector with each of them,
    normalised (RMS). The vectors start at zero, so all earlier outputs count alike. The last layer
    returns one more such sum.
    """

    final_norm = True
    streams = 0  # as many as there are outputs

    def __init__(
        self,
        attn: nn.Module,
        ffn: nn.Module,
        norm: Callable[[], nn.Module],
        dim: int,
        layer: int,
        layers: int,
    ) -> None:
        super().__init__(attn, ffn, norm)
        # There is nothing to weigh before the first sub-layer.
        self.attn_query = nn.Parameter(torch.zeros(dim)) if layer else None
        self.ffn_query = nn.Parameter(torch.zeros(dim))
        self.out_query = nn.Parameter(torch.zeros(dim)) if layer == layers - 1 else None

    def forward(self, x_BTND: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Run both sub-layers; return all outputs so far, or after the last layer one sum."""
        if x_BTND.dim() == 3:
            x_BTND = x_BTND[:, :, None]
        mixed_BTD = self.attn(
            self.attn_norm(attend_over_outputs(x_BTND, self.attn_query)), ctx, state
        )
        x_BTND = torch.cat([x_BTND, ctx.branch(mixed_BTD, "attn")[:, :, None]], 2)
        y_BTD = self.ffn(self.ffn_norm(attend_over_outputs(x_BTND, self.ffn_query)), ctx)
        x_BTND = torch.cat([x_BTND, ctx.branch(y_BTD, "ffn")[:, :, None]], 2)
        return x_BTND if self.out_query is None else attend_over_outputs(x_BTND, self.out_query)


def attend_over_outputs(x_BTND: Tensor, query_D: Tensor | None) -> Tensor:
    """Sum N vectors by the softmax of their products with a query, (B, T, D)."""
    if query_D is None:
        return x_BTND.sum(2)
    scores_BTN = (F.rms_norm(x_BTND, x_BTND.shape[-1:]) * query_D).sum(-1)
    return (scores_BTN.softmax(-1)[..., None] * x_BTND).sum(2)
