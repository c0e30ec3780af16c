"""Hyper-connections, a block whose residual stream is several vectors a token.

Between the first layer, which is given the embeddings, (B, T, D), and the last, which returns their
shape, the stream is (B, T, N, D): N vectors a token.
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

#: Scale of the weights that depend on the token, at the start, in both papers.
TOKEN_SCALE = 0.01
#: Iterations of Sinkhorn and Knopp, as in the paper on mHC.
SINKHORN_STEPS = 20
#: Logit of a stream's share of itself at the start; the other logits are 0.
OWN_LOGIT = 4.0


def doubly_stochastic(logits_NN: Tensor) -> Tensor:
    """Turn logits, (..., N, N), into positive matrices whose rows and columns sum to 1."""
    share_NN = logits_NN.softmax(-1)
    for _ in range(SINKHORN_STEPS):
        share_NN = share_NN / share_NN.sum(-2, keepdim=True)
        share_NN = share_NN / share_NN.sum(-1, keepdim=True)
    return share_NN


class StreamMixer(nn.Module):
    """Weights by which one sub-layer reads, mixes and writes N streams."""

    no_weight_decay = frozenset({"mix"})

    def __init__(self, dim: int, streams: int, first: int, kind: str) -> None:
        super().__init__()
        N = self.streams = streams
        self.dim, self.kind = dim, kind
        read_N = F.one_hot(torch.tensor(first % N), N).float()
        mhc = kind == "mhc"  # of which these are logits
        self.read = nn.Parameter(torch.full((N,), -math.log(N - 1)) if mhc else read_N)
        self.mix = nn.Parameter((OWN_LOGIT if mhc else 1) * torch.eye(N))
        self.write = nn.Parameter(torch.zeros(N) if mhc else torch.ones(N))
        self.sizes = [N, N * N, N] if mhc else [1, N, 1]
        if kind != "static":
            inputs, start = (N * dim, None) if mhc else (dim, nn.init.zeros_)
            self.project = Linear(inputs, sum(self.sizes), bias=False, start=start)
            self.scale = nn.Parameter(
                torch.full((3,), TOKEN_SCALE)
            )  # of reading, mixing and writing

    def forward(self, x_BTND: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """Mix the streams, (B, T, N, D), and add the sub-layer's output to each."""
        read_N, mix_NN, write_N = self._weights(x_BTND)
        with torch.autocast(x_BTND.device.type, enabled=False):  # the stream keeps its precision
            both_NM = torch.cat([read_N[..., None], mix_NN], -1).to(x_BTND.dtype)
            both_BTMD = both_NM.mT @ x_BTND
        read_BTD, mixed_BTND = both_BTMD[:, :, 0], both_BTMD[:, :, 1:]
        return mixed_BTND + write_N[..., None] * layer(read_BTD)[:, :, None]

    def _weights(self, x_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the weights of reading, mixing and writing, for all tokens or for each."""
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
        """Count the forward FLOPs per token of the projection and of mixing."""
        N, times = self.streams, self.streams if self.kind == "dynamic" else 1
        return 2 * (times * weights(self) + N * (N + 1) * self.dim)


@BLOCKS.register("hyper-connections")
class HyperConnections(Block):
    """Several residual streams (Zhu et al. 2024, 2409.19606; mHC: Xie et al. 2025, 2512.24880).

    A sub-layer reads a weighted sum of `streams` streams, which are mixed with each other, and adds
    its normalised output to each with a weight. The weights of `kind: static` are parameters, those
    of `dynamic` depend on the token as well; those of `mhc` are kept positive, and the mixing
    doubly stochastic. The streams begin as copies of the embedding, and are summed after the last
    layer. At the start it computes what `pre` does, but for what the projections of `mhc` draw, and
    for a last norm that depends on the size of its input (`dyt`, `derf`, an `eps` that counts): it
    reads a sum of equal streams.
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
        self.attn_streams = StreamMixer(dim, streams, 2 * layer, kind)
        self.ffn_streams = StreamMixer(dim, streams, 2 * layer + 1, kind)

    def forward(self, x_BTND: Tensor, ctx: Context, state: State | None = None) -> Tensor:
        """Run both sub-layers; return the streams, or after the last layer their sum."""
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
        """Count the forward FLOPs per token of mixing and of its weights."""
        del context
        return self.attn_streams.flops() + self.ffn_streams.flops()
