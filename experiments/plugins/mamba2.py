"""Mamba-2 in the slot of attention, and the state-space dual that it computes.

Dao & Gu 2024, arXiv:2405.21060. A head keeps one matrix, which decays and adds a product of what a
token gives: `h_t = exp(decay_t) h_{t-1} + b_t x_t^T`, read as `y_t = c_t h_t`. Within a chunk this
is masked attention of queries `c` to keys `b`, and between chunks a recurrence of states (their
section 6).

Shapes: E is the width of `b` and `c`, P that of a head's `x`; the H heads are in G groups of J that
share `b` and `c`; n chunks of C tokens.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.kernels import Kernel
from llama_ablate.model.linear import Linear, OutLinear, project_fused
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.mixers.chunks import chunk_lengths, decays, in_chunks
from llama_ablate.model.mixers.flash_linear import flash_kernel
from llama_ablate.model.mixers.recurrent import NORM_EPS, Recurrent, check_widths
from llama_ablate.model.state import RecurrentState

#: Most tokens in a chunk: the fastest of 32, 64 and 128 on a CPU.
MAX_CHUNK_TOKENS = 64


@ATTENTIONS.register("mamba2")
class Mamba2(Recurrent):
    """Mamba-2, a recurrence with a decaying matrix a head (Dao & Gu 2024, arXiv:2405.21060).

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
        """Projections: inputs, keys and queries, which are convolved; gate; time step."""
        return self.x, self.b, self.c, self.gate, self.step

    def forward(self, x_BTD: Tensor, ctx: Context, state: RecurrentState | None = None) -> Tensor:
        """Mix a sequence, (B, T, D): each token reads the matrix, gated and projected."""
        B, T, _ = x_BTD.shape
        H, G, E, P = self.heads, self.groups, self.key, self.value
        joined_BTe = project_fused(x_BTD, self.projections)
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
        """Count the multiply-adds of the chunked state-space dual over a sequence."""
        return state_space_products(tokens, self.heads, self.groups, self.key, self.value)


def state_space_dual(
    c_BTGE: Tensor,
    b_BTGE: Tensor,
    x_BTHP: Tensor,
    decay_BTH: Tensor,
    state_BHEP: Tensor | None = None,
    *,
    begins_BT: Tensor | None = None,
    kernel: Kernel = "math",
    chunk: int = MAX_CHUNK_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Compute the state-space dual of a sequence, chunk by chunk.

    Returns what each token reads, (B, T, H, P), and the state after the last, (B, H, E, P).

    `decay` is a logarithm, 0 or less, and `x` is already scaled by the time step. A token of decay
    0 and x 0 leaves the state as it is. Without a state it starts at zero, and so it does at a
    token that `begins` a document. All is computed in float32 at least, under autocast too. One
    token after a state is the recurrence itself. `fused` takes the kernels of
    flash-linear-attention where they can run, and where documents are not kept apart.
    """
    B, T, H, P = x_BTHP.shape
    G, E = b_BTGE.shape[2:]
    J = H // G
    if T == 1 and state_BHEP is not None:
        if begins_BT is not None:
            state_BHEP = state_BHEP.masked_fill(begins_BT[:, :, None, None], 0)
        token = c_BTGE[:, 0], b_BTGE[:, 0], x_BTHP[:, 0], decay_BTH[:, 0]
        out_BHP, state_BHEP = state_space_step(*token, state_BHEP)
        return out_BHP[:, None], state_BHEP
    flash = flash_kernel("simple_gla.chunk_simple_gla", kernel, x_BTHP)
    if flash and begins_BT is None:
        c_BTHE, b_BTHE = (x.repeat_interleave(J, dim=2) for x in (c_BTGE, b_BTGE))
        return flash((c_BTHE, b_BTHE, x_BTHP), (decay_BTH,), state_BHEP)
    n, C = chunk_lengths(T, chunk)
    dtype = torch.promote_types(x_BTHP.dtype, torch.float32)

    def groups_first(x_BTG: Tensor) -> Tensor:
        return in_chunks(x_BTG, n, C).flatten(0, 2)

    with torch.autocast(x_BTHP.device.type, enabled=False):
        c_bCE, b_bCE = groups_first(c_BTGE.to(dtype)), groups_first(b_BTGE.to(dtype))
        x_bCJP = groups_first(x_BTHP.view(B, T, G, J, P).to(dtype))
        decay_bCJ = groups_first(decay_BTH.view(B, T, G, J).to(dtype))
        begins_b1C = None
        if begins_BT is not None:
            begins_b1C = groups_first(begins_BT[..., None].expand(B, T, G))[:, None]
        between_bJCC, since_start_bJC, to_end_bJC = decays(decay_bCJ.mT, begins_b1C)
        since_start_bCJ1, to_end_bCJ1 = since_start_bJC.mT[..., None], to_end_bJC.mT[..., None]

        scores_bJCC = (c_bCE @ b_bCE.mT)[:, None] * between_bJCC
        inside_bCJP = (scores_bJCC @ x_bCJP.transpose(1, 2)).transpose(1, 2)

        # The heads of a group are columns of one product with the keys that they share.
        added_bEe = b_bCE.mT @ (x_bCJP * to_end_bCJ1).flatten(2)
        if state_BHEP is None:
            state_BHEP = x_bCJP.new_zeros(B, H, E, P)
        state_gEJP = state_BHEP.reshape(B * G, J, E, P).transpose(1, 2).to(dtype)
        states = []
        whole_ngJ1 = since_start_bCJ1[:, -1].view(n, B * G, 1, J, 1)
        for added_gEJP, whole_gJ1 in zip(
            added_bEe.view(n, B * G, E, J, P), whole_ngJ1, strict=True
        ):
            states.append(state_gEJP)
            state_gEJP = torch.addcmul(added_gEJP, state_gEJP, whole_gJ1)
        before_bCe = c_bCE @ torch.stack(states).view(n * B * G, E, J * P)
        out_bCJP = torch.addcmul(inside_bCJP, before_bCe.view(-1, C, J, P), since_start_bCJ1)
    out_BnCGJP = out_bCJP.reshape(n, B, G, C, J, P).permute(1, 0, 3, 2, 4, 5)
    out_BTHP = out_BnCGJP.reshape(B, n * C, H, P)[:, :T]
    return out_BTHP, state_gEJP.transpose(1, 2).reshape(B, H, E, P)


def state_space_step(
    c_BGE: Tensor, b_BGE: Tensor, x_BHP: Tensor, decay_BH: Tensor, state_BHEP: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token of the recurrence: what it reads, (B, H, P), and the next state."""
    dtype = state_BHEP.dtype
    heads = x_BHP.shape[1] // b_BGE.shape[1]
    with torch.autocast(x_BHP.device.type, enabled=False):
        c_BHE, b_BHE = (x.to(dtype).repeat_interleave(heads, dim=1) for x in (c_BGE, b_BGE))
        added_BHEP = b_BHE[..., None] * x_BHP.to(dtype)[:, :, None]
        whole_BH11 = decay_BH.to(dtype).exp()[..., None, None]
        state_BHEP = torch.addcmul(added_BHEP, state_BHEP, whole_BH11)
        return (c_BHE[:, :, None] @ state_BHEP).squeeze(2), state_BHEP


def state_space_products(
    tokens: int, heads: int, groups: int, key: int, value: int, chunk: int = MAX_CHUNK_TOKENS
) -> int:
    """Count the multiply-adds of the chunked form for one sequence."""
    n, C = chunk_lengths(tokens, chunk)
    return n * C * (C * (groups * key + heads * value) + 2 * heads * key * value)
