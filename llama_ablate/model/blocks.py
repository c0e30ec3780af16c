"""Transformer blocks, which differ in where norms are placed around their sub-layers."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import need
from llama_ablate.model.context import Context
from llama_ablate.model.state import State


class BlockInterface(Protocol):
    """Interface of a block."""

    attn: nn.Module
    ffn: nn.Module
    #: Whether the model needs a norm after the last block.
    final_norm: ClassVar[bool]
    #: Attribute names of the block's norms.
    norms: ClassVar[tuple[str, ...]]

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None) -> Tensor:
        """Return the residual stream after this layer, (B, T, D)."""


BLOCKS = Registry("block", sizes=(*SIZES, "attn", "ffn", "norm", "layer"), interface=BlockInterface)


class Block(nn.Module):
    """Block of attention and a feed-forward network; subclasses add the norms.

    `x0` adds the token embedding to the input of each layer: the stream and the embedding are each
    multiplied by a learned number, initially 1 and 0 (Jordan et al. 2024, modded-nanogpt).
    """

    #: Number of residual streams: vectors per token between layers, equal in all layers.
    streams: int = 1

    final_norm: ClassVar[bool]
    norms: ClassVar[tuple[str, ...]] = ("attn_norm", "ffn_norm")

    attn_norm: nn.Module
    ffn_norm: nn.Module

    def __init__(
        self, attn: nn.Module, ffn: nn.Module, norm: Callable[[], nn.Module], *, x0: bool = False
    ) -> None:
        super().__init__()
        self.attn, self.ffn = attn, ffn
        for name in self.norms:
            self.add_module(name, norm())
        self.x0_mix = nn.Parameter(torch.tensor([1.0, 0.0])) if x0 else None

    def entered(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        """Return the layer's input stream, with the embedding mixed in if `x0` is set."""
        if self.x0_mix is None:
            return x_BTD
        return self.x0_mix[0] * x_BTD + self.x0_mix[1] * ctx.first("x0", x_BTD)

    def flops(self, context: int) -> int:
        """Count a block's forward FLOPs per token outside attention and feed-forward network."""
        del context
        return 0


@BLOCKS.register("pre")
class PreNorm(Block):
    """Normalise the input of each sub-layer (Radford et al. 2019; Xiong et al., arXiv:2002.04745).

    The residual stream itself is not normalised, so the model needs a norm after the last block.
    `residual` is the factor of the stream in each addition: at 0 only the sub-layer's output is
    left, the plain network to which He et al. 2015 (arXiv:1512.03385) add residual connections.
    """

    final_norm = True

    def __init__(
        self,
        attn: nn.Module,
        ffn: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        residual: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(attn, ffn, norm, **options)
        need(0 <= residual <= 1, f"residual {residual:g}: must be from 0 to 1")
        self.residual = residual

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `x + f(norm(x))` for attention, then for the feed-forward."""
        x_BTD = self.entered(x_BTD, ctx)
        x_BTD = ctx.add(
            self._scale_stream(x_BTD), self.attn(self.attn_norm(x_BTD), ctx, state), "attn"
        )
        x_BTD = ctx.add(self._scale_stream(x_BTD), self.ffn(self.ffn_norm(x_BTD), ctx), "ffn")
        return x_BTD

    def _scale_stream(self, x_BTD: Tensor) -> Tensor:
        return x_BTD if self.residual == 1 else self.residual * x_BTD


@BLOCKS.register("post")
class PostNorm(Block):
    """Normalise the residual stream after each addition (Vaswani et al. 2017, arXiv:1706.03762)."""

    final_norm = False

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `norm(x + f(x))` for attention, then for the feed-forward."""
        x_BTD = self.entered(x_BTD, ctx)
        x_BTD = self.attn_norm(ctx.add(x_BTD, self.attn(x_BTD, ctx, state), "attn"))
        x_BTD = self.ffn_norm(ctx.add(x_BTD, self.ffn(x_BTD, ctx), "ffn"))
        return x_BTD


@BLOCKS.register("reordered")
class ReorderedNorm(Block):
    """Normalise the output of each sub-layer, not its input (OLMo 2 2025, arXiv:2501.00656).

    The paper calls it reordered norm. Unlike post-norm, it leaves the residual stream as it is.
    """

    final_norm = True

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `x + norm(f(x))` for attention, then for the feed-forward."""
        x_BTD = self.entered(x_BTD, ctx)
        x_BTD = ctx.add(x_BTD, self.attn_norm(self.attn(x_BTD, ctx, state)), "attn")
        return ctx.add(x_BTD, self.ffn_norm(self.ffn(x_BTD, ctx)), "ffn")


@BLOCKS.register("sandwich")
class SandwichNorm(Block):
    """Normalise the input and the output of each sub-layer (Kim et al. 2025, arXiv:2502.02732).

    The paper calls it Peri-LN; it is the sandwich norm of CogView (Ding et al. 2021,
    arXiv:2105.13290).
    """

    final_norm = True
    norms = ("attn_norm", "attn_out_norm", "ffn_norm", "ffn_out_norm")

    attn_out_norm: nn.Module
    ffn_out_norm: nn.Module

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `x + norm(f(norm(x)))` for attention, then for the feed-forward."""
        x_BTD = self.entered(x_BTD, ctx)
        mixed_BTD = self.attn_out_norm(self.attn(self.attn_norm(x_BTD), ctx, state))
        x_BTD = ctx.add(x_BTD, mixed_BTD, "attn")
        return ctx.add(x_BTD, self.ffn_out_norm(self.ffn(self.ffn_norm(x_BTD), ctx)), "ffn")


@BLOCKS.register("parallel")
class ParallelBlock(Block):
    """Run attention and feed-forward in parallel, after one norm (PaLM 2022, arXiv:2204.02311)."""

    final_norm = True
    norms = ("attn_norm",)

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `x + attn(norm(x)) + ffn(norm(x))`."""
        x_BTD = self.entered(x_BTD, ctx)
        normed_BTD = self.attn_norm(x_BTD)
        x_BTD = ctx.add(x_BTD, self.attn(normed_BTD, ctx, state), "attn")
        return ctx.add(x_BTD, self.ffn(normed_BTD, ctx), "ffn")


@BLOCKS.register("parallel-two-norms")
class ParallelTwoNorms(Block):
    """Parallel attention and feed-forward with two norms (GPT-NeoX 2022, arXiv:2204.06745)."""

    final_norm = True

    def forward(self, x_BTD: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return `x + attn(attn_norm(x)) + ffn(ffn_norm(x))`."""
        x_BTD = self.entered(x_BTD, ctx)
        fed_BTD = self.ffn(self.ffn_norm(x_BTD), ctx)
        x_BTD = ctx.add(x_BTD, self.attn(self.attn_norm(x_BTD), ctx, state), "attn")
        return ctx.add(x_BTD, fed_BTD, "ffn")
