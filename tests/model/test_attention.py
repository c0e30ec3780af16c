import math

import pytest
import torch

from llama_ablate.model.context import Context
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.kernels import attend
from llama_ablate.model.mixers.attention import GQA, MHA, MLA, MQA
from llama_ablate.model.norms import LayerNorm, RMSNorm
from llama_ablate.model.positions import Position


def context(length, kernel="math"):
    return Context(0, length, Position(), kernel=kernel)


class Masked:
    """A context whose mask is given."""

    kernel, maps, scores = "math", None, 1.0

    def __init__(self, mask):
        self._mask = mask

    def mask(self, window, visible):
        del window, visible
        return self._mask, False

    def dropped(self, *_place):
        return None


def make(kind, dim, heads, head_dim, bias, **options):
    return kind(dim, heads, head_dim, bias, RMSNorm, **options)


def filled(attention, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in attention.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    return attention.double()


@torch.no_grad()
def by_loops(attention, x):
    """Attention one query, one head, one key at a time, in float64."""
    H, K, E = attention.heads, attention.kv_heads, attention.head_dim
    q, k, v = attention.q(x), attention.k(x), attention.v(x)
    out = torch.zeros(x.shape[0], x.shape[1], H * E, dtype=x.dtype)
    for b in range(x.shape[0]):
        for h in range(H):
            shared = h // (H // K)
            keys = k[b, :, shared * E : (shared + 1) * E]
            values = v[b, :, shared * E : (shared + 1) * E]
            for t in range(x.shape[1]):
                scores = [
                    float(q[b, t, h * E : (h + 1) * E] @ keys[s]) / math.sqrt(E)
                    for s in range(t + 1)
                ]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                mixed = sum(w * values[s] for s, w in enumerate(weights)) / sum(weights)
                out[b, t, h * E : (h + 1) * E] = mixed
    return attention.out(out)


@pytest.mark.parametrize("kind", [MHA, GQA, MQA])
@pytest.mark.parametrize("kernel", ["math", "fused"])
def test_attention_equals_a_spelled_out_loop(kind, kernel):
    attention = filled(make(kind, 24, 4, 6, True))
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(
        attention(x, context(7, kernel)), by_loops(attention, x), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize(("kv_heads", "per_head"), [(1, False), (2, True), (4, False)])
def test_the_hand_derived_gradient_of_attention_equals_the_numerical_one(kv_heads, per_head):
    """Also with respect to the mask, for schemes that learn what they add to the scores."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 3, 5), (2, kv_heads, 3, 5), (2, kv_heads, 3, 5)]
    q, k, v = (torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes)
    mask = torch.randn(4, 3, 3, dtype=torch.float64, generator=generator)
    mask = mask if per_head else mask[0]
    inputs = tuple(tensor.requires_grad_() for tensor in (q, k, v, mask))

    def attended(q, k, v, mask):
        return attend(q, k, v, Masked(mask))

    assert torch.autograd.gradcheck(attended, inputs)


def test_qk_norm_normalises_each_heads_queries_and_keys_and_leaves_the_values():
    attention = filled(make(GQA, 24, 4, 6, False, kv_heads=2, qk_norm=True))
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    by_hand = filled(make(GQA, 24, 4, 6, False, kv_heads=2))

    def unit(vectors, gain):
        heads = vectors.unflatten(-1, (-1, 6))
        return (heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain).flatten(-2)

    by_hand.q.register_forward_hook(lambda _m, _x, q: unit(q, attention.q_norm.gain))
    by_hand.k.register_forward_hook(lambda _m, _x, k: unit(k, attention.k_norm.gain))
    expected = by_loops(by_hand, x)
    torch.testing.assert_close(attention(x, context(5)), expected, rtol=1e-9, atol=1e-9)


def test_qk_norm_is_of_the_models_own_kind(spec):
    model = build(spec(norm="layernorm", attention={"name": "mha", "qk_norm": True}))
    assert isinstance(model.blocks[0].attn.q_norm, LayerNorm)


@pytest.mark.parametrize(("bias", "qkv_bias"), [(False, True), (True, False), (True, None)])
def test_qkv_bias_overrides_for_these_three_what_the_model_has(bias, qkv_bias):
    attention = make(MHA, 24, 4, 6, bias, qkv_bias=qkv_bias)
    expected = bias if qkv_bias is None else qkv_bias
    assert [p.bias is not None for p in (attention.q, attention.k, attention.v)] == [expected] * 3
    assert (attention.out.bias is not None) == bias


def test_a_soft_cap_bounds_the_scores_by_its_tanh():
    """One query, two keys, by hand: scores 6 and -2, capped at 4."""
    q = torch.tensor([[[[2.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[3.0], [-1.0]]]], dtype=torch.float64)
    v = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.float64)
    ctx = Masked(None)
    high, low = 4 * math.tanh(6 / 4), 4 * math.tanh(-2 / 4)
    expected = math.exp(high) / (math.exp(high) + math.exp(low))
    assert attend(q, k, v, ctx, softcap=4.0).item() == pytest.approx(expected, abs=1e-12)


@torch.no_grad()
def test_a_cap_on_the_logits_bounds_them_by_its_tanh(spec):
    tokens = torch.arange(10)[None]
    free, capped = (
        new_model(spec(init_std=0.5, logit_softcap=cap), 0)(tokens) for cap in (None, 2.0)
    )
    torch.testing.assert_close(capped, 2 * torch.tanh(free / 2))
    assert free.abs().max() > 2 > capped.abs().max()


@pytest.mark.parametrize("qk_norm", [False, True])
@torch.no_grad()
def test_mla_equals_the_equations_of_its_paper(qk_norm):
    """DeepSeek-V2, equations 9 to 19, one head at a time, without rotation.

    Its norm of queries and keys leaves the dimensions alone that would be rotated.
    """
    H, E, R, L = 3, 4, 2, 5
    mla = filled(MLA(12, H, E, False, RMSNorm, latent=L, rope_dim=R, qk_norm=qk_norm))
    x = torch.randn(2, 6, 12, dtype=torch.float64)

    def normed(y, norm):
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.gain

    c = normed(x @ mla.down.weight[:L].T, mla.latent_norm)
    shared = x @ mla.down.weight[L:].T
    out = []
    for h in range(H):
        q = x @ mla.q.weight[h * (E + R) : (h + 1) * (E + R)].T
        k = c @ mla.k.weight[h * E : (h + 1) * E].T
        if qk_norm:
            q = torch.cat([normed(q[..., :E], mla.q_norm), q[..., E:]], -1)
            k = normed(k, mla.k_norm)
        scores = q @ torch.cat([k, shared], -1).transpose(-1, -2) / math.sqrt(E + R)
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
        out.append(scores.softmax(-1) @ (c @ mla.v.weight[h * E : (h + 1) * E].T))
    expected = torch.cat(out, -1) @ mla.out.weight.T
    torch.testing.assert_close(mla(x, context(6)), expected, rtol=1e-10, atol=1e-10)


def test_mla_keeps_the_latent_and_one_key_whatever_the_heads():
    """DeepSeek-V2's sizes: 512 + 64 numbers a token and layer, where MHA would keep 32,768."""
    with torch.device("meta"):
        mla = MLA(5120, 128, 128, False, RMSNorm)
    assert sum(heads * width for heads, width in mla.cached.values()) == 576
    mha = make(MHA, 16, 4, 4, False)
    assert sum(heads * width for heads, width in mha.cached.values()) == 2 * 4 * 4
