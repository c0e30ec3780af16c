"""The half width that a plan expects, against tables drawn here and judged by its rules."""

import math

import numpy as np
import pytest

from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.findings.precision import Noise, Rows, expect, find_noise
from tests.tables import frames


def draw(generator, tables, seeds, rows, text, df):
    """Draw the differences of arms that share a baseline, and the estimated errors of the text."""
    arms, base = (generator.normal(size=(tables, of, seeds)) for of in (rows, 1))
    shift = text * generator.normal(size=(tables, rows, 1))
    errors = text * np.sqrt(generator.chisquare(df, (tables, rows)) / df)
    return (arms - base) / math.sqrt(2) + shift, errors, df, ALPHA / rows


@pytest.mark.parametrize(("seeds", "rows", "text"), [(2, 4, 0.0), (4, 1, 0.3), (8, 5, 0.3)])
def test_the_expected_half_width_is_about_the_median_of_drawn_tables(seeds, rows, text):
    found = estimate(*draw(np.random.default_rng(seeds), 4_000, seeds, rows, text, 40.0))
    expected = Rows(rows, Noise(1.0, text, 40.0)).half_width(seeds)
    assert expected == pytest.approx(np.median(found["high"] - found["mean"]), rel=0.15)


def test_the_noise_of_a_pilot_is_that_of_its_rows():
    base, noise = np.array([2.0, 2.1, 2.2, 2.1]), np.array([0.01, -0.01, 0.02, 0.0])
    losses = {"base": base, "a": base + noise, "b": base - 2 * noise}
    pilot = frames({"": {label: own.tolist() for label, own in losses.items()}})
    # Either variance is moderated by the other's: with weight 3, and 3/2 for the larger.
    a, b = noise.var(ddof=1), 4 * noise.var(ddof=1)
    moderated = (3 * b + 3 * a) / 6, (1.5 * a + 3 * b) / 4.5
    found = find_noise(pilot.table)
    assert (found.seeds, found.text) == (pytest.approx(math.sqrt(np.mean(moderated))), 0)
    assert find_noise(frames({"": {"base": [2.0] * 3, "a": [2.0] * 3}}).table) is None
    values = expect(pilot.plan, Noise(found.seeds, 0.01), 0.1)
    assert values["half_width"] == Rows(2, Noise(found.seeds, 0.01)).half_width(4)
    assert values["half_width_with_more_text"] < values["half_width"]


def test_seeds_narrow_what_seeds_limit_and_not_what_the_text_limits():
    by_text, by_seeds = Rows(1, Noise(0.1, 1.0, 40.0)), Rows(1, Noise(1.0, 0.05, 40.0))
    assert by_text.fewest_seeds(1.0) is None
    seeds = by_seeds.fewest_seeds(1.0)
    assert by_seeds.half_width(seeds) < 1.0 <= by_seeds.half_width(seeds - 1)


def test_a_look_that_spends_half_of_the_error_widens_the_interval_as_two_rows_do():
    noise = Noise(1.0, 0.3, 40.0)
    whole, half = Rows(4, noise, share=1.0), Rows(2, noise, share=0.5)
    assert half.half_width(6) == whole.half_width(6)
    assert math.isnan(whole.half_width(1))
