"""The two ways to compute softmax attention: spelled out (`math`), and torch's own (`fused`)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Kernel = Literal["math", "fused"]


def attend(
    q_BHTE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    kernel: Kernel,
) -> Tensor:
    """Return softmax(q k^T / sqrt(E) + mask) v, heads joined, (B, T, H * E).

    `mask` is added to the scores: (T, S), (H, T, S), or None. `causal` says that it is the plain
    triangle, for which torch's kernel has a fast path. Neither kernel copies a key/value head to
    its query heads. `math` is the faster one for short contexts in bfloat16 on a CPU.
    """
    B, H, T, E = q_BHTE.shape
    K = k_BKSE.shape[1]
    if kernel == "fused":
        mixed_BHTE = F.scaled_dot_product_attention(
            q_BHTE,
            k_BKSE,
            v_BKSE,
            attn_mask=None if causal or mask is None else mask.to(q_BHTE.dtype),
            is_causal=causal,
            enable_gqa=K < H,
        )
        return mixed_BHTE.transpose(1, 2).reshape(B, T, H * E)
    # Heads first, as the projection lays them out in memory; the query heads of a group are rows
    # (g = G*T) of one product with the keys and values that they share.
    q_KGBTE = q_BHTE.transpose(0, 1).reshape(K, H // K, B, T, E)
    q_KBgE = q_KGBTE.transpose(1, 2).reshape(K, B, -1, E)
    k_KBSE, v_KBSE = k_BKSE.transpose(0, 1), v_BKSE.transpose(0, 1)
    if mask is not None:
        rows_HTS = mask.expand(H, -1, -1).to(q_BHTE.dtype)
        mask = rows_HTS.reshape(K, 1, -1, rows_HTS.shape[-1])
    mixed_KBgE: Tensor = _MathAttention.apply(q_KBgE, k_KBSE, v_KBSE, mask)  # type: ignore[no-untyped-call]
    return mixed_KBgE.view(K, B, H // K, T, E).permute(1, 3, 0, 2, 4).reshape(B, T, H * E)


class _MathAttention(torch.autograd.Function):
    """Attention in four operations, and its gradient in closed form.

    Operations inside are not seen by autocast, which would take the scores to float32 and back
    (softmax accumulates in float32 anyway), nor recorded one by one.
    """

    @staticmethod
    def forward(
        ctx: Any, q_KBgE: Tensor, k_KBSE: Tensor, v_KBSE: Tensor, mask: Tensor | None
    ) -> Tensor:
        with torch.autocast(q_KBgE.device.type, enabled=False):
            scaled_KBgE = q_KBgE * (1 / math.sqrt(q_KBgE.shape[-1]))
            scores_KBgS = scaled_KBgE @ k_KBSE.transpose(-1, -2)
            if mask is not None:
                scores_KBgS += mask
            weights_KBgS = scores_KBgS.softmax(-1)
            ctx.save_for_backward(scaled_KBgE, k_KBSE, v_KBSE, weights_KBgS)
            return weights_KBgS @ v_KBSE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        scaled_KBgE, k_KBSE, v_KBSE, weights_KBgS = ctx.saved_tensors
        grad_weights = grads[0] @ v_KBSE.transpose(-1, -2)
        grad_scores = torch.ops.aten._softmax_backward_data(  # noqa: SLF001  torch's own kernel
            grad_weights, weights_KBgS, -1, weights_KBgS.dtype
        )
        grad_q = (grad_scores @ k_KBSE).mul_(1 / math.sqrt(k_KBSE.shape[-1]))
        grad_k = grad_scores.transpose(-1, -2) @ scaled_KBgE
        grad_v = weights_KBgS.transpose(-1, -2) @ grads[0]
        wants_mask = ctx.needs_input_grad[3]
        return grad_q, grad_k, grad_v, grad_scores.sum(1, keepdim=True) if wants_mask else None
