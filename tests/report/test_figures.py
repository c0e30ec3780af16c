"""Figures: a metric gets its own, variants are told apart, and small effects are seen."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from llama_ablate.findings.frames import Frames
from llama_ablate.report import picture, plots
from llama_ablate.report.sections import FIGURES
from llama_ablate.results import Results, Store
from llama_ablate.results.record import Measurement, Value, row
from tests import plans

SEEDS = (0, 1, 2)


@pytest.fixture
def frames(tmp_path):
    """Read an experiment of variants whose losses are the baseline's and some effect."""

    def read(effects, measured=lambda _label, _seed: {}, variant_rows=lambda _label: {}):
        arms = [plans.variant(label) for label in ("base", *effects)]
        runs = [plans.run(f"{v.id}{seed}", v.id, seed) for v in arms for seed in SEEDS]
        store = Store(tmp_path / "x")
        store.create(plans.document(plans.table(arms, runs), seeds=len(SEEDS)), "name: x\n")
        for run in runs:
            effect = {"base": 0.0, **effects}[run.variant]
            loss = 2 + 0.1 * run.seed + effect * (1 + 0.01 * run.seed)
            nats = row("test_loss_nats", loss, "nats", "loss", split="test")
            known = {"perplexity": Measurement((nats,)), **measured(run.variant, run.seed)}
            curve = [
                {"step": t, "tokens": t, "validation_loss_nats": loss + 1 / t} for t in (1, 2, 4)
            ]
            record = replace(plans.RECORD, id=run.id, label=run.variant, variant=run.variant)
            store.commit(replace(record, seed=run.seed, metrics=known), curve, None)
        with store.alone("measure") as lease:
            for arm in arms:
                for name, metric in variant_rows(arm.label).items():
                    store.add_metric(lease, store.variant_folder(arm.label, arm.id), name, metric)
        return Frames.of(Results(store.root))

    return read


def by_name(frames):
    """The figures of metrics with their captions."""
    made = {one.name: one for one in FIGURES.make(frames)}
    return {
        name.removeprefix("metrics_"): (plots.draw(one.part), f"{one.about} {one.part.note}")
        for name, one in made.items()
        if name.startswith("metrics_")
    }


@pytest.mark.full
def test_a_plugins_metric_is_drawn_along_its_numeric_coordinate_with_its_unit(frames):
    def sharpness(label, seed):
        times = 2 if label == "other" else 1
        values = [
            row(f"{s}_{k}", times * (k + seed), "bits", "sharpness", head=k, side=s)
            for k in (1, 3, 9)
            for s in ("left", "right")
        ]
        whole = row("whole", times, "bits", "whole_sharpness")
        return {"sharpness": Measurement((*values, whole))}

    found = by_name(frames({"other": 0.1}, sharpness))
    assert set(found) == {"sharpness", "sharpness_by_variant"}
    drawing, caption = found["sharpness"]
    left, right = drawing.figure.axes
    titles = [axes.get_title(loc="left") for axes in (left, right)]
    assert titles == ["side left", "side right"]
    assert (left.get_xlabel(), left.get_ylabel()) == ("head", "sharpness (bits)")
    assert left.get_xscale() == "log"  # 1, 3, 9
    lines = [line for line in left.lines if len(line.get_xdata()) == 3]
    assert [list(line.get_ydata()) for line in lines] == [[2, 4, 10], [4, 8, 20]]
    assert "Metric: sharpness. Bars are 95% intervals over n = 3 seeds." in caption
    (whole,) = found["sharpness_by_variant"][0].figure.axes
    assert whole.get_xlabel() == "whole sharpness (bits)"
    assert [tick.get_text() for tick in whole.get_yticklabels()] == ["base", "other"]


def test_bars_are_students_95_percent_intervals_over_seeds(frames):
    values = {"base": [1.0, 2.0, 4.0], "other": [2.0, 2.0, 2.0]}
    read = frames({"other": 0.1}, lambda label, seed: {"m": plainly(x=values[label][seed])})
    base, other = picture.over_seeds(
        (row.label, 0, row.seed, row.value) for row in read.metrics if row.metric == "m"
    )
    expected = stats.t.interval(0.95, 2, np.mean(values["base"]), stats.sem(values["base"]))
    assert (base.at.low, base.at.high) == pytest.approx(expected)
    assert (*other.at, other.n) == (2, 2, 2, 3)


def test_bars_of_shares_times_and_norms_do_not_reach_below_zero(frames):
    values = {"base": [0.0, 0.0, 0.3], "other": [0.1, 0.4, 2.0]}

    def measured(label, seed):
        nats = row("gap", values[label][seed], "nats")
        return {"m": Measurement((row("share", values[label][seed]), nats))}

    drawing, _ = by_name(frames({"other": 0.1}, measured))["m"]
    least = {
        axes.get_xlabel(): min(min(line.get_xdata()) for line in bars(axes))
        for axes in drawing.figure.axes
    }
    assert least["gap (nats)"] < 0 <= least["share"]


def bars(axes):
    """Return the lines from one end of an interval to the other."""
    return [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() == 2]


def plainly(**numbers):
    return Measurement(tuple(row(name, value) for name, value in numbers.items()))


def test_speeds_are_drawn_relative_to_the_baselines_with_intervals_over_processes(frames):
    def speed(label):
        ratio = np.array([1.2, 1.3, 1.25]) if label == "other" else np.ones(3)
        samples = tuple((np.array([100.0, 50.0, 200.0]) * ratio).tolist())
        value = Value("tokens_per_s", 1.0, "speed", "tokens/s", samples=samples, turns=(1, 1, 1))
        return {"my_speed": Measurement((value,))}

    drawing, caption = by_name(frames({"other": 0.1}, variant_rows=speed))["my_speed"]
    (axes,) = drawing.figure.axes
    assert axes.get_xlabel() == "speed, times the baseline's"
    points = [x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()]
    assert points == pytest.approx([1.0, stats.gmean([1.2, 1.3, 1.25])])
    assert "95% intervals over n = 3 processes" in caption


def test_one_large_effect_does_not_hide_the_small_ones(frames):
    read = frames({"huge": 3.0, "little": 0.01, "tiny": -0.02})
    (axes,) = plots.draw(FIGURES["effects"](read)).figure.axes
    assert 0.02 < axes.get_xlim()[1] < 0.1
    (text,) = axes.texts
    assert re.fullmatch(r"\+3\.03\d* \[\+[\d.]+, \+[\d.]+\] \N{RIGHTWARDS ARROW}", text.get_text())


def test_better_and_worse_differ_in_shape_and_point_to_their_side(frames):
    axes = plots.draw(FIGURES["effects"](frames({"better": -0.5, "worse": 0.5}))).figure.axes[0]
    shapes = {line.get_marker() for line in axes.lines if line.get_markersize() == 6.5}
    assert shapes == {"<", ">", "D"}


def test_a_variant_has_one_colour_in_all_pictures_and_no_two_of_32_share_colour_and_dash(frames):
    read = frames({"a": 0.1, "b": 0.2})
    keys, styles = picture.key_variants(read.plan), picture.style_variants(read.plan)
    colours = set()
    for one in FIGURES.make(read):
        drawing = plots.draw(one.part, keys=keys)
        lines = [line for axes in drawing.figure.axes for line in axes.lines]
        colours |= {line.get_color() for line in lines if read_v(drawing, line) == "v1"}
    assert colours == {styles["a"].colour}
    many = picture.style_names(str(n) for n in range(32)).values()
    assert len({(style.colour, style.dash) for style in many}) == 32
    assert styles["base"].colour not in {style.colour for style in many}


def read_v(drawing, artist):
    """Return the key of the variant that an artist is about."""
    return drawing.about.get(artist.get_gid(), {}).get("data-v")


@pytest.mark.parametrize("ground", ["#ffffff", "#17181b"])
def test_colours_have_a_contrast_of_three_on_both_grounds(ground):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return np.dot(linear, [0.2126, 0.7152, 0.0722])

    for colour in picture.COLOURS:
        light, dark = sorted([luminance(colour), luminance(ground)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3
