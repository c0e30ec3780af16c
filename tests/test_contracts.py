"""The laws of the package and of `laws.py` over whatever the registries hold.

A new component is under these laws from the moment it is registered.
"""

import itertools

import pytest
import torch

from llama_ablate.config.spec import SLOTS, DropoutRates
from llama_ablate.model.components import REGISTRIES, spec_from
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build
from llama_ablate.model.dropout import Dropout
from llama_ablate.training.optimizers import OPTIMIZERS

from . import laws
from .conftest import LLAMA, make_spec
from .laws import ALONE, CHANGES, COMBINATIONS, COMPONENTS, OPTIONS, TOKENS, model_of, name_of

#: Every mixer and every option of one, and every position scheme.
ORDERED = [c for c in ALONE if all(c[s] == LLAMA[s] for s in ("norm", "feedforward", "block"))]
#: Every component without its options: for laws that no option has a part in.
NAMED = [c for c in ALONE if all(isinstance(entry, str) for entry in c.values())]
#: Laws that depend on a model as a whole, and not only on the parts under test.
OF_PAIRS = ("finite", "causal", "cached_equals_full", "every_parameter_learns")
#: Where laws that take as long as all others are checked.
OF = {"as_in_training": NAMED, "documents_apart": ORDERED}
#: Where there are no scores, a scheme that biases them has no part in anything.
OF["every_parameter_learns"] = [
    c for c in COMBINATIONS if (c["position"], c["attention"]) != ("t5", "gated_delta")
]


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
def test_every_pair_obeys_the_laws_of_a_model_and_every_option_all_of_them(combination):
    for law in [law.__name__ for law in laws.laws.LAWS if combination in ALONE] or OF_PAIRS:
        if combination in OF.get(law, COMBINATIONS):
            laws.obeys(model_of(combination, **CHANGES.get(law, {})), law)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_every_combination_is_counted_read_back_and_seen_by_later_tokens(combination):
    spec = make_spec(**combination)
    model, counts = build(spec), count(spec)
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    outside = [model.embedding, model.position, model.head]
    tables = sum(p.numel() for part in outside for p in part.parameters())
    assert counts.non_embedding == counts.parameters - tables
    assert counts.flops_per_token == model.flops()
    again = spec_from(spec.to_dict())
    assert (again, again.id) == (spec, spec.id)
    laws.each_token_sees_its_past(model_of(combination))


@pytest.mark.parametrize("combination", ORDERED, ids=name_of)
def test_every_mixer_computes_the_same_with_either_kernel_and_where_it_is_looked_at(combination):
    model = model_of(combination)
    laws.looking_changes_nothing_and_shows_probabilities(model)
    laws.both_kernels_compute_the_same(model)


@pytest.mark.parametrize("combination", ORDERED[::5], ids=name_of)
def test_documents_are_kept_apart_by_the_fused_kernel_too(combination):
    model = model_of(combination, **CHANGES["documents_apart"])
    model.kernel = "fused"
    laws.obeys(model, "documents_apart")


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
@torch.no_grad()
def test_relative_schemes_are_shift_invariant_through_attention(position, attention):
    """Moved by 5 positions, a relative scheme gives the same attention output; others do not."""
    model = model_of(LLAMA | {"position": position, "attention": attention}, init_std=0.5)
    attn, scheme = model.blocks[0].attn, model.position
    scheme.prepare(24)
    x, outputs = model.embedding(TOKENS[:, :9]), []
    for shift in (0, 5):
        ctx = Context(shift, 9, scheme, kernel="math")
        outputs.append(attn(scheme.embed(x, ctx.pos_T), ctx))
    assert torch.allclose(*outputs, atol=1e-4) == scheme.relative


@pytest.mark.parametrize("combination", NAMED, ids=name_of)
def test_weights_depend_on_seed_and_name_alone_so_that_variants_share_what_they_have_in_common(
    combination,
):
    before = torch.get_rng_state()
    first, second = model_of(combination), model_of(combination, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    llama, shared = dict(model_of(LLAMA).named_parameters()), set()
    for name, parameter in first.named_parameters():
        if parameter.dim() >= 2 and "_streams." not in name:  # these start as the identity
            assert not torch.equal(parameter, second.get_parameter(name)), name
        if name in llama and llama[name].shape == parameter.shape:
            shared.add(name)
            assert torch.equal(parameter, llama[name]), name
    assert {"embedding.weight", "blocks.1.attn.out.weight"} <= shared


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_initial_values_and_dropout_of_a_component_are_as_declared(slot, name):
    laws.initial_values_are_those_declared(make_spec(**LLAMA | {slot: name}))
    model = model_of(LLAMA | {slot: name})
    rates = Dropout(DropoutRates.of(0.3), 0, 0, len(TOKENS))
    with torch.no_grad():
        masks = laws.dropout_masks(model, TOKENS, rates)
    layers = range(len(model.blocks))
    places = {"embedding"} | {f"blocks.{i}.{part}" for i in layers for part in ("attn", "ffn")}
    assert places <= set(masks), f"nothing is dropped at {places - set(masks)}"
    for (a, one), (b, other) in itertools.combinations(masks.items(), 2):
        assert one.shape != other.shape or not torch.equal(one, other), f"{a} has the mask of {b}"


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_weight_decay_shrinks_what_is_declared_and_nothing_else(combination):
    laws.only_what_is_declared_decays(model_of(combination))


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_every_optimizer_decays_what_is_declared_and_nothing_else(optimizer):
    laws.only_what_is_declared_decays(model_of(LLAMA), optimizer)
