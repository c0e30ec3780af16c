"""Pictures: what a function draws from a frame, on axes of any figure."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import llama_ablate as la
from llama_ablate.evidence.student import quantile
from llama_ablate.findings.answer import list_costs
from llama_ablate.report import figures, page, pictures
from llama_ablate.report.contents import BASELINE, COLOURS, Styles
from tests import filled
from tests.tables import frames

ROWS = pd.DataFrame(
    {
        "variant": ["base", "good", "bad", "huge"],
        "difference": [0.0, -0.1, 0.05, 9.0],
        "low": [np.nan, -0.12, 0.02, 8.5],
        "high": [np.nan, -0.08, 0.08, 9.5],
        "verdict": ["baseline", "better", "worse", "worse"],
    }
)
LOSSES = {"base": [2.0, 2.1, 2.2], "a": [1.9, 2.0, 2.2], "b": [2.3, 2.4, 2.5]}


def axes(picture, rows, *given, **options):
    return pictures.draw(picture, rows, *given, **options).axes[0]


def test_rows_have_their_intervals_and_one_large_effect_does_not_hide_the_others():
    ax = axes(pictures.effects, ROWS, margin=0.03, seeds={"good": [-0.11, -0.09]})
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [*ROWS["variant"]]
    spans = [tuple(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    assert (-0.12, -0.08) in spans
    assert (-0.11, -0.09) in spans
    assert ax.get_xlim()[1] < 0.2
    assert [text.get_text() for text in ax.texts] == ["+9.00 [+8.50, +9.50]"]
    markers = {
        line.get_ydata()[0]: line.get_marker() for line in ax.lines if len(line.get_xdata()) == 1
    }
    assert (markers[1], markers[2]) == ("<", ">")


def test_curves_are_medians_of_seeds_smoothed_with_single_runs_thin_and_named_at_their_ends():
    tokens = np.arange(1, 61) * 100
    rows = [
        pd.DataFrame(
            {
                "variant": name,
                "run": f"{name}{seed}",
                "tokens": tokens,
                "train_loss_nats": 3.0 + n + seed,
            }
        )
        for n, name in enumerate(("a", "b"))
        for seed in (0.0, 0.1, 0.5)
    ]
    ax = axes(pictures.loss_curves, pd.concat(rows), reported={"a": 3.3})
    thick = [line for line in ax.lines if line.get_linewidth() > 1 and len(line.get_xdata()) > 9]
    assert [line.get_ydata()[-1] for line in thick] == pytest.approx([3.1, 4.1])
    assert sum(line.get_linewidth() < 1 for line in ax.lines) == 6
    assert [text.get_text() for text in ax.texts] == ["b", "a"]  # from above
    (diamond,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert list(diamond.get_ydata()) == [3.3]


def test_differences_along_training_are_paired_with_students_intervals():
    values = {("base", 0): 2.0, ("base", 1): 3.0, ("a", 0): 1.8, ("a", 1): 2.9}
    rows = pd.DataFrame(
        [
            {"variant": v, "seed": s, "tokens": t, "validation_loss_nats": x, "outcome": "ok"}
            for (v, s), x in values.items()
            for t in (10, 20)
        ]
    )
    ax = axes(pictures.learning_curves, rows, baseline="base")
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1]
    assert list(line.get_ydata()) == pytest.approx([-0.15, -0.15])
    half = quantile(0.975, 1) * 0.05
    ends = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((-0.15 - half, -0.15 + half))


def test_costs_name_the_front_without_overlap_and_never_over_a_point():
    made = frames(
        {"": {"base": [2.0, 2.1], **{f"v{n}": [2 - n / 99, 2.1] for n in range(30)}}},
        changes={f"v{n}": {"parameters": 1000 * (n + 2)} for n in range(30)},
    )
    figure = next(figures.make("costs", made))
    ax = figure.figure.axes[0]
    figure.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert boxes
    for at, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[at + 1 :])


def test_speeds_are_times_and_costs_that_are_alike_are_left_out():
    rows = ROWS.assign(
        train_speed_ratio=[1.0, 0.5, 2.0, np.nan],
        train_speed_low=[1.0, 0.4, np.nan, np.nan],
        train_speed_high=[1.0, 0.8, np.nan, np.nan],
        decode_speed_ratio=1.0,
        decode_speed_low=1.0,
        decode_speed_high=1.0,
        state_bytes=64.0,
        asked_state_bytes=np.nan,
        asked_context=np.nan,
        context=64,
        parameters=1000,
        active_parameters=1000,
        flops_per_token=1.0,
        peak_memory_bytes=1.0,
    )
    (cost,) = list_costs(rows)
    assert cost.column == "train_speed"
    ax = axes(pictures.costs, rows, cost)
    drawn = {float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() in "<>D"}
    assert drawn == {1.0, 2.0, 0.5}
    bars = [sorted(line.get_xdata()) for line in ax.lines if line.get_marker() == "None"]
    assert [1.25, 2.5] in bars


def test_a_metric_is_drawn_along_its_numeric_coordinate_and_bars_do_not_reach_below_zero():
    rows = pd.DataFrame(
        {
            "variant": "a",
            "quantity": "share_dead",
            "unit": "",
            "value": [0.0, 0.1, 0.4, 0.4],
            "context": [8, 8, 64, 64],
        }
    )
    ax = axes(pictures.metrics, rows, along="context")
    line = ax.lines[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([8, 64], pytest.approx([0.05, 0.4]))
    assert ax.collections[0].get_paths()[0].vertices[:, 1].min() == 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("context", "share dead")


def test_the_chosen_rate_has_a_ring_and_rates_are_ticks():
    rows = pd.DataFrame(
        {
            "label": "a",
            "seed": [0, 1] * 2,
            "lr": [0.1, 0.1, 0.2, 0.2],
            "loss": [2.0, 2.2, 3.0, 3.0],
            "best": [True, True, False, False],
        }
    )
    ax = axes(pictures.tuning, rows)
    (ring,) = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([0.1], pytest.approx([2.1]))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0.1", "0.2"]


def test_sizes_and_gaps_show_the_same_arms_and_every_figure_of_a_table_names_it():
    pack = "results/reference/rate-transfer"
    opened = la.open(pack)
    drawn = {}
    for name in ("sizes", "gaps"):
        (figure,) = opened.figures(name).values()
        drawn[name] = {text.get_text() for text in figure.axes[0].texts}
    assert (
        drawn["sizes"] - {"standard"}
        == drawn["gaps"]
        == {"mup", "completep", "embedding's rate", "mup without gains"}
    )
    (effects,) = opened.only("dim 96 heads 6").figures("effects").values()
    (first,) = opened.figures("effects").values()
    assert first.axes[0].get_title(loc="left") == "dim 32 heads 2"
    assert len(effects.axes[0].get_yticks()) == 6


def test_colours_differ_are_the_same_in_all_pictures_and_have_a_contrast_of_three():
    styles = Styles.of([f"v{n}" for n in range(8)], "v0")
    assert styles.colour("v0") == BASELINE
    assert len({styles.colour(f"v{n}") for n in range(8)}) == 8

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ground in ("#ffffff", "#17181b"):
        for colour in COLOURS:
            low, high = sorted((light(colour), light(ground)))
            assert (high + 0.05) / (low + 0.05) >= 3 - 0.15 * (colour == "#cc79a7"), colour


def test_equal_figures_give_equal_bytes_and_no_label_is_a_formula_or_an_element():
    rows = ROWS.assign(
        variant=["$\\frac{$", "</svg><script>", "a\x00b", "\N{CJK UNIFIED IDEOGRAPH-4E2D}"]
    )
    first, second = (pictures.draw(pictures.effects, rows) for _ in range(2))
    svg = pictures.write(first, "svg")
    assert svg == pictures.write(second, "svg")
    assert b"<script>" not in svg
    assert b"\x00" not in svg
    assert b"$\\frac{$" in svg
    for kind, begin in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        assert pictures.write(first, kind).startswith(begin)


def test_an_embedded_picture_has_variants_as_data_and_no_style_element():
    figure = pictures.draw(pictures.effects, ROWS, Styles.of([*ROWS["variant"]]))
    text = page.embed(pictures.write(figure, "svg", "x").decode(), "effects")
    assert {*re.findall(r'data-v="(v\d)"', text)} == {"v0", "v1", "v2", "v3"}
    assert "<style" not in text
    assert "<metadata" not in text
    ids = {*re.findall(r' id="([^"]+)"', text)}
    used = {*re.findall(r'(?:href="|url\()#([\w-]+)[")]', text)}
    assert used == ids


def test_a_picture_draws_on_axes_of_any_figure():
    ax = Figure().subplots()
    pictures.effects(ROWS.head(3), ax)
    assert ax.get_xlabel().startswith("difference in loss")


@pytest.mark.full
def test_a_thousand_variants_take_seconds(tmp_path):
    opened = la.open(filled.store(tmp_path / "x", 1000, 2).root)
    assert len(opened.figures("loss_curves")) == 1
