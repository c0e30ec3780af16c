"""A block of one's own."""

from llama_ablate.model.blocks import BLOCKS, Block
from llama_ablate.model.context import Context
from llama_ablate.model.state import State
from torch import Tensor


@BLOCKS.register("mine")
class MineBlock(Block):
    """Normalise what leaves each sub-layer, and nothing else (OLMo 2, 2025, arXiv:2501.00656).

    `Block` makes a norm for each name in `norms`: `attn_norm` and `ffn_norm`.
    """

    final_norm = True  # the stream is not normalised, so the last layer's output is

    def forward(self, x: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return the stream after this layer, (batch, tokens, dim)."""
        x = ctx.add(x, self.attn_norm(self.attn(x, ctx, state)), "attn")
        return ctx.add(x, self.ffn_norm(self.ffn(x, ctx)), "ffn")
