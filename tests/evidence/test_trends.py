"""Trends of gaps with size, and learning-rate sensitivity."""

import math

import numpy as np
import pytest

from llama_ablate.evidence.trends import fit_gaps, sensitivity

SIZES_3 = [1e4, 1e5, 1e6]
NOISE = np.array([-0.002, 0.0, 0.002, 0.001, -0.001])


def differences(*means, tilt=0.0):
    """Return differences by seed for each size; `tilt` gives seeds slopes of their own."""
    middle = (len(means) - 1) / 2
    return {
        x: list(mean + NOISE * (1 + tilt * (i - middle)))
        for i, (x, mean) in enumerate(zip(SIZES_3, means, strict=True))
    }


def gap(values, margin=None):
    return fit_gaps({"": values}, margin).loc[""]


@pytest.mark.parametrize(
    ("values", "margin", "trend"),
    [
        (differences(-0.01, -0.03, -0.05, tilt=1), None, "grows"),
        (differences(0.05, 0.03, 0.01, tilt=1), None, "closes"),
        (differences(-0.05, -0.01, 0.03, tilt=1), None, "reverses"),
        (differences(0.05, 0.0, -0.05, tilt=1), None, "reverses"),
        (differences(-0.03, -0.014, 0.001, tilt=1), None, "moves"),
        (differences(-0.03, -0.03, -0.03, tilt=1), 0.01, "holds"),
        (differences(-0.03, -0.03, -0.03, tilt=1), None, "undecided"),
        (differences(-0.03, -0.03, -0.03, tilt=9), 0.001, "undecided"),
    ],
)
def test_a_gap_grows_closes_reverses_moves_or_holds(values, margin, trend):
    assert gap(values, margin).trend == trend


def test_slope_intervals_cover_the_true_slope_in_95_percent_of_simulations(volume):
    tables, generator, held = volume(300, 2_000, 2_000), np.random.default_rng(0), 0
    for _ in range(tables):
        values = np.array([[-0.01], [-0.03], [-0.05]]) + generator.normal(0, 0.01, (3, 4))
        found = gap(dict(zip(SIZES_3, values.tolist(), strict=True)))
        held += found.slope_low <= -0.02 <= found.slope_high
    assert held / tables == pytest.approx(0.95, abs=4 * math.sqrt(0.05 * 0.95 / tables))


def trends(first, last, variants, seeds, count):
    """Yield the words for variants whose true gaps go from one value to another over four sizes."""
    generator = np.random.default_rng(variants)
    sizes = [10.0**n for n in range(4, 8)]
    for _ in range(count):
        base, line = generator.normal(size=(4, seeds)), np.linspace(first, last, 4)[:, None]
        drawn = {
            str(i): line + 0.01 * (generator.normal(size=(4, seeds)) + base) / math.sqrt(2)
            for i in range(variants)
        }
        named = {k: dict(zip(sizes, v.tolist(), strict=True)) for k, v in drawn.items()}
        yield fit_gaps(named)["trend"].tolist()


@pytest.mark.parametrize(("variants", "seeds"), [(3, 5), (7, 3)])
def test_of_parallel_gaps_at_most_5_percent_of_tables_say_that_one_moves(variants, seeds, volume):
    """Without a correction over variants 14 to 28% did."""
    count = volume(200, 10_000, 10_000)
    words = trends(0.03, 0.03, variants, seeds, count)
    false = sum(any(word != "undecided" for word in table) for table in words)
    assert false / count <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_gap_that_crosses_0_never_closes_and_mostly_reverses(seeds, volume):
    """By the sign of slope and mean gap it closed in 100% of tables."""
    count = volume(100, 2_000, 2_000)
    words = [word for table in trends(-0.06, 0.03, 3, seeds, count) for word in table]
    assert words.count("closes") + words.count("grows") <= 0.001 * len(words)
    assert words.count("reverses") >= (0.98 if seeds == 5 else 0.35) * len(words)


def test_learning_rate_sensitivity_is_the_mean_above_the_minimum():
    assert sensitivity([2.0, 1.0, 1.5, 3.5]) == pytest.approx((1.0 + 0.0 + 0.5 + 2.5) / 4)
    assert sensitivity([1.0, 1.0, 1.0]) == 0
    assert math.isnan(sensitivity([1.0, 2.0]))
