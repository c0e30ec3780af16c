"""Blocks with another residual stream than one vector a token: several of them, or all outputs.

Between the first layer, which is given the embeddings, (B, T, D), and the last, which returns as
much, their stream is (B, T, N, D): N vectors a token.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.blocks import BLOCKS, Block
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear, weights
from llama_ablate.model.state import State

_SCALE = 0.01  # of what depends on the token, at the start, in both papers
_SINKHORN = 20  # iterations, as in the paper
_NEAR_IDENTITY = 4.0  # the logit of a stream's own share; those of the others are 0


def doubly_stochastic(logits_NN: Tensor) -> Tensor:
    """Return positive matrices, (..., N, N), whose rows and columns sum to 1 (Sinkhorn-Knopp)."""
    share_NN = logits_NN.softmax(-1)
    for _ in range(_SINKHORN):
        share_NN = share_NN / share_NN.sum(-2, keepdim=True)
        share_NN = share_NN / share_NN.sum(-1, keepdim=True)
    return share_NN


class _Streams(nn.Module):
    """How one sub-layer reads N streams, and how they go on beside it."""

    undecayed = frozenset({"mix"})

    def __init__(self, dim: int, streams: int, first: int, kind: str) -> None:
        super().__init__()
        N = self.streams = streams
        self.dim, self.kind = dim, kind
        read_N = F.one_hot(torch.tensor(first % N), N).float()
        mhc = kind == "mhc"  # of which these are logits
        self.read = nn.Parameter(torch.full((N,), -math.log(N - 1)) if mhc else read_N)
        self.mix = nn.Parameter((_NEAR_IDENTITY if mhc else 1) * torch.eye(N))
        self.write = nn.Parameter(torch.zeros(N) if mhc else torch.ones(N))
        self.sizes = [N, N * N, N] if mhc else [1, N, 1]
        if kind != "static":
            inputs, start = (N * dim, None) if mhc else (dim, nn.init.zeros_)
            self.project = Linear(inputs, sum(self.sizes), bias=False, start=start)
            self.scale = nn.Parameter(torch.full((3,), _SCALE))  # of reading, mixing and writing

    def forward(self, x_BTND: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the streams, mixed, with what the sub-layer makes of its input added to each."""
        read_N, mix_NN, write_N = self._weights(x_BTND)
        with torch.autocast(x_BTND.device.type, enabled=False):  # the stream keeps its precision
            both_NM = torch.cat([read_N[..., None], mix_NN], -1).to(x_BTND.dtype)
            both_BTMD = both_NM.mT @ x_BTND
        read_BTD, mixed_BTND = both_BTMD[:, :, 0], both_BTMD[:, :, 1:]
        return mixed_BTND + write_N[..., None] * layer(read_BTD)[:, :, None]

    def _weights(self, x_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how streams are read, mixed and written to, for all tokens or each."""
        if self.kind == "static":
            return self.read, self.mix, self.write
        is_mhc = self.kind == "mhc"
        x_BTe = x_BTND.flatten(2) if is_mhc else x_BTND
        shift_BTe = self.project(F.rms_norm(x_BTe, x_BTe.shape[-1:]))
        parts = (shift_BTe if is_mhc else shift_BTe.tanh()).split_with_sizes(self.sizes, -1)
        of_all = zip((self.read, self.mix, self.write), self.scale, parts, strict=True)
        read_BTN, mix_BTNN, write_BTN = (
            own + scale * part.reshape(*x_BTND.shape[:2], *own.shape) for own, scale, part in of_all
        )
        if not is_mhc:
            return read_BTN, mix_BTNN, write_BTN
        return read_BTN.sigmoid(), doubly_stochastic(mix_BTNN), 2 * write_BTN.sigmoid()

    def flops(self) -> int:
        """Forward FLOPs per token: of the projection, by stream where it is, and of mixing."""
        N, times = self.streams, self.streams if self.kind == "dynamic" else 1
        return 2 * (times * weights(self) + N * (N + 1) * self.dim)


@BLOCKS.register("hyper-connections")
class HyperConnections(Block):
    """Keep several streams (Zhu et al. 2024, 2409.19606; mHC: Xie et al. 2025, 2512.24880).

    A sub-layer reads a weighted sum of `streams` streams, which are mixed with each other, and adds
    its normalised output to each with a weight. The weights of `kind: static` are parameters, those
    of `dynamic` depend on the token as well; those of `mhc` are kept positive, and the mixing
    doubly stochastic. The streams begin as copies of the embedding, and are summed after the last
    layer. At the start it computes what `pre` does, but for what the projections of `mhc` draw.
    """

    final_norm = True

    def __init__(
        self,
        attn: nn.Module,
        ffn: nn.Module,
        norm: Callable[[], nn.Module],
        dim: int,
        layer: int,
        layers: int,
        *,
        streams: int = 4,
        kind: Literal["static", "dynamic", "mhc"] = "dynamic",
        **options: Any,
    ) -> None:
        super().__init__(attn, ffn, norm, **options)
        if not 2 <= streams <= 64:
            raise ConfigError(f"streams {streams}: must be from 2 to 64")
        self.streams, self.is_last = streams, layer == layers - 1
        self.attn_streams = _Streams(dim, streams, 2 * layer, kind)
        self.ffn_streams = _Streams(dim, streams, 2 * layer + 1, kind)

    def forward(self, x_BTND: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Return the streams after both sub-layers; their sum, (B, T, D), after the last layer."""
        if x_BTND.dim() == 3:
            x_BTND = x_BTND[:, :, None].expand(-1, -1, self.streams, -1)
        x_BTND = self.entered(x_BTND, ctx)
        x_BTND = self.attn_streams(
            x_BTND, lambda x: ctx.branch(self.attn(self.attn_norm(x), ctx, state), "attn")
        )
        x_BTND = self.ffn_streams(
            x_BTND, lambda x: ctx.branch(self.ffn(self.ffn_norm(x), ctx), "ffn")
        )
        return x_BTND.sum(2) if self.is_last else x_BTND

    def flops(self, context: int) -> int:
        """Forward FLOPs per token of the products that mix streams and that weights come from."""
        del context
        return self.attn_streams.flops() + self.ffn_streams.flops()


@BLOCKS.register("attention-residuals")
class AttentionResiduals(Block):
    """Let each sub-layer attend over all earlier outputs (Kimi 2026, arXiv:2603.15031).

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
        """Return the embedding and all outputs so far; one sum, (B, T, D), after the last layer."""
        if x_BTND.dim() == 3:
            x_BTND = x_BTND[:, :, None]
        mixed_BTD = self.attn(self.attn_norm(_attended(x_BTND, self.attn_query)), ctx, state)
        x_BTND = torch.cat([x_BTND, ctx.branch(mixed_BTD, "attn")[:, :, None]], 2)
        y_BTD = self.ffn(self.ffn_norm(_attended(x_BTND, self.ffn_query)), ctx)
        x_BTND = torch.cat([x_BTND, ctx.branch(y_BTD, "ffn")[:, :, None]], 2)
        return x_BTND if self.out_query is None else _attended(x_BTND, self.out_query)


def _attended(x_BTND: Tensor, query_D: Tensor | None) -> Tensor:
    """Return the sum of N vectors by the softmax of their products with a query, (B, T, D)."""
    if query_D is None:
        return x_BTND.sum(2)
    scores_BTN = (F.rms_norm(x_BTND, x_BTND.shape[-1:]) * query_D).sum(-1)
    return (scores_BTN.softmax(-1)[..., None] * x_BTND).sum(2)
