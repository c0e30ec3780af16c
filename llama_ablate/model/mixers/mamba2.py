"""Mamba-2 in the slot of attention."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear, OutLinear, joined
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.mixers.recurrent import NORM_EPS, Recurrent, check_widths
from llama_ablate.model.mixers.state_space import products, state_space_dual
from llama_ablate.model.state import RecurrentState


@ATTENTIONS.register("mamba2")
class Mamba2(Recurrent):
    """Add to a decaying matrix what a token selects (Dao & Gu 2024, Mamba-2, arXiv:2405.21060).

    Inputs of `expand` times the model's attention, in heads of `value_dim` (the model's), and keys
    `b` and queries `c` of `state` numbers (twice a head, as the paper's 128 to 64), which `groups`
    of heads share, pass through a causal convolution of `conv` tokens and a SiLU. What is read, and
    `D` times the input, is gated (SiLU) and normalised by group (RMS). At `expand: 1` it has about
    the parameters of `mha`, 4 dim^2; the paper's 2 is for blocks without a feed-forward network.
    """

    slowest = 1.0

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        bias: bool,
        *,
        state: int | None = None,
        expand: int = 1,
        groups: int = 1,
        value_dim: int | None = None,
        conv: int = 4,
        conv_bias: bool = True,
    ) -> None:
        value = head_dim if value_dim is None else value_dim
        key = 2 * head_dim if state is None else state
        check_widths(state=key, expand=expand, groups=groups, value_dim=value, conv=conv)
        inner = expand * heads * head_dim
        if inner % value:
            raise ConfigError(f"value_dim {value}: must divide expand x heads x head_dim, {inner}")
        own = inner // value
        if own % groups:
            raise ConfigError(f"{own} heads of {value} do not divide into {groups} groups")
        super().__init__(own, key, value, inner + 2 * groups * key, conv, conv_bias)
        self.groups = groups
        self.x = Linear(dim, inner, bias=bias)
        self.b = Linear(dim, groups * key, bias=bias)
        self.c = Linear(dim, groups * key, bias=bias)
        self.gate = Linear(dim, inner, bias=bias)
        self.step = Linear(dim, own, bias=False)  # its bias is dt_bias
        self.D = nn.Parameter(torch.ones(own))
        self.gain = nn.Parameter(torch.ones(inner))
        self.out = OutLinear(inner, dim, bias=bias)

    @property
    def projections(self) -> Sequence[Linear]:
        """Inputs, keys and queries, which are convolved; gate and time step."""
        return self.x, self.b, self.c, self.gate, self.step

    def forward(self, x_BTD: Tensor, ctx: Context, state: RecurrentState | None = None) -> Tensor:
        """Return what each token reads of the matrix, gated and projected, (B, T, D)."""
        B, T, _ = x_BTD.shape
        H, G, E, P = self.heads, self.groups, self.key, self.value
        joined_BTe = joined(x_BTD, self.projections)
        channels = H * P + 2 * G * E
        inputs_BTe, gate_BTe, step_BTH = joined_BTe.split_with_sizes([channels, H * P, H], -1)
        mixed_BTe, tail = self.conv(inputs_BTe, ctx, None if state is None else state["tail"])
        x_BTe, b_BTe, c_BTe = mixed_BTe.split_with_sizes([H * P, G * E, G * E], -1)
        x_BTHP = x_BTe.view(B, T, H, P)
        step_BTH, decay_BTH = self._time_steps(step_BTH, ctx)
        b_BTGE, c_BTGE = b_BTe.view(B, T, G, E), c_BTe.view(B, T, G, E)

        tokens = c_BTGE, b_BTGE, x_BTHP * step_BTH[..., None], decay_BTH
        start = None if state is None else state["matrix"]
        read_BTHP, matrix = state_space_dual(
            *tokens, start, begins_BT=ctx.begins_BT, kernel=ctx.kernel
        )
        if state is not None:
            state.advance(T, matrix=matrix, tail=tail)

        dtype = read_BTHP.dtype
        read_BTHP = torch.addcmul(read_BTHP, x_BTHP.to(dtype), self.D.to(dtype)[:, None])
        gated_BTGe = (read_BTHP.flatten(2) * F.silu(gate_BTe.to(dtype))).view(B, T, G, -1)
        normed_BTe = F.rms_norm(gated_BTGe, gated_BTGe.shape[-1:], eps=NORM_EPS).flatten(2)
        out_BTD: Tensor = self.out((normed_BTe * self.gain).to(joined_BTe.dtype))
        return out_BTD

    def products(self, tokens: int) -> int:
        """Multiply-adds of the chunked state-space dual over a sequence."""
        return products(tokens, self.heads, self.groups, self.key, self.value)
