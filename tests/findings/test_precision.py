"""The half width that a plan expects, against tables drawn here and judged by its rules."""

import math

import numpy as np
import pytest

from llama_ablate.evidence import StandardError, simultaneous
from llama_ablate.findings.precision import Noise, Rows


def table(generator, effect, seeds, rows, text, df=40.0):
    """Return the differences of arms that share a baseline, and what is estimated of the text."""
    arms, base = generator.normal(size=(rows, seeds)), generator.normal(size=seeds)
    shift = effect + text * generator.normal(size=(rows, 1))
    differences = (arms - base) / math.sqrt(2) + shift
    errors = text * np.sqrt(generator.chisquare(df, rows) / df)
    return (
        {str(i): list(row) for i, row in enumerate(differences)},
        {str(i): StandardError(float(se), df) for i, se in enumerate(errors)},
    )


@pytest.mark.parametrize(("seeds", "rows", "text"), [(2, 4, 0.0), (4, 1, 0.3), (8, 5, 0.3)])
def test_the_expected_half_width_is_about_the_median_of_drawn_tables(seeds, rows, text):
    generator = np.random.default_rng(seeds)
    halves = []
    for _ in range(300):
        values, errors = table(generator, 0.0, seeds, rows, text)
        found = simultaneous(values, text_errors=errors).values()
        halves += [(row.high - row.low) / 2 for row in found]
    expected = Rows(rows, Noise(1.0, text, 40.0)).half_width(seeds)
    assert expected == pytest.approx(np.median(halves), rel=0.15)


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
