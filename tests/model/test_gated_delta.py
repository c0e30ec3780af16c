import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import decayed

from ..conftest import LLAMA, make_spec
from ..laws import model_of
from .recurrences import LONG, bytes_are_flat, goes_on_from_a_state, rewinds


def model(seed=0, **options):
    entry = {"name": "gated_delta", **options}
    return model_of(LLAMA | {"attention": entry}, seed, **LONG)


def test_a_layer_is_that_of_qwen3_next():
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    from transformers import Qwen3NextConfig

    H, E, P, D = 2, 12, 16, 32
    config = Qwen3NextConfig(
        hidden_size=D,
        linear_num_key_heads=H,
        linear_num_value_heads=H,
        linear_key_head_dim=E,
        linear_value_head_dim=P,
        rms_norm_eps=1e-5,
        num_hidden_layers=1,
    )
    theirs = modeling.Qwen3NextGatedDeltaNet(config, 0)
    decoder = model(key_dim=E, bias=False) if False else model_of(
        LLAMA | {"attention": {"name": "gated_delta", "key_dim": E}}, bias=False, **LONG
    )
    ours = decoder.blocks[0].attn
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
        by_head = [part.weight.view(H, -1, D) for part in (ours.q, ours.k, ours.v, ours.gate)]
        theirs.in_proj_qkvz.weight.copy_(torch.cat(by_head, 1).flatten(0, 1))
        theirs.in_proj_ba.weight.copy_(
            torch.stack([ours.beta.weight, ours.step.weight], 1).flatten(0, 1)
        )
        theirs.conv1d.weight.copy_(ours.conv.weight[:, None])
        theirs.A_log.copy_(ours.A_log)
        theirs.dt_bias.copy_(ours.dt_bias)
        theirs.norm.weight.copy_(ours.gain)
        theirs.out_proj.weight.copy_(ours.out.weight)
        x = torch.randn(2, 70, D, generator=torch.Generator().manual_seed(0))
        ctx = Context(0, 70, decoder.position)
        torch.testing.assert_close(ours(x, ctx), theirs(x), rtol=1e-3, atol=1e-4)
