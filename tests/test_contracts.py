"""The laws of `laws.py` over whatever the registries hold.

A new component is under these laws from the moment it is registered.
"""

import itertools
import re

import pytest
import torch

from llama_ablate.config.spec import SLOTS
from llama_ablate.model.components import REGISTRIES, spec_from
from llama_ablate.training.optimizers import OPTIMIZERS
from tests.texts import prepared

from . import laws
from .conftest import LLAMA, make_spec
from .laws import (
    ALONE,
    COMBINATIONS,
    COMPONENTS,
    OPTIONS,
    TOKENS,
    model_of,
    name_of,
)

#: Every mixer, and every option of one.
MIXERS = [c for c in ALONE if c == LLAMA or c["attention"] != LLAMA["attention"]]
#: And every position scheme: with them a sequence may hold several documents.
ORDERED = MIXERS + [c for c in ALONE if c["position"] != LLAMA["position"]]
#: Every component without its options: for laws that no option has a part in.
NAMED = [c for c in ALONE if all(isinstance(entry, str) for entry in c.values())]


def test_every_pair_of_components_meets_and_every_option_is_under_the_laws():
    met = {
        frozenset(pair)
        for c in COMBINATIONS
        if all(isinstance(entry, str) for entry in c.values())
        for pair in itertools.combinations(c.items(), 2)
    }
    for (a, x), (b, y) in itertools.combinations(COMPONENTS, 2):
        assert a == b or frozenset([(a, x), (b, y)]) in met
    for slot in SLOTS:
        registry = REGISTRIES[slot]
        for name in registry:
            tried = {key for entry in OPTIONS[slot] if entry["name"] == name for key in entry}
            known = {option.name for option in registry.options(name)}
            missing = sorted(known - tried)
            assert not missing, f"add {missing} of the {slot} '{name}' to OPTIONS in tests/laws.py"


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_every_combination_trains_a_step_and_every_parameter_receives_a_gradient(combination):
    laws.every_parameter_learns_and_the_loss_falls(model_of(combination, init_std=32**-0.5))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_cached_decoding_equals_the_full_forward_pass(combination):
    laws.cached_equals_full(model_of(combination))


@pytest.mark.parametrize("combination", ORDERED, ids=name_of)
def test_left_padding_changes_nothing(combination):
    laws.padding_changes_nothing(model_of(combination))


@pytest.mark.parametrize("combination", ORDERED, ids=name_of)
def test_documents_in_one_sequence_have_the_logits_and_gradients_of_each_alone(combination):
    laws.documents_apart(model_of(combination, separator=7, init_std=32**-0.5))


@pytest.mark.parametrize("combination", MIXERS[::5], ids=name_of)
def test_documents_are_kept_apart_by_the_fused_kernel_too(combination):
    model = model_of(combination, separator=7, init_std=32**-0.5)
    model.kernel = "fused"
    laws.documents_apart(model)


@pytest.mark.parametrize("combination", MIXERS, ids=name_of)
def test_state_bytes_are_those_of_the_live_tensors_fresh_and_full(combination):
    laws.counted_bytes(model_of(combination))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_no_position_sees_the_future_and_each_sees_its_past(combination):
    laws.no_token_sees_the_future_and_each_sees_its_past(model_of(combination))


@pytest.mark.parametrize("combination", ORDERED, ids=name_of)
def test_both_attention_kernels_compute_the_same_function(combination):
    laws.both_kernels_compute_the_same(model_of(combination))


@pytest.mark.parametrize("combination", MIXERS, ids=name_of)
def test_looking_at_attention_changes_nothing_and_shows_probabilities(combination):
    laws.looking_changes_nothing_and_shows_probabilities(model_of(combination))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_counts_equal_the_built_model(combination):
    laws.counts_equal_the_built_model(make_spec(**combination))


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_counted_flops_equal_those_of_torchs_own_counter(combination):
    laws.obeys(model_of(combination), "counted_flops", within=0)


@pytest.mark.parametrize("attention", [*laws.KEPT, *laws.MATRICES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_live_cache_bytes_equal_the_closed_form(attention, dtype):
    model = model_of(LLAMA | {"attention": attention})
    laws.cache_bytes_equal_the_closed_form(model, attention, dtype)


@torch.no_grad()
def test_a_window_holds_as_many_tokens_as_it_is_wide_however_much_is_read():
    model = model_of(LLAMA | {"attention": {"name": "gqa", "window": 5}})
    cache = model.new_state(batch=2, capacity=24)
    assert cache.nbytes == 2 * 5 * laws.KEPT["gqa"] * 2 * 4
    for start in range(0, 24, 4):
        model(TOKENS[:, start : start + 4], cache)
    assert (cache.length, [layer.cached_tokens for layer in cache.layers]) == (24, [5, 5])


@pytest.mark.parametrize("slot", SLOTS)
@torch.no_grad()
def test_two_names_are_two_functions(slot):
    """With the same seed, components of different names differ in parameters or in output.

    So do a component with an option and the same without.
    """
    outputs = {}
    for entry in [*REGISTRIES[slot], *OPTIONS[slot]]:
        # Large weights: 'gelu' and 'silu' are nearly equal around zero.
        model = model_of(LLAMA | {slot: entry}, init_std=0.5)
        shapes = tuple((n, p.shape) for n, p in model.named_parameters())
        logits = model(TOKENS)
        for other, (other_shapes, other_logits) in outputs.items():
            same = shapes == other_shapes and torch.allclose(logits, other_logits, atol=1e-4)
            assert not same, f"'{entry}' computes what '{other}' does"
        outputs[name_of(entry)] = shapes, logits


@pytest.mark.parametrize("position", list(REGISTRIES["position"]))
@pytest.mark.parametrize("attention", list(REGISTRIES["attention"]))
def test_relative_schemes_are_shift_invariant_through_attention(position, attention):
    """Moved by 5 positions, a relative scheme gives the same attention output; others do not."""
    model = model_of(LLAMA | {"position": position, "attention": attention}, init_std=0.5)
    assert laws.shift_invariant(model) == model.position.relative


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_a_recipe_survives_a_round_trip_through_plain_values(combination):
    spec = make_spec(**combination)
    again = spec_from(spec.to_dict())
    assert again == spec
    assert again.id == spec.id


@pytest.mark.parametrize("combination", NAMED, ids=name_of)
def test_building_draws_no_random_number_and_weights_depend_on_seed_and_name_alone(combination):
    before = torch.get_rng_state()
    first, second = model_of(combination), model_of(combination, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    again = model_of(combination)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
        if parameter.dim() >= 2 and "_streams." not in name:  # these start as the identity
            assert not torch.equal(parameter, second.get_parameter(name)), name


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_initial_values_are_as_declared_under_every_rule(slot, name):
    laws.initial_values_are_those_declared(make_spec(**LLAMA | {slot: name}))


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_no_two_places_share_a_dropout_mask(slot, name):
    laws.no_two_places_share_a_dropout_mask(model_of(LLAMA | {slot: name}))


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_weight_decay_shrinks_what_is_declared_and_nothing_else(combination):
    model = model_of(combination)
    laws.obeys(model, "exempts_what_it_has")
    laws.only_what_is_declared_decays(model)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_optimizer_decays_what_is_declared_and_nothing_else(optimizer):
    laws.only_what_is_declared_decays(model_of(LLAMA), optimizer)


@pytest.mark.parametrize("combination", NAMED, ids=name_of)
def test_variants_share_every_weight_that_they_have_in_common(combination):
    llama, variant = model_of(LLAMA), model_of(combination)
    theirs = dict(variant.named_parameters())
    shared = [
        name
        for name, p in llama.named_parameters()
        if name in theirs and theirs[name].shape == p.shape
    ]
    assert all(torch.equal(llama.get_parameter(n), theirs[n]) for n in shared)
    assert {"embedding.weight", "blocks.1.attn.out.weight"} <= set(shared)


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_every_component_says_what_it_is_and_names_its_source(slot, name):
    summary = REGISTRIES[slot].summary(name)
    source = r".{20}.*\([A-Z].*(19|20)\d\d.*\)\.$"
    form = "ends with its source, as '(Author et al. 2019, arXiv:1910.07467).'"
    assert re.search(source, summary), f"the first paragraph of {slot} '{name}' {form}"


@pytest.mark.parametrize("combination", NAMED, ids=name_of)
def test_training_touches_no_cache_and_two_backward_passes_in_a_row_work(combination):
    laws.training_touches_no_cache(model_of(combination))


def test_what_a_router_and_a_loss_add_to_training_is_no_part_of_the_held_out_loss(book):
    text = prepared(book)
    spec, losses = make_spec(feedforward="moe", vocab=256), [{"name": "z_loss", "weight": 0.1}]
    laws.held_out_loss_is_cross_entropy_alone(spec, text, losses=losses)
