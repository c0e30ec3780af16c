"""The laws that every combination of components obeys, over whatever the registries hold.

A new component is under these laws from the moment it is registered.
"""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.model.counts import count
from llama_ablate.model.decoder import REGISTRIES, build, init_weights, spec_from

from .conftest import LLAMA, SMALL, make_spec

COMBINATIONS = [
    dict(zip(REGISTRIES, names, strict=True)) for names in itertools.product(*REGISTRIES.values())
]
COMPONENTS = [(slot, name) for slot, registry in REGISTRIES.items() for name in registry]
# Every component once, on a Llama: enough where a law is about a component and not a combination.
ALONE = [LLAMA, *(LLAMA | {s: name} for s, name in COMPONENTS if LLAMA[s] != name)]
TOKENS = torch.randint(0, SMALL["vocab"], (2, 24), generator=torch.Generator().manual_seed(1))


def name_of(value):
    return "-".join(value.values()) if isinstance(value, dict) else str(value)


def model_of(combination, seed=0, **sizes):
    model = init_weights(build(make_spec(**combination, **sizes)), seed)
    model.kernel = "math"
    return model


def test_the_registries_offer_at_least_the_240_combinations_of_the_mission():
    promised = {
        "norm": {"layernorm", "rmsnorm"},
        "position": {"none", "sinusoidal", "learned", "rope", "alibi"},
        "attention": {"mha", "gqa", "mqa"},
        "feedforward": {"relu", "gelu", "silu", "swiglu"},
        "block": {"pre", "post"},
    }
    assert all(names <= set(REGISTRIES[slot]) for slot, names in promised.items())
    assert len(COMBINATIONS) >= 240


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_every_combination_trains_a_step_and_every_parameter_receives_a_gradient(combination):
    model = model_of(combination)
    # Two steps, because an exact zero in the first (an unused bias, say) may be chance.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    first = None
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(TOKENS[:, :-1])
        assert logits.shape == (2, 23, SMALL["vocab"])
        assert logits.dtype == torch.float32
        loss = F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        first = loss.item() if first is None else first
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), name
            # Softmax does not see what is added to all its scores: k's bias may rest at zero.
            if not name.endswith("attn.k.bias"):
                assert parameter.grad.abs().max() > 0, f"{name} never learns"
        optimizer.step()
    assert torch.isfinite(loss)
    assert loss.item() < first


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_pass(combination):
    """Prefill, a chunk, then single tokens: the logits are those of one pass over all."""
    model = model_of(combination)
    full = model(TOKENS)
    cache = model.new_cache(batch=2, capacity=24)
    pieces = [model(TOKENS[:, :7], cache), model(TOKENS[:, 7:13], cache)]
    pieces += [model(TOKENS[:, t : t + 1], cache) for t in range(13, 24)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=1e-5, atol=1e-5)
    assert cache.length == 24


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
@torch.no_grad()
def test_no_position_sees_the_future_and_each_sees_its_past(combination):
    model = model_of(combination)
    changed = TOKENS.clone()
    changed[:, 12] = (changed[:, 12] + 1) % SMALL["vocab"]
    before, after = model(TOKENS), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().amax((0, 2)).min() > 0


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
@torch.no_grad()
def test_both_attention_kernels_compute_the_same_function(combination):
    model = model_of(combination)
    spelled_out = model(TOKENS)
    model.kernel = "fused"
    torch.testing.assert_close(model(TOKENS), spelled_out, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_counts_equal_the_built_model(combination):
    spec = make_spec(**combination)
    model = build(spec)
    counts = count(spec)
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    outside = [model.embedding, model.position, model.head]
    tables = sum(p.numel() for part in outside for p in part.parameters())
    assert counts.non_embedding == counts.parameters - tables
    assert counts.flops_per_token == model.flops()


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
@torch.no_grad()
def test_counted_flops_equal_those_of_torchs_own_counter(combination):
    from torch.utils.flop_counter import FlopCounterMode

    model = model_of(combination)
    with FlopCounterMode(display=False) as counter:
        model(TOKENS)
    assert counter.get_total_flops() == model.flops(24) * TOKENS.numel()


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_live_cache_bytes_equal_the_closed_form(combination, dtype):
    """2 (K and V) x layers x kv_heads x head_dim x bytes, for each token of capacity and batch."""
    model = model_of(combination)
    kv_heads = {"mha": 4, "gqa": 2, "mqa": 1}[combination["attention"]]
    cache = model.new_cache(batch=3, capacity=10, dtype=dtype)
    per_token = 2 * SMALL["layers"] * kv_heads * SMALL["head_dim"] * dtype.itemsize
    assert cache.nbytes == 3 * 10 * per_token
    if dtype == torch.bfloat16:
        assert count(make_spec(**combination)).kv_bytes_per_token == per_token


@pytest.mark.parametrize("slot", REGISTRIES)
@torch.no_grad()
def test_two_names_are_two_functions(slot):
    """With the same seed, components of different names differ in parameters or in output."""
    outputs = {}
    for name in REGISTRIES[slot]:
        # Large weights: 'gelu' and 'silu' are nearly equal around zero.
        model = model_of(LLAMA | {slot: name}, init_std=0.5)
        shapes = tuple((n, p.shape) for n, p in model.named_parameters())
        logits = model(TOKENS)
        for other, (other_shapes, other_logits) in outputs.items():
            same = shapes == other_shapes and torch.allclose(logits, other_logits, atol=1e-4)
            assert not same, f"'{name}' computes what '{other}' does"
        outputs[name] = shapes, logits


@pytest.mark.parametrize("position", list(REGISTRIES["position"]))
@pytest.mark.parametrize("attention", list(REGISTRIES["attention"]))
@torch.no_grad()
def test_relative_schemes_are_shift_invariant_through_attention(position, attention):
    """Moved by 5 positions, a relative scheme gives the same attention output; others do not."""
    from llama_ablate.model.kernels import attend

    model = model_of(LLAMA | {"position": position, "attention": attention}, init_std=0.5)
    attn, scheme = model.blocks[0].attn, model.position
    scheme.reach(24)
    x = model.embedding(TOKENS[:, :9])

    def output(shift):
        pos = torch.arange(9) + shift
        hidden = torch.full((9, 9), -torch.inf).triu(1)
        bias = scheme.bias(pos, pos)
        mask = hidden if bias is None else bias + hidden
        q, k, v = attn._project(scheme.embed(x, pos))
        q, k = scheme.rotate(q, k, pos)
        return attend(q, k, v, mask, causal=False, kernel="math")

    same = torch.allclose(output(0), output(5), atol=1e-4)
    assert same == scheme.relative


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_a_recipe_survives_a_round_trip_through_plain_values(combination):
    spec = make_spec(**combination)
    again = spec_from(spec.to_dict())
    assert again == spec
    assert again.id == spec.id


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_building_draws_no_random_number_and_weights_depend_on_seed_and_name_alone(combination):
    before = torch.get_rng_state()
    first, second = model_of(combination), model_of(combination, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    again = model_of(combination)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
        if parameter.dim() >= 2:
            assert not torch.equal(parameter, second.get_parameter(name)), name


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_variants_share_every_weight_that_they_have_in_common(combination):
    llama, variant = model_of(LLAMA), model_of(combination)
    theirs = dict(variant.named_parameters())
    shared = [
        name for name, p in llama.named_parameters()
        if name in theirs and theirs[name].shape == p.shape
    ]  # fmt: skip
    assert all(torch.equal(llama.get_parameter(n), theirs[n]) for n in shared)
    assert "embedding.weight" in shared
    assert "blocks.1.attn.q.weight" in shared


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_every_component_says_what_it_is_and_names_its_source(slot, name):
    summary = REGISTRIES[slot].summary(name)
    assert re.search(r".{20}.*\([A-Z].*(19|20)\d\d.*\)\.$", summary), f"{slot} '{name}': no source"


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_training_touches_no_cache_and_two_backward_passes_in_a_row_work(combination):
    model = model_of(combination)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    for _ in range(2):
        model(TOKENS).square().mean().backward()
    model.zero_grad()
    after = dict(model.named_buffers())
    grown = {n for n in after if n not in buffers or after[n].shape != buffers[n].shape}
    assert all(torch.equal(after[n], b) for n, b in buffers.items() if n not in grown)
    assert all(n.startswith("position.") for n in grown), "only position tables may grow"
