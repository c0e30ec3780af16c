import math

import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.model.attention import AttentionContext, gqa, mha, mqa
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.kernels import attend


def context(length, kernel="math"):
    mask = torch.full((length, length), -math.inf).triu(1)
    return AttentionContext(torch.arange(length), lambda q, k, _: (q, k), mask, True, kernel)


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
                scores = [float(q[b, t, h * E : (h + 1) * E] @ keys[s]) / math.sqrt(E)
                          for s in range(t + 1)]  # fmt: skip
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                mixed = sum(w * values[s] for s, w in enumerate(weights)) / sum(weights)
                out[b, t, h * E : (h + 1) * E] = mixed
    return attention.out(out)


@pytest.mark.parametrize("make", [mha, gqa, mqa])
@pytest.mark.parametrize("kernel", ["math", "fused"])
def test_attention_equals_a_spelled_out_loop(make, kernel):
    attention = filled(make(24, 4, 6, True))
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(attention(x, context(7, kernel)), by_loops(attention, x),
                               rtol=1e-10, atol=1e-10)  # fmt: skip


def test_gqa_equals_mha_whose_key_and_value_weights_are_copied_to_each_group():
    grouped = filled(gqa(24, 4, 6, False, kv_heads=2))
    full = filled(mha(24, 4, 6, False), seed=1)
    full.q.weight.data, full.out.weight.data = grouped.q.weight.data, grouped.out.weight.data
    for part in ("k", "v"):
        heads = getattr(grouped, part).weight.data.view(2, 6, 24)
        getattr(full, part).weight.data = heads.repeat_interleave(2, 0).reshape(24, 24)
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(grouped(x, context(5)), full(x, context(5)))


def test_gqa_with_all_heads_is_mha_and_with_one_is_mqa():
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    assert torch.equal(filled(gqa(24, 4, 6, True, kv_heads=4))(x, context(5)),
                       filled(mha(24, 4, 6, True))(x, context(5)))  # fmt: skip
    assert torch.equal(filled(gqa(24, 4, 6, True, kv_heads=1))(x, context(5)),
                       filled(mqa(24, 4, 6, True))(x, context(5)))  # fmt: skip


@pytest.mark.parametrize("kv_heads", [3, 0, -1, 8])
def test_kv_heads_that_do_not_divide_the_heads_are_refused(kv_heads):
    with pytest.raises(ConfigError, match=f"4 query heads do not divide into {kv_heads} kv_heads"):
        gqa(24, 4, 6, False, kv_heads=kv_heads)


def test_the_score_products_cost_the_same_whatever_the_kv_heads():
    """Only the K and V projections shrink (the source documents claim more)."""
    full, one = mha(64, 8, 8, False), mqa(64, 8, 8, False)
    assert full.flops(100) - one.flops(100) == 2 * 2 * 64 * 56


def test_rows_of_weights_sum_to_one():
    q, k = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    ones = torch.ones(1, 2, 6, 4)
    mixed = attend(q, k, ones, context(6).mask, causal=True, kernel="math")
    torch.testing.assert_close(mixed, torch.ones(1, 6, 8))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("per_head", [False, True])
def test_the_hand_derived_gradient_of_attention_equals_the_numerical_one(kv_heads, per_head):
    """Also with respect to the mask, for schemes that learn what they add to the scores."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 3, 5), (2, kv_heads, 3, 5), (2, kv_heads, 3, 5)]
    q, k, v = (torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes)
    mask = torch.randn(4, 3, 3, dtype=torch.float64, generator=generator)
    mask = mask if per_head else mask[0]
    inputs = tuple(tensor.requires_grad_() for tensor in (q, k, v, mask))
    assert torch.autograd.gradcheck(
        lambda *tensors: attend(*tensors, causal=False, kernel="math"), inputs
    )


@torch.no_grad()
def test_the_whole_decoder_agrees_with_transformers_llama(spec):
    """RMSNorm, RoPE, GQA, SwiGLU and pre-norm together, from the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = init_weights(build(spec(bias=False, attention="gqa", init_std=0.3)), 0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=ours.blocks[0].ffn.width, rms_norm_eps=1e-6,
        rope_theta=10000.0, attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    names = {
        "model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head",
        "self_attn.q_proj": "attn.q", "self_attn.k_proj": "attn.k", "self_attn.v_proj": "attn.v",
        "self_attn.o_proj": "attn.out", "mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up",
        "mlp.down_proj": "ffn.down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "model.layers": "blocks",
    }  # fmt: skip
    weights = {}
    for name in theirs.state_dict():
        mine = name
        for old, new in names.items():
            mine = mine.replace(old, new)
        is_gain = "norm.weight" in mine
        weights[name] = ours.get_parameter(mine.replace("weight", "gain") if is_gain else mine)
    theirs.load_state_dict(weights)
    tokens = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
