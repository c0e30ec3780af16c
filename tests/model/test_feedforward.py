import math

import pytest
import torch

from llama_ablate.model.feedforward import (
    GEGLU,
    GELU,
    GLU,
    Bilinear,
    ReGLU,
    ReLU,
    SiLU,
    SquaredReLU,
    SwiGLU,
    llama_width,
)

ACTIVATIONS = {
    ReLU: lambda x: max(x, 0.0),
    SquaredReLU: lambda x: x * x if x > 0 else 0.0,
    GELU: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    SiLU: lambda x: x / (1 + math.exp(-x)),
}
GATES = {
    GLU: lambda x: 1 / (1 + math.exp(-x)),
    Bilinear: lambda x: x,
    ReGLU: ACTIVATIONS[ReLU],
    GEGLU: ACTIVATIONS[GELU],
    SwiGLU: ACTIVATIONS[SiLU],
}


def filled(network):
    for parameter in network.parameters():
        parameter.data.normal_()
    return network.double()


@pytest.mark.parametrize("make", ACTIVATIONS)
def test_plain_networks_put_their_activation_between_two_linear_maps(make):
    network = filled(make(6, True))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = network.up(x)
    active = hidden.detach().apply_(ACTIVATIONS[make])
    torch.testing.assert_close(network(x), network.down(active), rtol=1e-12, atol=1e-12)
    assert network.width == 24


def by_tanh(h):
    return h / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))


def test_gelu_by_tanh_is_the_form_of_gpt2_and_that_of_a_gate_gemmas():
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    network = filled(GELU(6, True, approximate="tanh"))
    expected = network.down(by_tanh(network.up(x)))
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)
    network = filled(GEGLU(6, True, approximate="tanh"))
    expected = network.down(by_tanh(network.gate(x)) * network.up(x))
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", GATES)
def test_gated_networks_multiply_one_branch_by_their_activation_of_the_other(make):
    network = filled(make(6, False))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate = (x @ network.gate.weight.T).detach().apply_(GATES[make])
    expected = (gate * (x @ network.up.weight.T)) @ network.down.weight.T
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)


def test_a_gate_that_reads_the_hidden_vector_is_glu_as_an_activation_of_one_vector():
    """x * sigmoid(Wx), as document 001 writes it, between two linear maps."""
    network = filled(GLU(6, True, width=5, gate_reads="hidden"))
    assert network.gate.weight.shape == (5, 5)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    h = network.up(x)
    logits = (h @ network.gate.weight.T + network.gate.bias).detach()
    expected = network.down(h * logits.apply_(GATES[GLU]))
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dim", "multiple_of", "multiplier", "width"),
    [
        (4096, 256, 1.0, 11008),  # LLaMA-7B
        (8192, 4096, 1.3, 28672),  # Llama-2-70B
        (4096, 1024, 1.3, 14336),  # Llama-3-8B
        (16384, 4096, 1.2, 53248),  # Llama-3.1-405B
        (128, 256, 1.0, 512),  # rounding up to 256 undoes the two thirds: the known trap
    ],
)
def test_swiglu_width_is_that_of_the_published_models(dim, multiple_of, multiplier, width):
    assert llama_width(dim, multiple_of, multiplier) == width
    with torch.device("meta"):
        built = SwiGLU(dim, False, multiple_of=multiple_of, multiplier=multiplier)
    assert built.width == width
    assert built.gate.weight.shape == (width, dim)
