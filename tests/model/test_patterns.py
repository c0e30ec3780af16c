import pytest
import torch

from llama_ablate.config import spec as patterns
from llama_ablate.errors import ConfigError
from llama_ablate.model.components import REGISTRIES, spec_from
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build
from tests import laws
from tests.laws import TOKENS, model_of

ATTENTIONS, POSITIONS = REGISTRIES["attention"], REGISTRIES["position"]
LOCAL = {"name": "mha", "window": 5}
#: Layers that differ in what they keep, in how far they see, and in their norms, networks, blocks.
MIXED = {
    "attention": {"pattern": [LOCAL, "gqa"], "layers": {-1: "mla"}},
    "position": {"pattern": ["rope", {"name": "rope", "theta": 100.0}, "none"]},
    "norm": {"pattern": ["rmsnorm", "layernorm"]},
    "feedforward": {"pattern": ["swiglu", {"name": "relu", "width": 40}]},
    "block": {"pattern": ["pre", "sandwich", "parallel"]},
}


def names(entry, layers):
    slot = patterns.resolve_slot(ATTENTIONS, entry, layers)
    return [slot.at(layer).name for layer in range(layers)]


def test_a_pattern_repeats_down_the_layers_and_single_layers_are_set_from_either_end():
    assert names({"pattern": ["mha", "mqa"]}, 5) == ["mha", "mqa", "mha", "mqa", "mha"]
    entry = {"pattern": ["mqa"], "layers": {0: "mha", -1: "gqa"}}
    assert names(entry, 4) == ["mha", "mqa", "mqa", "gqa"]
    assert names({"pattern": ["mqa"], "layers": {"-1": "gqa"}}, 2) == [
        "mqa",
        "gqa",
    ]  # as JSON has it


def test_two_ways_to_write_the_same_layers_are_one_pattern():
    written = [
        {"pattern": ["mha", "mqa", "mha", "mqa"]},
        {"pattern": ["mha"], "layers": {1: "mqa", 3: "mqa"}},
        {"pattern": ["mha", {"name": "mqa"}], "layers": {0: "mha"}},
    ]
    resolved = [patterns.resolve_slot(ATTENTIONS, entry, 4) for entry in written]
    assert all(one == resolved[0] for one in resolved)
    assert len({str(one.identity()) for one in resolved}) == 1
    assert resolved[0].entry()["pattern"][1]["name"] == "mqa"
    alike = patterns.resolve_slot(ATTENTIONS, {"pattern": ["mha", {"name": "mha"}]}, 4)
    assert alike == ATTENTIONS.resolve("mha")


def test_layers_without_rotation_keep_the_id_that_nope_every_gave_them(spec):
    every = spec(layers=6, position={"name": "rope", "nope_every": 3})
    written = spec(layers=6, position={"pattern": ["rope", "rope", "none"]})
    assert every == written
    assert every.identity()["position"] == {"name": "rope", "nope_every": 3}
    assert every.id == written.id == "0e7f7a84"


@pytest.mark.parametrize(
    ("entry", "message", "where"),
    [
        ({"pattern": ["mha", "mqa", "gqa"]}, "of 3 components is longer than 2 layers", "pattern"),
        ({"layers": {0: "mha"}}, "a pattern is a list of components, not None", "pattern"),
        ({"pattern": ["mha", "mhq"]}, "'mhq' is not an attention; allowed", 1),
        ({"pattern": ["mha"], "layers": {2: "mqa"}}, "layer 2: must be a whole number from -2", 2),
        ({"pattern": ["mha"], "layers": {0: "mqa", -2: "mqa"}}, "layer -2 is set twice", -2),
        ({"pattern": ["mha"], "layer": {}}, "a pattern has no key 'layer'; allowed", "layer"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_in_one_line_at_its_place(entry, message, where):
    with pytest.raises(ConfigError) as caught:
        patterns.resolve_slot(ATTENTIONS, entry, 2, ("model", "attention"))
    assert message in caught.value.message
    assert caught.value.where[-1] == where
    assert "\n" not in caught.value.message


#: But for the one that compares with a model of another depth.
LAWS = [law.__name__ for law in laws.laws.LAWS]


@pytest.mark.parametrize("law", LAWS)
def test_a_model_whose_layers_all_differ_obeys_the_laws(law):
    laws.obeys(model_of(MIXED, layers=6, init_std=0.3), law)


@pytest.mark.parametrize("position", [MIXED["position"], {"pattern": ["t5", "none", "alibi"]}])
def test_each_layer_of_a_pattern_computes_what_it_does_alone(position):
    laws.each_layer_computes_what_it_does_alone(
        model_of(MIXED | {"position": position}, layers=6, init_std=0.5)
    )


def test_a_model_whose_layers_all_differ_learns_decays_as_declared_and_is_counted(spec):
    laws.only_what_is_declared_decays(model_of(MIXED, layers=6))
    laws.initial_values_are_those_declared(spec(layers=6, **MIXED))
    mixed = spec(layers=6, **MIXED)
    assert spec_from(mixed.to_dict()) == mixed
    model, counts = build(mixed), count(mixed)
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    assert counts.flops_per_token == model.flops()
    # Three windows of 5 tokens, two full caches of 2 heads of 24, and a latent of 32 + 4.
    assert counts.state_bytes == 2 * (3 * 5 * 2 * 4 * 8 + 2 * 24 * 2 * 2 * 8 + 24 * 36)


@torch.no_grad()
def test_windows_that_differ_by_layer_see_as_far_as_each_allows():
    """Three layers with windows 2, 3, 4 see 1 + 2 + 3 tokens back, and no further."""
    attention = {"pattern": [{"name": "mha", "window": width} for width in (2, 3, 4)]}
    model = model_of({"attention": attention}, layers=3, init_std=0.5)
    changed = TOKENS.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 61
    moved = (model(TOKENS) - model(changed)).abs().amax((0, 2)) > 0
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13, 14, 15, 16]


def test_a_solved_width_holds_in_every_layer_that_has_one(spec):
    mixed = spec(layers=4, feedforward={"pattern": ["relu", "swiglu"]}).with_width(24)
    assert [block.ffn.width for block in build(mixed).blocks] == [24] * 4
