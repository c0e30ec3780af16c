import re

import pytest

from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError, nearest


def write(tmp_path, text, name="x.yaml"):
    file = tmp_path / name
    file.write_text(text, "utf-8")
    return file


MINIMAL = "name: x\ntrain: {steps: 1}\n"


def test_a_file_is_laid_over_its_preset_key_by_key(tmp_path):
    text = MINIMAL + "base: transformer-2017\nmodel: {dim: 96, block: pre}\n"
    model = experiment.load(write(tmp_path, text)).experiment.model
    assert (model.dim, model.block) == (96, "pre")
    assert (model.layers, model.position, model.bias) == (6, "sinusoidal", True)


def test_a_component_entry_is_replaced_whole(tmp_path):
    text = MINIMAL + "base: llama2-tiny\nmodel: {norm: {name: layernorm}}\n"
    loaded = experiment.load(write(tmp_path, text)).experiment
    assert loaded.model.norm == {"name": "layernorm"}


def test_a_file_may_be_based_on_another_file(tmp_path):
    write(tmp_path, MINIMAL + "model: {dim: 40, layers: 3}\nseeds: 7\n", "parent.yaml")
    child = write(tmp_path, "name: child\nbase: parent.yaml\nmodel: {dim: 48}\n", "child.yaml")
    loaded = experiment.load(child).experiment
    assert (loaded.name, loaded.model.dim, loaded.model.layers, loaded.seeds) == ("child", 48, 3, 7)


def test_a_file_may_replace_the_budget_of_its_base(tmp_path):
    write(tmp_path, MINIMAL, "parent.yaml")
    child = write(tmp_path, "name: c\nbase: parent.yaml\ntrain: {tokens: 500}\n", "child.yaml")
    loaded = experiment.load(child).experiment
    assert (loaded.train.tokens, loaded.train.steps) == (500, None)


def test_texts_stand_in_place_of_the_data_of_a_base_and_the_other_way_round(tmp_path):
    texts = "texts: [{name: a, corpus: recall}]\n"
    write(tmp_path, MINIMAL + "data: {tokenizer: chars}\n", "data.yaml")
    write(tmp_path, MINIMAL + texts, "texts.yaml")
    child = write(tmp_path, "name: c\nbase: data.yaml\n" + texts, "child.yaml")
    assert [data.name for data in experiment.load(child).experiment.texts] == ["a"]
    child = write(tmp_path, "name: c\nbase: texts.yaml\ndata: {corpus: files}\n", "child.yaml")
    assert experiment.load(child).experiment.texts == []
    loaded = experiment.load(tmp_path / "data.yaml", ("texts=[{name: b, corpus: recall}]",))
    assert [data.name for data in loaded.experiment.texts] == ["b"]
    with pytest.raises(ConfigError, match="'texts' stands in place of 'data'"):
        experiment.load(tmp_path / "texts.yaml", ("data.tokenizer=chars",))


def test_tokens_per_parameter_stand_in_place_of_the_length_of_a_base_and_the_other_way_round(
    tmp_path,
):
    def lengths(path, *sets):
        read = experiment.load(path, sets).experiment
        return read.train.tokens, read.train.steps, read.sizes.tokens_per_parameter

    sizes = "sizes: {models: [{dim: 16}, {dim: 32}], tokens_per_parameter: 20}\n"
    ladder = write(tmp_path, "name: ladder\n" + sizes, "ladder.yaml")
    assert lengths(ladder) == (None, None, 20)
    assert lengths(ladder, "train.steps=5") == (None, 5, None)
    child = write(tmp_path, "name: c\nbase: ladder.yaml\ntrain: {tokens: 500}\n", "child.yaml")
    assert lengths(child) == (500, None, None)
    write(tmp_path, MINIMAL, "parent.yaml")
    child = write(tmp_path, "name: c\nbase: parent.yaml\n" + sizes, "child.yaml")
    assert lengths(child) == (None, None, 20)


def test_an_error_in_a_base_file_is_shown_in_the_base_file(tmp_path):
    write(tmp_path, MINIMAL + "model:\n  dim: wide\n", "parent.yaml")
    child = write(tmp_path, "name: child\nbase: parent.yaml\n", "child.yaml")
    with pytest.raises(ConfigError, match=r"parent\.yaml:4:8: model\.dim: 'wide'"):
        experiment.load(child)


def test_files_in_a_circle_are_refused(tmp_path):
    write(tmp_path, MINIMAL + "base: b.yaml\n", "a.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml:3:7: base: 'b\.yaml' is based on itself"):
        experiment.load(write(tmp_path, MINIMAL + "base: a.yaml\n", "b.yaml"))


def test_set_overrides_keys_options_and_lists(tmp_path):
    sets = (
        "train.lr=3e-4",
        "model.norm.eps=1e-5",
        "seeds=[4, 5]",
        "model.position={name: rope}",
        "data.corpus.path=../some where/x.txt",
        "train.tokens=10",
    )
    text = MINIMAL + "model: {norm: layernorm}\ndata: {corpus: files}\n"
    loaded = experiment.load(write(tmp_path, text), sets).experiment
    assert loaded.train.lr == 3e-4
    assert loaded.model.norm == {"name": "layernorm", "eps": 1e-5}
    assert loaded.seed_list == (4, 5)
    assert loaded.data.corpus == {"name": "files", "path": "../some where/x.txt"}
    assert (loaded.train.tokens, loaded.train.steps) == (10, None)


def test_names_of_other_scripts_have_folders_of_their_own_and_latin_ones_keep_theirs():
    names = [
        "\u7814\u7a76",
        "\u7814\u7a76\u5ba4",
        "\u0434\u0438\u043d",
        "\u0434\u0438\u043d!",
        "\u0926\u093f\u0928",
        "\u0926\u093e\u0928",
        "\u7814" * 100,
        "\u7814" * 101,
        "!",
        "\xe9",
        "\xfc",
        "\U0001f600",
    ]
    folders = [experiment.slug(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[0].startswith("\u7814\u7a76-")
    assert max(len(folder.encode()) for folder in folders) <= 47
    for name in (
        "RoPE theta=500000",
        "Caf\xe9 M\xfcller",
        "norms \u2013 \u201ca look\u201d",
        "Vi\u1ec7t \u0142",
        "10 \xb5s",
        "x" * 50,
    ):
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
        assert experiment.slug(name) == plain


@pytest.mark.parametrize("text", ["lr", "=3", ".lr=3", "train.=3", "train..lr=3", "train.lr.x=3"])
def test_a_set_that_makes_no_sense_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="--set"):
        experiment.load(write(tmp_path, "name: x\ntrain: {steps: 1, lr: 1e-3}\n"), (text,))


def test_a_wrong_value_given_with_set_is_shown_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--set train\.lr=x:1:10: train\.lr: 'x'"):
        experiment.load(write(tmp_path, MINIMAL), ("train.lr=x",))


def test_set_reaches_into_lists(tmp_path):
    file = write(
        tmp_path,
        "variants: {axes: {attention: [gqa, {name: mha, window: 8}], train.lr: [1e-3]}}\n"
        "model: {attention: {pattern: [{name: mha, window: 16}, mha]}}\n"
        "hypotheses: [{variant: a, direction: better}]\ntrain: {steps: 1}\n",
    )
    sets = (
        "variants.axes.attention.0.qk_norm=true",
        "variants.axes.attention.1=mqa",
        "variants.axes.train.lr.0=2e-3",
        "attention.pattern.0.window=32",
        "hypotheses.0.direction=worse",
    )
    loaded = experiment.load(file, sets).experiment
    assert loaded.variants.axes == {
        "attention": [{"name": "gqa", "qk_norm": True}, "mqa"],
        "train.lr": [2e-3],
    }
    assert loaded.model.attention == {"pattern": [{"name": "mha", "window": 32}, "mha"]}
    assert loaded.hypotheses[0].direction == "worse"
    for wrong in ("variants.axes.attention.2=mha", "hypotheses.first.direction=worse"):
        with pytest.raises(ConfigError, match=r"^--set .*: \S+ has the entries 0 to [01]$"):
            experiment.load(file, (wrong,))


@pytest.mark.parametrize("name", experiment.presets())
def test_every_preset_is_a_valid_recipe(name):
    assert experiment.preset(name).model.vocab is not None


def test_every_experiment_of_the_repository_is_valid():
    from pathlib import Path

    files = sorted((Path(__file__).parents[1] / "experiments").rglob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        assert experiment.load(file).experiment.question


def test_a_file_without_a_name_has_that_of_the_file_and_never_its_bases(tmp_path):
    write(tmp_path, MINIMAL, "parent.yaml")
    child = write(tmp_path, "base: parent.yaml\n", "my heads.yaml")
    assert experiment.load(child).experiment.name == "my heads"
    assert experiment.load(child, ("name=other",)).experiment.name == "other"
    assert experiment.load(tmp_path / "parent.yaml").experiment.name == "x"


def test_set_knows_the_keys_of_a_model_and_axes_whose_names_hold_dots(tmp_path):
    sets = (
        "position.theta=5e5",
        "attention={name: gqa}",
        "attention.kv_heads=4",
        "dim=96",
        "variants.axes.train.lr=[0.1, 0.2]",
        "variants.axes.position.theta=[1e4]",
        "controls.positive.train.lr=1e-5",
    )
    loaded = experiment.load(write(tmp_path, MINIMAL), sets).experiment
    assert loaded.model.position == {"name": "rope", "theta": 5e5}
    assert loaded.model.attention == {"name": "gqa", "kv_heads": 4}
    assert loaded.model.dim == 96
    assert loaded.variants.axes == {"train.lr": [0.1, 0.2], "position.theta": [1e4]}
    assert loaded.controls.positive == {"train.lr": 1e-5}
    with pytest.raises(ConfigError, match=r"--set sedes\.x=3:1:9: sedes: unknown key"):
        experiment.load(write(tmp_path, MINIMAL), ("sedes.x=3",))


@pytest.mark.parametrize(
    ("word", "allowed", "meant"),
    [
        ("RMSNorm", ["layernorm", "rmsnorm"], "'rmsnorm'"),
        ("one_at_a_time", ["one-at-a-time", "path"], "'one-at-a-time'"),
        ("factorial", ["fraction", "path", "product"], "'fraction' or 'product'"),
        ("grid", ["fraction", "path", "product"], "'product'"),
        ("n_layers", ["heads", "layers"], "'layers'"),
        ("hidden_size", ["dim", "heads"], "'dim'"),
        ("learning_rate", ["lr", "steps"], "'lr'"),
        ("train", ["plan", "run", "trace"], "'run'"),
        ("rmsnrm", ["layernorm", "rmsnorm"], "'rmsnorm'"),
        ("lr", ["norm", "train.lr", "train.min_lr"], "'train.lr'"),
        ("learning_rate", ["norm", "train.lr"], "'train.lr'"),
        ("trian", ["plan", "run", "trace", "track"], "'run'"),
        ("flash", ["gqa", "mha", "mla"], "'mha'"),
        ("qknorm", ["layernorm", "mha-qk_norm=true"], "'mha-qk_norm=true'"),
    ],
)
def test_a_hint_knows_capitals_marks_and_the_words_of_other_projects(word, allowed, meant):
    assert nearest(word, allowed).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("key", "meant"),
    [("lr", "train.lr"), ("warmup", "train.warmup"), ("corpus", "data.corpus")],
)
def test_a_key_without_its_section_is_told_with_it(tmp_path, key, meant):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'.*; did you mean '{meant}'"):
        experiment.load(write(tmp_path, MINIMAL), (f"{key}=1e-3",))


def test_a_word_that_means_nothing_has_no_hint():
    assert nearest("qqqq", ["layernorm", "rmsnorm"]) == "; allowed: layernorm, rmsnorm"
    assert nearest("theta", ["data", "model"], ["train.tokens"]) == "; allowed: data, model"
