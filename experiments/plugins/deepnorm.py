"""DeepNorm, a block: post-norm whose stream weighs more, and whose sub-layers begin smaller."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from llama_ablate.model.blocks import BLOCKS, Block
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear
from llama_ablate.model.state import State


@BLOCKS.register("deepnorm")
class DeepNorm(Block):
    """Normalise `alpha x + f(x)`, where f begins smaller (Wang et al. 2022, arXiv:2203.00555).

    For a decoder of N layers alpha is (2 N)^(1/4). Weights begin as Xavier's: those of queries and
    keys with a gain of 1, all others of the block with (8 N)^(-1/4), whatever `model.init` says.
    """

    final_norm = False

    def __init__(
        self, attn: nn.Module, ffn: nn.Module, norm: Callable[[], nn.Module], layers: int
    ) -> None:
        super().__init__(attn, ffn, norm)
        self.alpha, beta = (2 * layers) ** 0.25, (8 * layers) ** -0.25
        for name, part in self.named_modules():
            if isinstance(part, Linear) and part.start is None:
                gain = 1.0 if name in ("attn.q", "attn.k") else beta
                part.start = partial(nn.init.xavier_normal_, gain=gain)
                part.reset_parameters()

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `norm(alpha x + f(x))` for attention, then for the feed-forward."""
        mixed_BTD = self.attn(x_BTD, ctx, state)
        x_BTD = self.attn_norm(ctx.add(self.alpha * x_BTD, mixed_BTD, "attn"))
        x_BTD = self.ffn_norm(ctx.add(self.alpha * x_BTD, self.ffn(x_BTD, ctx), "ffn"))
        return x_BTD
