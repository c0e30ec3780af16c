import pytest
import torch

from llama_ablate.model.context import Context
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.mixers.gated_delta import GatedDelta
from tests.conftest import make_spec
from tests.model.parameters import decayed

from .recurrences import LAWS, model_with


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_over_sequences_longer_than_a_chunk_it(law):
    law(model_with("gated_delta"))


@torch.no_grad()
def test_a_layer_computes_what_that_of_qwen3_next_does():
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    H, E, P, D = 2, 12, 16, 32
    config = theirs.Qwen3NextConfig(
        hidden_size=D,
        linear_num_key_heads=H,
        linear_num_value_heads=H,
        linear_key_head_dim=E,
        linear_value_head_dim=P,
        rms_norm_eps=1e-5,
        num_hidden_layers=1,
    )
    layer = theirs.Qwen3NextGatedDeltaNet(config, 0)
    ours = GatedDelta(D, 4, 8, False, key_dim=E)
    for i, parameter in enumerate(ours.parameters()):
        parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(i))
    # Theirs joins the projections, one head after another.
    by_head = [part.weight.view(H, -1, D) for part in (ours.q, ours.k, ours.v, ours.gate)]
    layer.in_proj_qkvz.weight.copy_(torch.cat(by_head, 1).flatten(0, 1))
    by_head = [part.weight.view(H, 1, D) for part in (ours.beta, ours.step)]
    layer.in_proj_ba.weight.copy_(torch.cat(by_head, 1).flatten(0, 1))
    layer.conv1d.weight.copy_(ours.conv.weight[:, None])
    layer.norm.weight.copy_(ours.gain)
    layer.out_proj.weight.copy_(ours.out.weight)
    layer.A_log.copy_(ours.A_log)
    layer.dt_bias.copy_(ours.dt_bias)
    x = torch.randn(2, 70, D, generator=torch.Generator().manual_seed(0))
    ctx = Context(0, 70, build(make_spec()).position)
    torch.testing.assert_close(ours(x, ctx), layer(x), rtol=1e-4, atol=1e-5)


def test_it_begins_as_its_papers_code_does_whatever_the_rule_of_initialisation():
    spec = make_spec(attention="gated_delta", dim=128, heads=128, head_dim=2)
    models = [new_model(spec, seed) for seed in (0, 0, 1)]
    first, again, other = (model.blocks[1].attn for model in models)
    rates, steps = first.A_log.exp(), torch.nn.functional.softplus(first.dt_bias)
    assert 0.01 <= rates.min() < 2
    assert 14 < rates.max() <= 16
    assert 0.001 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1
    assert 0.4 < first.conv.weight.abs().max() <= 0.5  # 1 / sqrt(4 taps)
    for name in ("A_log", "dt_bias", "conv.weight"):
        assert torch.equal(first.get_parameter(name), again.get_parameter(name))
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(first.A_log, models[0].blocks[0].attn.A_log)


def test_projections_alone_take_weight_decay():
    attn = model_with("gated_delta").blocks[0].attn
    names = {name.removesuffix(".weight") for name, decays in decayed(attn).items() if decays}
    assert names == {"q", "k", "v", "gate", "step", "beta", "out"}


@pytest.mark.parametrize("heads", [1, 4])
def test_it_has_about_the_parameters_of_mha(heads):
    sizes = {"dim": 24 * heads, "heads": heads, "head_dim": 24, "bias": False}
    ours, mha = (
        count(make_spec(attention=name, **sizes)).parameters for name in ("gated_delta", "mha")
    )
    blocks = count(make_spec(**sizes)).non_embedding
    assert abs(ours - mha) < 0.06 * blocks


def test_heads_are_as_wide_as_is_asked():
    attn = GatedDelta(32, 4, 8, False, key_dim=3, value_dim=32)
    assert (attn.heads, attn.q.weight.shape, attn.v.weight.shape) == (1, (3, 32), (32, 32))
    assert attn.gain.shape == (32,)
