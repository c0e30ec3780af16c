"""The state-space dual of Mamba-2 (Dao & Gu 2024, arXiv:2405.21060, section 6).

A head keeps one matrix, which decays and adds what it is given: `h_t = exp(decay_t) h_{t-1} +
b_t x_t^T`, read as `y_t = c_t h_t`. Within a chunk this is masked attention of queries `c` to keys
`b`, and between chunks a recurrence of states.

Shapes: E is the width of `b` and `c`, P that of a head's `x`; the H heads are in G groups of J that
share `b` and `c`; n chunks of C tokens.
"""

import torch
from torch import Tensor

from llama_ablate.model.kernels import Kernel
from llama_ablate.model.mixers.chunks import chunk_lengths, decays, in_chunks
from llama_ablate.model.mixers.flash_linear import flash_kernel

#: Tokens in a chunk at most: on a CPU the fastest of 32, 64 and 128.
CHUNK = 64


def state_space_dual(
    c_BTGE: Tensor,
    b_BTGE: Tensor,
    x_BTHP: Tensor,
    decay_BTH: Tensor,
    state_BHEP: Tensor | None = None,
    *,
    begins_BT: Tensor | None = None,
    kernel: Kernel = "math",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return what each token reads, (B, T, H, P), and the state after the last, (B, H, E, P).

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
    """Return what one token reads, (B, H, P), and the state after it: the recurrence itself."""
    dtype = state_BHEP.dtype
    heads = x_BHP.shape[1] // b_BGE.shape[1]
    with torch.autocast(x_BHP.device.type, enabled=False):
        c_BHE, b_BHE = (x.to(dtype).repeat_interleave(heads, dim=1) for x in (c_BGE, b_BGE))
        added_BHEP = b_BHE[..., None] * x_BHP.to(dtype)[:, :, None]
        whole_BH11 = decay_BH.to(dtype).exp()[..., None, None]
        state_BHEP = torch.addcmul(added_BHEP, state_BHEP, whole_BH11)
        return (c_BHE[:, :, None] @ state_BHEP).squeeze(2), state_BHEP


def products(tokens: int, heads: int, groups: int, key: int, value: int, chunk: int = CHUNK) -> int:
    """Return the multiply-adds of the chunked form's matrix products for one sequence."""
    n, C = chunk_lengths(tokens, chunk)
    return n * C * (C * (groups * key + heads * value) + 2 * heads * key * value)
