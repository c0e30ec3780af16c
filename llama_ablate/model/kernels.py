"""Softmax attention by explicit products (`math`), by torch's kernel (`fused`), or step by step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Kernel = Literal["math", "fused"]

_MIN_ROWS, _MAX_BLOCKS = 128, 4  # fewest rows in a block of scores, most blocks
#: Largest number of cached key elements for which one new token is computed in float32: for
#: products in bfloat16, oneDNN generates new code at each length. For a single sequence with at
#: most an eighth of these elements, torch's kernel takes half as long as explicit products.
_MAX_SMALL_CACHE = 1 << 22


@dataclass(frozen=True)
class Maps:
    """Attention maps of one layer, each (B, H, T, S)."""

    scores: Tensor  # q k^T, scaled, and soft-capped if the layer has a soft cap
    masked: Tensor  # with the mask and any position bias added
    weights: Tensor  # after the softmax: rows that sum to 1, or less where a sink takes the rest


class Attending(Protocol):
    """Interface of the context of a forward pass, as far as attention uses the context."""

    kernel: Kernel
    maps: list[Maps] | None
    #: Factor by which all attention scores are multiplied.
    scores: float

    def mask(self, window: int | None, visible: int) -> tuple[Tensor | None, bool]:
        """Return the additive mask, and whether it is exactly the causal triangle."""

    def dropped(
        self, place: str, shape: Sequence[int], like: Tensor
    ) -> tuple[Tensor, float] | None:
        """Return the dropout mask and its scale for a named place of this layer, or None."""


def attend(
    q_BHTE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    ctx: Attending,
    *,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_H: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale * q k^T + mask + bias) v, heads joined, (B, T, H * width of v).

    `bias` has the shape (B, H, T, S) or a shape that broadcasts to it. It may depend on the tokens:
    gradients flow through it with every kernel.

    `sink_H` has one logit per head, the score of an attention sink: an additional first key that
    every token sees and whose value is 0.

    The context supplies the mask for the `window`; `scale` defaults to 1/sqrt(E). Neither kernel
    copies a key/value head for each of its query heads. `math` is the faster kernel for short
    contexts in bfloat16 on a CPU. In these cases attention is computed by explicit products,
    whatever the kernel: with a soft cap or recorded maps, which torch's kernel does not support; if
    keys and values differ in width, where torch's kernel falls back to code six times slower than
    `math`; with dropout of the attention weights; and for one new token of many or long sequences
    on a CPU, where torch's kernel takes longer and copies shared key/value heads.
    """
    B, H, T, E = q_BHTE.shape
    K = k_BKSE.shape[1]
    scale = (scale or 1 / math.sqrt(E)) * ctx.scores
    visible = k_BKSE.shape[2]
    mask, causal = ctx.mask(window, visible)
    if bias is not None:
        mask, causal = bias if mask is None else mask + bias, False
    if mask is not None and mask.dim() > 2 and mask.shape[-3] not in (1, H):
        # Query heads that are merged later, as in differential attention, share one bias.
        mask = mask.repeat_interleave(H // mask.shape[-3], -3)
    keys = visible + (sink_H is not None)
    dropped = ctx.dropped("weights", (B, H, T, keys), q_BHTE)
    spelled_out = softcap is not None or ctx.maps is not None
    if T == 1 and q_BHTE.device.type == "cpu" and dropped is None and not spelled_out:
        return _attend_one_token(q_BHTE, k_BKSE, v_BKSE, mask, scale, sink_H)
    if sink_H is not None:
        k_BKSE, v_BKSE = (F.pad(x, (0, 0, 1, 0)) for x in (k_BKSE, v_BKSE))
        mask, causal = _with_sink(mask, sink_H, T, visible), False
    if spelled_out:
        return _attend_in_steps(
            q_BHTE, k_BKSE, v_BKSE, mask, dropped, ctx.maps, scale, softcap, visible
        )
    if ctx.kernel == "fused" and v_BKSE.shape[-1] == E and dropped is None:
        mixed_BHTE = F.scaled_dot_product_attention(
            q_BHTE,
            k_BKSE,
            v_BKSE,
            attn_mask=None if causal or mask is None else mask.to(q_BHTE.dtype),
            is_causal=causal,
            scale=scale,
            enable_gqa=K < H,
        )
        return mixed_BHTE.transpose(1, 2).reshape(B, T, -1)
    # No token sees a later key: with the rows in blocks, products with keys after a block are
    # saved.
    rows = T if mask is None else max(_MIN_ROWS, -(-T // _MAX_BLOCKS))
    before = k_BKSE.shape[2] - T
    mixed_BtHP = []
    for first in range(0, T, rows):
        last = min(first + rows, T)
        block = slice(first, last), slice(before + last)
        block_dropped = dropped and (dropped[0][(..., *block)], dropped[1])
        q_BHtE = q_BHTE[:, :, block[0]]
        k_BKsE, v_BKsE = k_BKSE[:, :, block[1]], v_BKSE[:, :, block[1]]
        mask_ts = None if mask is None else mask[(..., *block)]
        mixed_BtHP.append(
            _attend_by_products(q_BHtE, k_BKsE, v_BKsE, mask_ts, block_dropped, scale)
        )
    return torch.cat(mixed_BtHP, 1) if len(mixed_BtHP) > 1 else mixed_BtHP[0]


def _attend_by_products(
    q_BHTE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    mask: Tensor | None,
    dropped: tuple[Tensor, float] | None,
    scale: float,
) -> Tensor:
    """Compute attention by batched matrix products, (B, T, H * width of v)."""
    B, H, T, E = q_BHTE.shape
    K = k_BKSE.shape[1]
    # Heads first, as the projection lays them out in memory; the query heads of a group are rows
    # (g = G*T) of one product with the keys and values that they share.
    q_KGBTE = q_BHTE.transpose(0, 1).reshape(K, H // K, B, T, E)
    q_KBgE = q_KGBTE.transpose(1, 2).reshape(K, B, -1, E)
    k_KBSE, v_KBSE = k_BKSE.transpose(0, 1), v_BKSE.transpose(0, 1)
    if mask is not None:  # a view: an axis that all sequences or heads share is not copied
        mask_bhTS = mask.to(q_BHTE.dtype)[(None,) * (4 - mask.dim())]
        groups = (1, 1) if mask_bhTS.shape[1] == 1 else (K, H // K)
        mask = mask_bhTS.unflatten(1, groups).transpose(0, 1)  # type: ignore[no-untyped-call]
    kept_BHTS, times = dropped or (None, 1.0)
    kept_mask = (
        None if kept_BHTS is None else kept_BHTS.reshape(B, K, H // K * T, -1).transpose(0, 1)
    )
    mixed_KBgE: Tensor = _MathAttention.apply(q_KBgE, k_KBSE, v_KBSE, mask, scale, kept_mask, times)  # type: ignore[no-untyped-call]
    mixed_KBGTE = mixed_KBgE.view(K, B, H // K, T, -1)
    return mixed_KBGTE.permute(1, 3, 0, 2, 4).reshape(B, T, -1)


def _with_sink(mask: Tensor | None, sink_H: Tensor, T: int, S: int) -> Tensor:
    """Prepend the column of the attention sinks to a mask: (H, T, 1 + S) or (B, H, T, 1 + S)."""
    mask = sink_H.new_zeros(T, S) if mask is None else mask
    shape = *(mask.shape[:1] if mask.dim() == 4 else ()), len(sink_H), T
    return torch.cat([sink_H[:, None, None].expand(*shape, 1), mask.expand(*shape, S)], -1)


def _attend_one_token(
    q_BH1E: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    mask: Tensor | None,
    scale: float,
    sink_H: Tensor | None,
) -> Tensor:
    """Compute the attention of one new token, (B, 1, H * width of v).

    The query heads that share a key/value head are the rows of one matrix product with the keys of
    this head.
    """
    B, H, K, dtype = len(q_BH1E), q_BH1E.shape[1], k_BKSE.shape[1], q_BH1E.dtype
    is_small = not torch.compiler.is_compiling() and k_BKSE.numel() <= _MAX_SMALL_CACHE
    if is_small and dtype.itemsize < 4:
        q_BH1E, k_BKSE, v_BKSE = q_BH1E.float(), k_BKSE.float(), v_BKSE.float()
    q_BKGE = q_BH1E.view(B, K, H // K, -1)
    if mask is not None:
        rows_bHS = mask.expand(B if mask.dim() == 4 else 1, H, 1, -1)[:, :, 0]
        mask = rows_bHS.reshape(len(rows_bHS), K, H // K, -1).to(q_BH1E.dtype)
    alone = is_small and B == 1 and k_BKSE.numel() <= _MAX_SMALL_CACHE // 8 and sink_H is None
    if alone and v_BKSE.shape[-1] == k_BKSE.shape[-1]:
        mixed_BKGE = F.scaled_dot_product_attention(q_BKGE, k_BKSE, v_BKSE, mask, scale=scale)
        return mixed_BKGE.reshape(B, 1, -1).to(dtype)
    scores_BKGS = (q_BKGE * scale) @ k_BKSE.transpose(-1, -2)
    if mask is not None:
        scores_BKGS = scores_BKGS + mask
    if sink_H is not None:  # joined to the scores: joining it to the keys would copy them all
        sink_BKG1 = sink_H.to(q_BH1E.dtype).view(1, K, H // K, 1).expand(B, -1, -1, -1)
        scores_BKGS = torch.cat([scores_BKGS, sink_BKG1], -1)
    weights_BKGS = scores_BKGS.softmax(-1)[..., : k_BKSE.shape[2]]
    return (weights_BKGS @ v_BKSE).reshape(B, 1, -1).to(dtype)


def _attend_in_steps(
    q_BHTE: Tensor,
    k_BKSE: Tensor,
    v_BKSE: Tensor,
    mask: Tensor | None,
    dropped: tuple[Tensor, float] | None,
    maps: list[Maps] | None,
    scale: float,
    softcap: float | None,
    seen: int,
) -> Tensor:
    """Compute attention step by step; append the attention maps to `maps`, unless None.

    The maps show only the last `seen` keys, without the attention sink.
    """
    group = q_BHTE.shape[1] // k_BKSE.shape[1]
    k_BHSE, v_BHSE = (x.repeat_interleave(group, dim=1) for x in (k_BKSE, v_BKSE))
    scores_BHTS = (q_BHTE * scale) @ k_BHSE.transpose(-1, -2)
    if softcap is not None:
        scores_BHTS = softcap * torch.tanh(scores_BHTS / softcap)
    masked_BHTS = scores_BHTS if mask is None else scores_BHTS + mask
    weights_BHTS = masked_BHTS.softmax(-1)
    if maps is not None:
        maps.append(Maps(*(x[..., -seen:] for x in (scores_BHTS, masked_BHTS, weights_BHTS))))
    if dropped is not None:
        weights_BHTS = weights_BHTS * dropped[0] * dropped[1]
    mixed_BHTE = weights_BHTS.to(v_BHSE.dtype) @ v_BHSE
    return mixed_BHTE.transpose(1, 2).flatten(2)


class _MathAttention(torch.autograd.Function):
    """Autograd function of attention: four operations, and their gradient in closed form.

    Autocast does not apply inside: it would convert the scores to float32 and back (softmax
    accumulates in float32 anyway). Autograd does not record the operations one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_KBgE: Tensor,
        k_KBSE: Tensor,
        v_KBSE: Tensor,
        mask: Tensor | None,
        scale: float,
        kept_KBgS: Tensor | None,
        times: float,
    ) -> Tensor:
        ctx.scale, ctx.times = scale, times
        with torch.autocast(q_KBgE.device.type, enabled=False):
            scaled_KBgE = q_KBgE * scale
            scores_KBgS = scaled_KBgE @ k_KBSE.transpose(-1, -2)
            if mask is not None:  # (K, B, G, T, S), or 1 on shared axes
                scores_KBgS.view(*q_KBgE.shape[:2], -1, *mask.shape[-2:]).add_(mask)
            weights_KBgS = scores_KBgS.softmax(-1)
            ctx.save_for_backward(scaled_KBgE, k_KBSE, v_KBSE, weights_KBgS, kept_KBgS)
            ctx.mask_shape = None if mask is None else mask.shape
            if kept_KBgS is None:
                return weights_KBgS @ v_KBSE
            # Dropout's scale multiplies the mixed values, which are fewer than the weights.
            return ((weights_KBgS * kept_KBgS) @ v_KBSE).mul_(times)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None, None]:
        scaled_KBgE, k_KBSE, v_KBSE, weights_KBgS, kept_KBgS = ctx.saved_tensors
        grad_KBgE, mixing_KBgS = grads[0], weights_KBgS
        if kept_KBgS is not None:
            grad_KBgE, mixing_KBgS = grad_KBgE * ctx.times, weights_KBgS * kept_KBgS
        grad_weights = grad_KBgE @ v_KBSE.transpose(-1, -2)
        if kept_KBgS is not None:
            grad_weights *= kept_KBgS
        grad_scores = torch.ops.aten._softmax_backward_data(  # noqa: SLF001  torch's own kernel
            grad_weights, weights_KBgS, -1, weights_KBgS.dtype
        )
        grad_q = (grad_scores @ k_KBSE).mul_(ctx.scale)
        grad_k = grad_scores.transpose(-1, -2) @ scaled_KBgE
        grad_v = mixing_KBgS.transpose(-1, -2) @ grad_KBgE
        grad_mask = None
        if ctx.needs_input_grad[3]:
            by_head = grad_scores.view(*grad_scores.shape[:2], -1, *ctx.mask_shape[-2:])
            grad_mask = by_head.sum_to_size(ctx.mask_shape)
        return grad_q, grad_k, grad_v, grad_mask, None, None, None
