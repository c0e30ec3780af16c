"""Maps of attention and frequencies of rotations, beside what a walk-through of Llama 3 prints."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.config.spec import resolve_slot as resolve
from llama_ablate.errors import ConfigError
from llama_ablate.interop.attention_figures import AttentionMaps
from llama_ablate.interop.attention_maps import attention_maps
from llama_ablate.interop.loader import open_model
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import new_model
from llama_ablate.report import pictures
from tests.conftest import make_spec
from tests.in_process import run_script, save_nothing
from tests.interop.checkpoints import write_llama3

SCRIPTS = Path(__file__).parents[2] / "analysis"
PROMPT = "the answer to the ultimate question of life, the universe, and everything is "


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_llama3(tmp_path_factory.mktemp("llama3") / "checkpoint")


@pytest.fixture(scope="module")
def opened(checkpoint):
    return open_model(checkpoint)


def test_the_maps_of_the_walk_throughs_prompt_have_17_labelled_tokens(opened):
    maps = attention_maps(opened, opened.tokenizer.prompt(PROMPT))
    assert maps.weights.shape == (2, 4, 17, 17)
    assert maps.labels[:3] == ["<|begin_of_text|>", "the", " answer"]
    np.testing.assert_allclose(maps.weights.sum(-1), 1, rtol=1e-5)
    assert not np.triu(maps.weights, 1).any()
    assert np.isneginf(maps.masked[0, 0][np.triu_indices(17, 1)]).all()
    lower = np.tril_indices(17)
    assert np.array_equal(maps.scores[0, 0][lower], maps.masked[0, 0][lower])


def test_maps_name_the_layers_that_have_any(opened, tmp_path):
    prompt = opened.tokenizer.prompt("the answer")

    def maps_of(*mixers):
        attention = resolve(REGISTRIES["attention"], {"pattern": mixers}, len(mixers))
        spec = make_spec(layers=len(mixers), vocab=opened.model.spec.vocab)
        spec = replace(spec, attention=attention)
        return attention_maps(replace(opened, model=new_model(spec, 0)), prompt)

    maps = maps_of("gated_delta", "mha", "gated_delta", "gqa")
    assert (maps.layers, len(maps.weights)) == ([1, 3], 2)
    again = AttentionMaps.load(maps.save(tmp_path / "maps.npz"))
    assert again.layers == [1, 3]
    assert again.distance(3) == maps.distance(3) != maps.distance(1)
    with pytest.raises(ConfigError, match="--layer 2: allowed are 1, 3"):
        again.head(2, 0)
    with pytest.raises(ConfigError, match="--head 4: allowed are 0, 1, 2, 3"):
        again.head(1, 4)
    with pytest.raises(ConfigError, match="600 tokens; allowed: 1 to 512"):
        attention_maps(opened, [1] * 600)
    with pytest.raises(ConfigError, match="is an attention: it has no maps"):
        maps_of("gated_delta", "gated_delta")


def test_the_figure_of_a_head_shows_labels_colours_and_what_is_hidden(opened):
    maps = attention_maps(opened, opened.tokenizer.prompt("the answer"))
    assert len(maps.labels) == 3
    panels = [axes for axes in maps.head(1, 3).axes if axes.get_title()]
    titles = [axes.get_title() for axes in panels]
    assert titles == ["scores", "scores with the mask", "probabilities"]
    for axes in panels:
        assert len(axes.get_xticklabels()) == 3
        assert axes.get_xticklabels()[2].get_text() == "\u2423answer"
        assert axes.collections[0].colorbar is not None
    hidden = panels[1].collections[0].get_array()
    assert np.ma.count_masked(hidden) == 3


def of_weights(weights, labels, title="t"):
    return AttentionMaps(weights, weights, weights, labels, title, [*range(len(weights))])


def test_how_far_a_head_looks_back_by_hand():
    maps = of_weights(np.array([[[[1.0, 0.0], [0.25, 0.75]]]]), ["a", "b"])
    assert maps.distance(0) == [0.125]  # the first query looks at itself, the second 0.25 back


def test_tokens_and_titles_are_never_formulas_or_control_characters(tmp_path):
    weights = np.tril(np.ones((1, 1, 3, 3)))
    maps = of_weights(weights, ["$\\frac{$", "\x00", "\t"], "a$\\frac{$")
    pictures.save(maps.head(0, 0), tmp_path / "x")
    assert "\x00" not in (tmp_path / "x.svg").read_text("utf-8")


def test_a_file_that_holds_code_is_not_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", scores=np.array([print], dtype=object))
    with pytest.raises(ConfigError, match="holds no attention maps"):
        AttentionMaps.load(tmp_path / "x.npz")


@pytest.mark.full
def test_attention_writes_figures_and_arrays_that_the_script_draws_again(
    checkpoint, tmp_path, answer
):
    out = tmp_path / "out"
    command = ["attention", checkpoint, "--prompt", PROMPT, "--out", out]
    answer(*command)
    pictures = {f"layer-{n}.{kind}" for n in (0, 1) for kind in ("png", "svg")}
    assert {p.name for p in out.iterdir()} == {"attention.npz", *pictures}
    values = answer(*command, "--layer", "1", "--head", "2", "--json")
    assert values["tokens"][0] == 128000
    assert any(name.endswith("layer-1-head-2.png") for name in values["files"])
    script = SCRIPTS / "attention_maps.py"
    ran = run_script(script, out / "attention.npz", "--head", "1", "--out", tmp_path / "again")
    assert ran.returncode == 0
    assert "layer 0, head 3: looks" in ran.stdout
    assert (tmp_path / "again.png").stat().st_size > 5000


#: Printed by the walk-through for a base of 500,000 and heads of 128, to five digits.
PRINTED = {0: 1.0000e00, 1: 8.1462e-01, 2: 6.6360e-01, 63: 2.4551e-06}


def rope(*words):
    """Return what `rope_frequencies.py` says of some models."""
    ran = run_script(SCRIPTS / "rope_frequencies.py", *words, "--json")
    return json.loads(ran.stdout)["radians_per_position"]


def test_rope_gives_the_64_frequencies_of_the_walk_through(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "write", save_nothing)
    rates = rope("llama3-8b", "--out", tmp_path / "x")["llama3-8b"]
    assert len(rates) == 64
    for pair, value in PRINTED.items():
        assert rates[pair] == pytest.approx(value, rel=5e-5)
    for pair, rate in enumerate(rates):
        assert rate == pytest.approx(500000.0 ** (-2 * pair / 128), rel=1e-12)


@pytest.mark.full
def test_rope_shows_a_scaled_rotation_beside_the_unscaled_one(tmp_path):
    scaled, plain, _ = rope("llama3.1-405b", "llama2-7b", "--out", tmp_path / "x").values()
    assert scaled[0] == plain[0]
    assert scaled[63] == pytest.approx(plain[63] / 8)
    assert (tmp_path / "x.png").stat().st_size > 5000
