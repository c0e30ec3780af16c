"""The coordinate check: slopes of known power laws, and what models of two widths show."""

import json
import math

import pandas as pd
import pytest

from analysis.coordcheck import figure
from analysis.coordcheck.__main__ import main
from analysis.coordcheck.trends import GROWS, SHRINKS, Trend, slope
from analysis.coordcheck.widths import at_width
from llama_ablate.commands.cli import main as llama_ablate
from llama_ablate.config.experiment import Model
from llama_ablate.errors import ConfigError

WIDTHS = (32, 64, 128, 256)


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 1.0, 2.0])
def test_a_slope_is_the_exponent_of_a_power_law(exponent):
    sizes = [0.3 * width**exponent for width in WIDTHS]
    assert slope(WIDTHS, sizes) == pytest.approx(exponent, abs=1e-9)


def test_what_is_nowhere_is_flat_and_what_is_not_finite_grows():
    assert slope(WIDTHS, [0.0] * 4) == 0
    assert slope(WIDTHS, [1.0, 1.0, math.nan, 1.0]) == math.inf
    assert slope(WIDTHS, [0.0, 0.0, 0.0, 1.0]) == math.inf


@pytest.mark.parametrize(
    ("size", "change", "verdict"),
    [
        ((0.0, 0.1), (0.1,), "flat"),
        ((0.6, 0.0), (0.0,), "grows"),  # before the first step
        ((0.0, 0.0, 0.0), (0.6, 0.0), "grows"),  # at one step of several
        ((0.0, 0.0, 0.0), (-0.5, -0.5), "flat"),  # of random initial weights
        ((0.0, 0.0, 0.0), (-1.0, -0.2), "flat"),  # at first, and not at the last step
        ((0.0, 0.0, 0.0), (-0.2, -0.8), "shrinks"),
    ],
)
def test_a_tensor_is_flat_where_it_grows_at_no_step_and_learns_at_the_last(size, change, verdict):
    assert (GROWS, SHRINKS) == (0.5, -0.75)
    assert Trend("stream 0", size, change).verdict == verdict


def test_trends_are_those_of_the_means_over_seeds():
    """One seed of half and one of one and a half times a power law."""
    rows = [
        {"parametrization": name, "place": "stream 0", "step": step, "width": width, "seed": seed}
        | {"size": factor * width, "change": factor * step * width**exponent}
        for name, exponent in (("standard", 1.0), ("mup", 0.0))
        for seed, factor in enumerate((0.5, 1.5))
        for width in WIDTHS
        for step in range(3)
    ]
    trends = figure.trends(pd.DataFrame(rows))
    assert list(trends) == ["standard", "mup"]
    for name, exponent in (("standard", 1.0), ("mup", 0.0)):
        (trend,) = trends[name]
        assert trend.size == pytest.approx((1.0, 1.0, 1.0))
        assert trend.change == pytest.approx((exponent, exponent), abs=1e-9)


def model(**changes):
    return Model.check({"dim": 64, "layers": 1, "heads": 4, "context": 16, **changes})


def test_a_wider_model_has_more_heads_and_a_feedforward_network_of_the_same_ratio():
    spec = at_width(model(feedforward={"name": "relu", "width": 160}), 256, 61)
    assert (spec.dim, spec.heads, spec.head_dim, spec.vocab) == (256, 16, 16, 61)
    assert spec.feedforward["width"] == 640


def test_with_a_base_of_the_heads_a_wider_model_has_wider_heads():
    spec = at_width(model(parametrization={"name": "mup", "base_head_dim": 16}), 256, 61)
    assert (spec.heads, spec.head_dim) == (4, 64)


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="width 40: the number of its heads would be no whole"):
        at_width(model(), 40, 61)


def test_standard_activations_grow_with_width_and_those_of_mup_do_not(
    experiment_file, tmp_path, capsys
):
    """The measured case that the bound rests on, at a fourfold width."""
    file = experiment_file(
        "{axes: {parametrization: [{name: mup, base_dim: 16}]}}",
        model="{dim: 16, layers: 1, heads: 1, context: 16, init_std: 0.1}",
    )
    options = ["--widths", "16,64,256", "--steps", "3", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main([str(file), *options, "--json"])
    assert ended.value.code == 0
    values = json.loads(capsys.readouterr().out)
    standard, mup = values["parametrizations"]
    assert (standard["name"], standard["flat"]) == ("standard", False)
    assert (mup["name"], mup["flat"]) == ("mup-base_dim=16", True)
    grows = {of["place"]: of["verdict"] for of in standard["tensors"]}
    assert grows["attention 0"] == grows["feed-forward 0"] == grows["stream 0"] == "grows"
    changes = {of["place"]: of["change"][-1] for of in standard["tensors"]}
    assert changes["feed-forward 0"] > 1
    written = pd.read_csv(tmp_path / "out" / "coordcheck.csv")
    assert len(written) == 2 * 3 * 2 * 4 * 5  # parametrizations, widths, seeds, steps, tensors
    assert (tmp_path / "out" / "coordcheck.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--widths", "64"], "'64' is not two or more whole numbers"),
        (["--widths", "64,64"], "two or more different widths"),
        (["--widths", "16,18"], "tiny.yaml:2:1: model: width 18: the number of its heads"),
    ],
)
def test_widths_that_cannot_be_compared_are_refused_in_one_line(
    experiment_file, tmp_path, capsys, options, message
):
    file = experiment_file("{axes: {norm: [layernorm]}}", model="{dim: 16, heads: 4, context: 16}")
    out = ["--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main([str(file), *options, *out])
    *_usage, error = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert message in error
    assert not (tmp_path / "out").exists()


def test_the_width_cannot_scale_initial_weights_twice(experiment_file, capsys):
    file = experiment_file(
        "{axes: {parametrization: [mup]}}",
        model="{dim: 16, heads: 2, context: 16, init_std: 1/sqrt(dim)}",
    )
    assert llama_ablate(["plan", str(file)]) == 2
    assert "'1/sqrt(dim)': 'mup' scales initial weights itself" in capsys.readouterr().err
