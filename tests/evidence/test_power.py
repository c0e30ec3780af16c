"""What is promised before an experiment runs, against tables drawn here and judged by its rules."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.evidence import StandardError, contrasts, simultaneous
from llama_ablate.evidence.factorial import weights
from llama_ablate.evidence.power import Noise, Rows, fewest_seeds


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


def seen_effect(rows, seeds, wanted=0.8):
    """The effect that rows see with a power of `wanted`, by bisection."""
    low, high = 0.0, 50.0
    for _ in range(40):
        effect = (low + high) / 2
        low, high = (low, effect) if rows.power(effect, seeds) > wanted else (effect, high)
    return high


@pytest.mark.parametrize(("seeds", "rows", "text"), [(3, 3, 0.2), (5, 5, 0.4), (8, 1, 0.0)])
def test_a_promised_power_of_8_in_10_is_found_in_tables_of_single_changes(
    seeds, rows, text, volume
):
    tables, generator = volume(300, 1_000, 1_000), np.random.default_rng(seeds)
    effect = seen_effect(Rows(rows, Noise(1.0, text, 40.0)), seeds)
    found = 0
    for _ in range(tables):
        values, errors = table(generator, effect, seeds, rows, text)
        found += sum(row.low > 0 for row in simultaneous(values, text_errors=errors).values())
    assert found / tables / rows == pytest.approx(0.8, abs=0.05)


def test_a_promised_power_of_8_in_10_is_found_in_fractions_of_a_factorial(volume):
    tables, generator = volume(100, 1_000, 1_000), np.random.default_rng(2)
    factors = ["a", "b", "c", "d", "e"]  # half of 32 cells, as the quickstart has them
    cells = [c for c in itertools.product((0, 1), repeat=5) if sum(c) % 2 == 0]
    levels = {str(cell): list(cell) for cell in cells}
    names = [*weights(levels, factors)]
    (own,) = (w for one, w in weights(levels, factors).items() if one.factors == ("a",))
    noise = Noise(math.sqrt(2), 0.1, 40.0)  # of a difference of two cells
    rows = Rows(len(names), noise, len(cells), math.sqrt((own**2).sum() / 2))
    effect = seen_effect(rows, 2)
    found = 0
    for _ in range(tables):
        losses = {
            cell: list(generator.normal(effect * cell_levels[0], 1, 2))
            for cell, cell_levels in levels.items()
        }
        shift = 0.1 * generator.normal()
        error = StandardError(0.1 * math.sqrt(generator.chisquare(40) / 40), 40.0)
        rows = contrasts(levels, factors, losses, text_errors=dict.fromkeys(names, error))
        own = next(one.interval for one in rows if one.factors == ("a",))
        found += own.low + shift > 0
    assert found / tables == pytest.approx(0.8, abs=0.05 if tables == 1_000 else 0.13)


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


def test_a_row_that_the_text_limits_needs_more_than_seeds_and_one_that_seeds_limit_needs_seeds():
    by_text, by_seeds = Rows(1, Noise(0.1, 1.0, 40.0)), Rows(1, Noise(1.0, 0.05, 40.0))
    assert fewest_seeds(lambda seeds: by_text.power(1.0, seeds) >= 0.8) is None
    assert fewest_seeds(lambda seeds: by_seeds.power(1.0, seeds) >= 0.8) in range(8, 25)
    assert fewest_seeds(lambda seeds: by_text.half_width(seeds) < 1.0) is None


def test_a_look_that_spends_half_of_the_error_widens_the_interval_as_two_rows_do():
    noise = Noise(1.0, 0.3, 40.0)
    whole, half = Rows(4, noise, share=1.0), Rows(2, noise, share=0.5)
    assert half.half_width(6) == whole.half_width(6)
    assert math.isnan(whole.half_width(1))
