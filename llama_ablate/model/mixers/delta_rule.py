"""The gated delta rule of Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464).

The state of a head is one matrix. At each token the matrix decays, the value stored under the new
key is removed, and the new value is stored under the new key:
`S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T`. The output is `o_t = S_t q_t`. Here
`a_t = exp(decay_t)`, and the state is kept transposed, (E, P), for row vectors.

Shapes: E is the width of a key, P of a value; n chunks of C tokens.
"""

import torch
from torch import Tensor

from llama_ablate.model.kernels import Kernel
from llama_ablate.model.mixers.chunks import chunk_lengths, decays, in_chunks
from llama_ablate.model.mixers.flash_linear import flash_kernel

#: Largest number of tokens in a chunk: on a CPU the fastest of 32, 64 and 128.
CHUNK = 32


def gated_delta_rule(
    q_BTHE: Tensor,
    k_BTHE: Tensor,
    v_BTHP: Tensor,
    decay_BTH: Tensor,
    beta_BTH: Tensor,
    state_BHEP: Tensor | None = None,
    *,
    begins_BT: Tensor | None = None,
    kernel: Kernel = "math",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Compute each token's output, (B, T, H, P), and the final state, (B, H, E, P).

    `decay` is a logarithm, 0 or less; `beta` is from 0 to 1; keys are of length 1. A token of decay
    0 and beta 0 leaves the state unchanged. If no state is given, the state starts at zero; it is
    reset to zero at each token that `begins` marks as the first of a document. All products are
    computed in float32 or wider, also under autocast.

    Within a chunk, the updates of all tokens are the solution of one triangular system (section 3.3
    of the paper: the WY representation and the UT transform). The cost of a sequence is therefore
    matrix products and a loop over chunks, not over tokens. A single token that continues a state
    is computed by the recurrence itself. The kernel `fused` uses flash-linear-attention if it can
    run and documents are not kept apart.
    """
    B, T, H, E = q_BTHE.shape
    P = v_BTHP.shape[-1]
    if T == 1 and state_BHEP is not None:
        if begins_BT is not None:
            state_BHEP = state_BHEP.masked_fill(begins_BT[:, :, None, None], 0)
        token = q_BTHE[:, 0], k_BTHE[:, 0], v_BTHP[:, 0], decay_BTH[:, 0], beta_BTH[:, 0]
        out_BHP, state_BHEP = gated_delta_step(*token, state_BHEP)
        return out_BHP[:, None], state_BHEP
    flash = flash_kernel("gated_delta_rule.chunk_gated_delta_rule", kernel, v_BTHP)
    if flash and begins_BT is None:
        return flash((q_BTHE, k_BTHE, v_BTHP), (decay_BTH, beta_BTH), state_BHEP)
    n, C = chunk_lengths(T, chunk)
    dtype = torch.promote_types(v_BTHP.dtype, torch.float32)

    def heads_first(x_BTH: Tensor) -> Tensor:
        return in_chunks(x_BTH, n, C).flatten(1, 2)

    with torch.autocast(v_BTHP.device.type, enabled=False):
        q_nbCE, k_nbCE, v_nbCP, decay_nbC, beta_nbC = map(
            heads_first, (x.to(dtype) for x in (q_BTHE, k_BTHE, v_BTHP, decay_BTH, beta_BTH))
        )
        begins_nbC = None
        if begins_BT is not None:
            begins_nbC = heads_first(begins_BT[..., None].expand(B, T, H))
        between_nbCC, since_start_nbC, to_end_nbC = decays(decay_nbC, begins_nbC)
        since_start_nbC1, to_end_nbC1 = since_start_nbC[..., None], to_end_nbC[..., None]
        whole_nb11 = since_start_nbC1[..., -1:, :]

        # Token i writes its value minus the value that the state at the chunk's start and earlier
        # tokens of the chunk have stored under its key: (I + L) writes = values - keys @ state.
        beta_k_nbCE = k_nbCE * beta_nbC[..., None]
        overlap_nbCC = (beta_k_nbCE @ k_nbCE.mT) * between_nbCC
        right_nbCe = torch.cat([v_nbCP * beta_nbC[..., None], beta_k_nbCE * since_start_nbC1], -1)
        solved_nbCe = torch.linalg.solve_triangular(
            overlap_nbCC, right_nbCe, upper=False, unitriangular=True
        )
        values_nbCP, keys_nbCE = solved_nbCe.split_with_sizes([P, E], -1)

        if state_BHEP is None:
            state_BHEP = v_nbCP.new_zeros(B, H, E, P)
        state_bEP = state_BHEP.reshape(B * H, E, P).to(dtype)
        k_to_end_nbEC = (k_nbCE * to_end_nbC1).mT
        states, writes = [], []
        for values_bCP, keys_bCE, k_bEC, whole_b11 in zip(
            values_nbCP, keys_nbCE, k_to_end_nbEC, whole_nb11, strict=True
        ):
            write_bCP = torch.baddbmm(values_bCP, keys_bCE, state_bEP, alpha=-1)
            states.append(state_bEP)
            writes.append(write_bCP)
            state_bEP = torch.baddbmm(whole_b11 * state_bEP, k_bEC, write_bCP)

        scores_nbCC = (q_nbCE @ k_nbCE.mT) * between_nbCC
        before_nbCP = (q_nbCE * since_start_nbC1) @ torch.stack(states)
        out_nbCP = before_nbCP + scores_nbCC @ torch.stack(writes)
    out_BnCHP = out_nbCP.view(n, B, H, C, P).permute(1, 0, 3, 2, 4)
    return out_BnCHP.reshape(B, n * C, H, P)[:, :T], state_bEP.view(B, H, E, P)


def gated_delta_step(
    q_BHE: Tensor,
    k_BHE: Tensor,
    v_BHP: Tensor,
    decay_BH: Tensor,
    beta_BH: Tensor,
    state_BHEP: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute one token's output, (B, H, P), and the next state, by the recurrence."""
    dtype = state_BHEP.dtype
    with torch.autocast(v_BHP.device.type, enabled=False):
        q_BH1E, k_BH1E, v_BH1P = (x[:, :, None].to(dtype) for x in (q_BHE, k_BHE, v_BHP))
        decayed_BHEP = state_BHEP * decay_BH.to(dtype).exp()[..., None, None]
        write_BH1P = (v_BH1P - k_BH1E @ decayed_BHEP) * beta_BH.to(dtype)[..., None, None]
        state_BHEP = decayed_BHEP + k_BH1E.mT * write_BH1P
        return (q_BH1E @ state_BHEP).squeeze(2), state_BHEP


def products(tokens: int, heads: int, key: int, value: int, chunk: int = CHUNK) -> int:
    """Return the multiply-adds of the chunked form's matrix products for one sequence.

    The triangular system of a chunk is not counted, as in torch's FLOP counter; the system takes
    `C / 2 * (E + P)` multiply-adds per token and head.
    """
    n, C = chunk_lengths(tokens, chunk)
    return n * C * heads * (C * (2 * key + value) + 3 * key * value)
