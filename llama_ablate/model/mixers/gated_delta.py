"""Gated DeltaNet as a token mixer, a component of the slot `attention`."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import need
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear, OutLinear, project_fused
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.mixers.delta_rule import gated_delta_rule, products
from llama_ablate.model.mixers.recurrent import NORM_EPS, Recurrent, check_widths
from llama_ablate.model.state import RecurrentState

_UNIT_EPS = 1e-6  # added to the squared lengths of queries and keys


@ATTENTIONS.register("gated_delta")
class GatedDelta(Recurrent):
    """Update a decaying matrix by the delta rule (Yang et al. 2024, Gated DeltaNet, 2412.06464).

    Queries, keys and values pass through a causal convolution of `conv` tokens, 0 for none, and a
    SiLU; queries and keys are then scaled to length 1. The output of each head is normalised (RMS)
    and gated (SiLU). `value_dim` is the width of a head's values: by default twice the model's head
    width, or the head width itself if the model's number of heads is odd. The values of all heads
    together are as wide as the model's attention, so wider values mean fewer heads. `key_dim` is
    the width of a head's keys, by default half of the values' width. By default the mixer has about
    as many parameters as `mha`, 4 dim^2.
    """

    slowest = 0.01  # the paper's code has 0, whose logarithm is infinite

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        bias: bool,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        conv: int = 4,
    ) -> None:
        # An odd number of heads has no half.
        value = (2 - heads % 2) * head_dim if value_dim is None else value_dim
        key = max(1, value // 2) if key_dim is None else key_dim
        check_widths(key_dim=key, value_dim=value, conv=conv)
        inner = heads * head_dim
        need(inner % value == 0, f"value_dim {value}: must divide heads x head_dim, {inner}")
        value_heads = inner // value
        super().__init__(value_heads, key, value, value_heads * (2 * key + value), conv)
        self.q = Linear(dim, value_heads * key, bias=bias)
        self.k = Linear(dim, value_heads * key, bias=bias)
        self.v = Linear(dim, value_heads * value, bias=bias)
        self.gate = Linear(dim, value_heads * value, bias=bias)
        self.step = Linear(dim, value_heads, bias=False)  # its bias is dt_bias
        self.beta = Linear(dim, value_heads, bias=bias)
        self.gain = nn.Parameter(torch.ones(value))
        self.out = OutLinear(value_heads * value, dim, bias=bias)

    @property
    def projections(self) -> Sequence[Linear]:
        """Projections to queries, keys, values (all convolved), gate, time step and beta."""
        return self.q, self.k, self.v, self.gate, self.step, self.beta

    def forward(self, x_BTD: Tensor, ctx: Context, state: RecurrentState | None = None) -> Tensor:
        """Compute each token's output of the delta rule, then gate and project it, (B, T, D)."""
        B, T, _ = x_BTD.shape
        H, E, P = self.heads, self.key, self.value
        joined_BTe = project_fused(x_BTD, self.projections)
        widths = [H * (2 * E + P), H * P, H, H]
        inputs_BTe, gate_BTe, step_BTH, beta_BTH = joined_BTe.split_with_sizes(widths, -1)
        mixed_BTe, tail = self.conv(inputs_BTe, ctx, None if state is None else state["tail"])
        qk_BTHE, v_BTHP = mixed_BTe.split_with_sizes([2 * H * E, H * P], -1)
        q_BTHE, k_BTHE = _unit(qk_BTHE.view(B, T, 2 * H, E)).chunk(2, 2)
        q_BTHE = q_BTHE * E**-0.5
        _, decay_BTH = self._time_steps(step_BTH, ctx)
        beta_BTH = beta_BTH.to(decay_BTH.dtype).sigmoid()

        tokens = q_BTHE, k_BTHE, v_BTHP.view(B, T, H, P), decay_BTH, beta_BTH
        start = None if state is None else state["matrix"]
        read_BTHP, matrix = gated_delta_rule(
            *tokens, start, begins_BT=ctx.begins_BT, kernel=ctx.kernel
        )
        if state is not None:
            state.advance(T, matrix=matrix, tail=tail)

        dtype = read_BTHP.dtype
        gate_BTHP = F.silu(gate_BTe.to(dtype)).view(read_BTHP.shape)
        gated_BTHP = F.rms_norm(read_BTHP, (P,), self.gain.to(dtype), NORM_EPS) * gate_BTHP
        out_BTD: Tensor = self.out(gated_BTHP.flatten(2).to(joined_BTe.dtype))
        return out_BTD

    def products(self, tokens: int) -> int:
        """Return the multiply-adds of the chunked delta rule over a sequence."""
        return products(tokens, self.heads, self.key, self.value)


def _unit(x: Tensor) -> Tensor:
    """Scale vectors to length 1; a zero vector stays zero."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _UNIT_EPS)
