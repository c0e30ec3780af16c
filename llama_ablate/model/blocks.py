"""A block is wiring: it is handed ready-made parts and decides where the norms stand."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from llama_ablate.registry import Registry

BLOCKS = Registry("block")


class Block(nn.Module):
    """An attention, a feed-forward network, and norms made by a factory."""

    #: Whether the stream needs a norm after the last block: the one consequence for the model.
    final_norm: ClassVar[bool]

    def __init__(self, attn: nn.Module, ffn: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attn, self.ffn = attn, ffn
        self.attn_norm, self.ffn_norm = norm(), norm()


@BLOCKS.register("pre")
class PreNorm(Block):
    """Normalise what enters each sub-layer (Radford et al. 2019; Xiong et al., arXiv:2002.04745).

    The stream itself stays raw, so the model needs a norm after the last block.
    """

    final_norm = True

    def forward(self, x_BTD: Tensor, *context: object) -> Tensor:
        """Return `x + f(norm(x))` for attention, then for the feed-forward."""
        x_BTD = x_BTD + self.attn(self.attn_norm(x_BTD), *context)
        x_BTD = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return x_BTD


@BLOCKS.register("post")
class PostNorm(Block):
    """Normalise the stream after each addition (Vaswani et al. 2017, arXiv:1706.03762)."""

    final_norm = False

    def forward(self, x_BTD: Tensor, *context: object) -> Tensor:
        """Return `norm(x + f(x))` for attention, then for the feed-forward."""
        x_BTD = self.attn_norm(x_BTD + self.attn(x_BTD, *context))
        x_BTD = self.ffn_norm(x_BTD + self.ffn(x_BTD))
        return x_BTD
