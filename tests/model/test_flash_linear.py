"""The path to the kernels of flash-linear-attention, taken by a stand-in that computes in steps.

The package's own kernels need a GPU; tests/test_cuda.py holds them to plain torch on one.
"""

import sys
import types

import pytest
import torch

from llama_ablate.model.mixers import flash_linear
from llama_ablate.model.mixers.delta_rule import gated_delta_step

from .recurrences import TOKENS, model_with

MODULES = {
    "gated_delta": ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "mamba2": ("fla.ops.simple_gla", "chunk_simple_gla"),
}


@pytest.fixture
def package(monkeypatch, plugin):
    """Install a stand-in of `fla`, as on a GPU; return what its functions were called with."""
    calls = []

    def stand_in(step):
        def kernel(q, k, v, *gates, scale, initial_state, output_final_state):
            calls.append((q, k, v, *gates, initial_state))
            assert (scale, output_final_state) == (1.0, True)
            B, T, H, E = q.shape
            state = q.new_zeros(B, H, E, v.shape[-1], dtype=torch.float32)
            state = state if initial_state is None else initial_state
            reads = []
            for t in range(T):
                read, state = step(*(x[:, t] for x in (q, k, v, *gates)), state)
                reads.append(read)
            return torch.stack(reads, 1).to(q.dtype), state

        return kernel

    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    steps = {"gated_delta": gated_delta_step, "mamba2": plugin("mamba2").state_space_step}
    for mixer, (name, function) in MODULES.items():
        module = types.ModuleType(name)
        setattr(module, function, stand_in(steps[mixer]))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(flash_linear, "on_gpu", lambda _: True)
    flash_linear._imported.cache_clear()
    yield calls
    flash_linear._imported.cache_clear()


def logits(model, kernel):
    model.kernel = kernel
    state = model.new_state(2, 60)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return torch.cat([model(part, state) for part in TOKENS[:, :60].split(30, 1)], 1).float()


@pytest.mark.parametrize("mixer", MODULES)
def test_fused_takes_the_packages_kernels_and_computes_the_same(package, mixer):
    model = model_with(mixer, **({"groups": 2} if mixer == "mamba2" else {}))
    plain = logits(model, "math")
    model.kernel = "fused"
    model(TOKENS)  # in float32
    assert not package
    fused = logits(model, "fused")
    assert len(package) == 2 * 2  # layers and pieces
    q, k, v, *gates, state = package[-1]
    assert {x.dtype for x in (q, k, v)} == {torch.bfloat16}
    assert {x.dtype for x in (*gates, state)} == {torch.float32}
    assert q.shape[2] == k.shape[2] == v.shape[2]  # groups are expanded to heads
    assert (fused - plain).abs().mean() < 0.03 * plain.std()
    assert not torch.equal(fused, plain)


@pytest.mark.parametrize("mixer", MODULES)
def test_without_the_package_a_gpu_computes_in_plain_torch(monkeypatch, plugin, mixer):
    plugin("mamba2")
    for name in ("fla", *(module for module, _ in MODULES.values())):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(flash_linear, "on_gpu", lambda _: True)
    flash_linear._imported.cache_clear()
    model = model_with(mixer)
    assert torch.equal(logits(model, "fused"), logits(model, "math"))
    flash_linear._imported.cache_clear()
