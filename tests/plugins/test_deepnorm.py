"""DeepNorm beside its paper's formula; its own initial weights are a seam that others may use."""

import math

import pytest
import torch

from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import new_model
from llama_ablate.model.positions import Position
from tests.conftest import make_spec
from tests.laws import initial_values_are_those_declared
from tests.model.test_blocks import Halve, Twice


@pytest.fixture(autouse=True)
def _deepnorm(plugin):
    plugin("deepnorm")


def test_deepnorm_weighs_the_stream_by_the_fourth_root_of_twice_the_layers():
    """Of 8 layers alpha is 2. x=8: (2*8 + 2*8)/2 = 16, then (2*16 + 2*16)/2 = 32."""
    choice = BLOCKS.resolve("deepnorm")
    block = BLOCKS.build(choice, attn=Twice(), ffn=Twice(), norm=Halve, layers=8, layer=0)
    assert block(torch.tensor(8.0), Context(0, 1, Position())) == 32


def test_weights_of_deepnorm_begin_as_xaviers_and_but_for_queries_and_keys_smaller():
    """Of 2 layers beta is 16^(-1/4) = 1/2."""
    spec = make_spec(block="deepnorm", dim=128, heads=4, head_dim=32)
    model = new_model(spec, 0)
    for name, parameter in model.blocks.named_parameters():
        if parameter.dim() == 2:
            gain = 1 if ".attn.q." in name or ".attn.k." in name else 0.5
            expected = gain * math.sqrt(2 / sum(parameter.shape))
            assert abs(parameter.std().item() / expected - 1) < 0.03, name
    initial_values_are_those_declared(make_spec(block="deepnorm"))
