import pytest

from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError

MINIMAL = "name: x\ntrain: {steps: 1}\n"
#: A file that is based on the one with the rest of its text.
CHILD = "name: child\nbase: x.yaml\n"


@pytest.fixture
def load(tmp_path):
    """Write a file, and one that is based on it; return the experiment of the last."""

    def read(text, *sets, child="", name="child.yaml"):
        file = tmp_path / "x.yaml"
        file.write_text(text, "utf-8")
        if child:
            file = tmp_path / name
            file.write_text(child, "utf-8")
        return experiment.load(file, sets).experiment

    return read


def test_a_file_is_laid_over_its_preset_key_by_key(load):
    model = load(MINIMAL + "base: transformer-2017\nmodel: {dim: 96, block: pre}\n").model
    assert (model.dim, model.block) == (96, "pre")
    assert (model.layers, model.position, model.bias) == (6, "sinusoidal", True)
    # A component's entry is replaced whole.
    model = load(MINIMAL + "base: llama2-tiny\nmodel: {norm: {name: layernorm}}\n").model
    assert model.norm == {"name": "layernorm"}


def test_a_file_may_be_based_on_another_file(load):
    parent = MINIMAL + "model: {dim: 40, layers: 3}\nseeds: 7\n"
    of = load(parent, child=CHILD + "model: {dim: 48}\n")
    assert (of.name, of.model.dim, of.model.layers, of.seeds) == ("child", 48, 3, 7)


def test_texts_stand_in_place_of_the_data_of_a_base_and_the_other_way_round(load):
    texts = "texts: [{name: a, corpus: recall}]\n"
    data = MINIMAL + "data: {tokenizer: chars}\n"
    assert [one.name for one in load(data, child=CHILD + texts).texts] == ["a"]
    assert [one.name for one in load(data, "texts=[{name: b, corpus: recall}]").texts] == ["b"]
    assert load(MINIMAL + texts, child=CHILD + "data: {corpus: files}\n").texts == []
    with pytest.raises(ConfigError, match="'texts' stands in place of 'data'"):
        load(MINIMAL + texts, "data.tokenizer=chars")


def test_one_length_of_training_stands_in_place_of_that_of_a_base(load):
    def lengths(*given, **more):
        read = load(*given, **more)
        return read.train.tokens, read.train.steps, getattr(read.sizes, "tokens_per_parameter", 0)

    sizes = "sizes: {models: [{dim: 16}, {dim: 32}], tokens_per_parameter: 20}\n"
    ladder = "name: ladder\n" + sizes
    assert lengths(ladder) == (None, None, 20)
    assert lengths(ladder, "train.steps=5") == (None, 5, None)
    assert lengths(ladder, child=CHILD + "train: {tokens: 500}\n") == (500, None, None)
    assert lengths(MINIMAL, child=CHILD + "train: {tokens: 500}\n") == (500, None, 0)
    assert lengths(MINIMAL, child=CHILD + sizes) == (None, None, 20)


def test_set_overrides_keys_options_and_lists_and_knows_the_keys_of_a_model(load):
    sets = (
        "train.lr=3e-4",
        "model.norm.eps=1e-5",
        "seeds=[4, 5]",
        "attention={name: gqa}",
        "attention.kv_heads=4",
        "dim=96",
        "train.tokens=10",
        "variants.axes.train.lr=[0.1, 0.2]",
        "variants.axes.position.theta=[1e4]",
        "controls.positive.train.lr=1e-5",
    )
    of = load(MINIMAL + "model: {norm: layernorm}\ndata: {corpus: files}\n", *sets)
    assert (of.train.lr, of.train.tokens, of.train.steps) == (3e-4, 10, None)
    assert of.model.norm == {"name": "layernorm", "eps": 1e-5}
    assert of.model.attention == {"name": "gqa", "kv_heads": 4}
    assert (of.model.dim, of.seed_list) == (96, (4, 5))
    assert of.variants.axes == {"train.lr": [0.1, 0.2], "position.theta": [1e4]}
    assert of.controls.positive == {"train.lr": 1e-5}


def test_set_reaches_into_lists(load):
    text = (
        "variants: {axes: {attention: [gqa, {name: mha, window: 8}], train.lr: [1e-3]}}\n"
        "model: {attention: {pattern: [{name: mha, window: 16}, mha]}}\n"
        "hypotheses: [{variant: a, direction: better}]\ntrain: {steps: 1}\n"
    )
    of = load(
        text,
        "variants.axes.attention.0.qk_norm=true",
        "variants.axes.attention.1=mqa",
        "variants.axes.train.lr.0=2e-3",
        "attention.pattern.0.window=32",
        "hypotheses.0.direction=worse",
    )
    attention = [{"name": "gqa", "qk_norm": True}, "mqa"]
    assert of.variants.axes == {"attention": attention, "train.lr": [2e-3]}
    assert of.model.attention == {"pattern": [{"name": "mha", "window": 32}, "mha"]}
    assert of.hypotheses[0].direction == "worse"
    for wrong in ("variants.axes.attention.2=mha", "hypotheses.first.direction=worse"):
        with pytest.raises(ConfigError, match=r"^--set .*: \S+ has the entries 0 to [01]$"):
            load(text, wrong)
