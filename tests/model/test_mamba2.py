import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.mixers.mamba2 import Mamba2
from tests.conftest import LLAMA, make_spec
from tests.model.parameters import decayed

from .recurrences import LAWS, model_with


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("groups", [1, 2])
def test_over_sequences_longer_than_a_chunk_it(law, groups):
    law(model_with("mamba2", groups=groups))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_a_layer_computes_what_that_of_transformers_does(groups, bias):
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    D, E, P = 32, 12, 16
    config = theirs.Mamba2Config(
        hidden_size=D,
        state_size=E,
        head_dim=P,
        num_heads=4,
        n_groups=groups,
        expand=2,
        use_conv_bias=bias,
        chunk_size=16,
        layer_norm_epsilon=1e-5,
        num_hidden_layers=1,
    )
    layer = theirs.Mamba2Mixer(config, 0).eval()
    options = {"state": E, "expand": 2, "groups": groups, "value_dim": P, "conv_bias": bias}
    ours = Mamba2(D, 4, 8, False, **options)
    for i, parameter in enumerate(ours.parameters()):
        parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(i))
    joined = (ours.gate, ours.x, ours.b, ours.c, ours.step)
    layer.in_proj.weight.copy_(torch.cat([part.weight for part in joined]))
    layer.conv1d.weight.copy_(ours.conv.weight[:, None])
    if bias:
        layer.conv1d.bias.copy_(ours.conv.bias)
    layer.norm.weight.copy_(ours.gain)
    layer.out_proj.weight.copy_(ours.out.weight)
    for name in ("A_log", "dt_bias", "D"):
        getattr(layer, name).copy_(getattr(ours, name))
    x = torch.randn(2, 70, D, generator=torch.Generator().manual_seed(0))
    ctx = Context(0, 70, build(make_spec()).position)
    torch.testing.assert_close(ours(x, ctx), layer(x), rtol=1e-4, atol=1e-5)


def test_it_begins_as_its_papers_code_does_whatever_the_rule_of_initialisation():
    spec = make_spec(attention="mamba2", dim=128, heads=128, head_dim=2)
    first, other = (init_weights(build(spec), seed).blocks[1].attn for seed in (0, 1))
    rates, steps = first.A_log.exp(), torch.nn.functional.softplus(first.dt_bias)
    assert 1 <= rates.min() < 2
    assert 14 < rates.max() <= 16
    assert 0.001 <= steps.min() < 0.002
    assert 0.05 < steps.max() <= 0.1
    assert torch.equal(first.D, torch.ones(128))
    for name in ("A_log", "dt_bias", "conv.weight", "conv.bias"):
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


def test_projections_alone_take_weight_decay():
    attn = model_with("mamba2").blocks[0].attn
    names = {name.removesuffix(".weight") for name, decays in decayed(attn).items() if decays}
    assert names == {"x", "b", "c", "gate", "step", "out"}


def test_it_has_about_the_parameters_of_mha_at_four_heads():
    sizes = {"dim": 256, "heads": 4, "head_dim": 64, "bias": False}
    ours, mha = (count(make_spec(attention=name, **sizes)).parameters for name in ("mamba2", "mha"))
    assert abs(ours - mha) < 0.02 * mha


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_dim": 5}, "value_dim 5: must divide expand x heads x head_dim, 32"),
        ({"groups": 3}, "4 heads of 8 do not divide into 3 groups"),
        ({"state": 0}, "state 0: must be from 1"),
        ({"expand": 0}, "expand 0: must be from 1"),
        ({"conv": -1}, "conv -1: must be from 0"),
    ],
)
def test_widths_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build(make_spec(**LLAMA | {"attention": {"name": "mamba2", **options}}))
