"""What stands between the heads and the residual stream, each beside its authors' formula."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.errors import ConfigError
from llama_ablate.model.decoder import new_model
from tests.conftest import LLAMA, SMALL, make_spec

D, H, E, T = SMALL["dim"], SMALL["heads"], 8, 9


def layer_of(attention, position="none", seed=0, **sizes):
    """Return a model's first attention in float64, its input, and the context of a pass."""
    made = LLAMA | {"attention": attention, "position": position}
    model = new_model(make_spec(**made, **sizes), seed).double()
    model.kernel = "math"
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, SMALL["vocab"], (2, T), generator=generator)
    for name, p in model.named_parameters():
        if name.rpartition(".")[2] in ("sinks", "value_mix"):
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    x = torch.randn(2, T, D, generator=generator, dtype=torch.float64)
    return model.blocks[0].attn, x, model.context(tokens)


def softmaxes(attn, x, heads=H, kv_heads=H, sinks=None):
    """Return the mixed values, (B, T, heads, E), and the values, by the formula of the paper."""
    q, k, v = (
        part(x).view(2, T, n, E).transpose(1, 2)
        for part, n in ((attn.q, heads), (attn.k, kv_heads), (attn.v, kv_heads))
    )
    k, v = (y.repeat_interleave(heads // kv_heads, 1) for y in (k, v))
    scores = (q @ k.mT / math.sqrt(E)).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.exp().view(1, -1, 1, 1)
    return (weights / total @ v).transpose(1, 2), v.transpose(1, 2)


@pytest.mark.parametrize("gate", ["head", "element"])
@torch.no_grad()
def test_an_output_gate_is_a_sigmoid_of_the_layers_input(gate):
    """Y * sigmoid(X W), Qiu et al. 2025, with one number a head or one an element."""
    attn, x, ctx = layer_of({"name": "mha", "gate": gate})
    mixed, _ = softmaxes(attn, x)
    shape = (2, T, H, 1) if gate == "head" else (2, T, H, E)
    gated = mixed * torch.sigmoid(x @ attn.gate.weight.T).view(shape)
    torch.testing.assert_close(attn(x, ctx), gated.flatten(2) @ attn.out.weight.T)
    assert attn.gate.weight.shape == (math.prod(shape[2:]), D)


@pytest.mark.parametrize("kv_heads", [2, 4])
@torch.no_grad()
def test_exclusive_attention_leaves_nothing_along_a_tokens_own_value(kv_heads):
    attn, x, ctx = layer_of({"name": "gqa", "kv_heads": kv_heads, "exclusive": True})
    mixed, v = softmaxes(attn, x, kv_heads=kv_heads)
    along = (mixed * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True)
    left = mixed - along * v
    torch.testing.assert_close(attn(x, ctx), left.flatten(2) @ attn.out.weight.T)
    assert (left * v).sum(-1).abs().max() < 1e-12 < mixed.sub(left).abs().max()


@pytest.mark.parametrize("kernel", ["math", "fused"])
@torch.no_grad()
def test_sinks_take_their_share_of_the_softmax_as_gpt_oss_has_them(kernel):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    attn, x, ctx = layer_of({"name": "gqa", "sinks": True})
    ctx.kernel = kernel
    q, k, v = attn._project(x, ctx)
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    module = SimpleNamespace(sinks=attn.sinks, num_key_value_groups=2, training=False)
    theirs, _ = eager_attention_forward(module, q, k, v, mask, E**-0.5)
    # The mask, and so the sinks in it, is of float32.
    torch.testing.assert_close(attn(x, ctx), attn.out(theirs.flatten(2)), rtol=1e-6, atol=1e-7)
    by_hand, _ = softmaxes(attn, x, kv_heads=2, sinks=attn.sinks)
    torch.testing.assert_close(theirs, by_hand)


@torch.no_grad()
def test_differential_attention_subtracts_every_second_head_from_the_one_before():
    """Version 2: a1 - sigmoid(X w) a2 of 2H query heads in pairs, whose keys and values are one."""
    attn, x, ctx = layer_of("differential")
    mixed, _ = softmaxes(attn, x, heads=2 * H)
    share = torch.sigmoid(x @ attn.subtract.weight.T)[..., None]
    out = (mixed[:, :, 0::2] - share * mixed[:, :, 1::2]).flatten(2)
    torch.testing.assert_close(attn(x, ctx), out @ attn.out.weight.T)
    assert attn.q.weight.shape == (2 * H * E, D)
    assert attn.k.weight.shape == attn.out.weight.shape == (H * E, D)


@torch.no_grad()
def test_value_residuals_mix_in_the_values_of_the_first_layer():
    attn, x, ctx = layer_of({"name": "mha", "value_residual": True})
    first = torch.randn(2, T, H, E, dtype=torch.float64)
    ctx.shared["values"] = first
    mixed, _ = softmaxes(attn, x)
    own = attn.v.weight.clone()
    attn.v.weight.zero_()
    expected = attn(x, ctx)  # of the first layer's values alone
    ctx.shared["values"] = 0 * first
    attn.v.weight.copy_(own)
    torch.testing.assert_close(
        attn(x, ctx), attn.value_mix[1] * mixed.flatten(2) @ attn.out.weight.T
    )
    ctx.shared["values"] = first
    torch.testing.assert_close(
        attn(x, ctx), expected + attn.value_mix[1] * mixed.flatten(2) @ attn.out.weight.T
    )
    assert expected.abs().max() > 1e-3


def test_values_of_another_shape_than_the_first_layers_are_refused():
    pattern = {"pattern": [{"name": n, "value_residual": True} for n in ("mha", "mqa")]}
    model = new_model(make_spec(**LLAMA | {"attention": pattern}), 0)
    with pytest.raises(ConfigError, match=r"layer 1 has values of 1 x 8 .* the first 4 x 8"):
        model(torch.zeros(1, 4, dtype=torch.long))


@torch.no_grad()
def test_canon_layers_add_a_depthwise_convolution_of_four_tokens():
    """Each where its letter says: torch's own convolution, before q, k, v and behind them."""
    attn, x, ctx = layer_of({"name": "mha", "canon": "AB"})

    def canon(x, weight):
        padded = F.pad(x.transpose(1, 2), (3, 0))
        return x + F.conv1d(padded, weight[:, None], groups=len(weight)).transpose(1, 2)

    entered = canon(x, attn.canon_in.weight)
    joined = torch.cat([part(entered) for part in (attn.q, attn.k, attn.v)], -1)
    q, k, v = canon(joined, attn.canon_qkv.weight).view(2, T, 3, H, E).unbind(2)
    mixed = F.scaled_dot_product_attention(
        *(y.transpose(1, 2) for y in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    torch.testing.assert_close(attn(x, ctx), attn.out(mixed.flatten(2)))

    spec = make_spec(**LLAMA | {"feedforward": {"name": "swiglu", "canon": "CD"}})
    ffn = new_model(spec, 0).double().blocks[0].ffn
    entered = canon(x, ffn.canon_in.weight)
    up, gate = canon(ffn.up(entered), ffn.canon_up.weight), ffn.gate(entered)
    expected = ffn.down(F.silu(canon(gate, ffn.canon_gate.weight)) * up)
    torch.testing.assert_close(ffn(x, ctx), expected)


@torch.no_grad()
def test_gated_delta_without_its_convolution_is_that_of_one_tap_of_weight_one():
    layers = [layer_of({"name": "gated_delta", "conv": conv}) for conv in (0, 1)]
    layers[1][0].conv.weight.fill_(1.0)
    without, one = (attn(x, ctx) for attn, x, ctx in layers)
    # What stands before the convolution is drawn alike; one tap of weight one is the identity.
    torch.testing.assert_close(without, one, rtol=1e-6, atol=1e-7)
    assert not hasattr(layers[0][0].conv.weight, "shape")
