"""Intervals of few seeds, where the error over seeds is joined with that over held-out texts."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import StandardError, simultaneous
from llama_ablate.evidence.intervals import joined_df

#: Deviation over seeds of a difference, as a multiple of the text's standard error.
RATIOS = (0.5, 1, 2, 4, 8, 20)
SEEDS, ROWS = (2, 3, 4, 5, 8), (1, 2, 3, 7, 15)


def tables(seeds, rows, ratio, count, generator):
    """Yield the intervals of tables of arms that equal their baseline; the text's error is 1."""
    own, base = (
        generator.normal(size=(count, rows, seeds)),
        generator.normal(size=(count, 1, seeds)),
    )
    texts = generator.normal(size=(count, rows)) - generator.normal(size=(count, 1))
    differences = (ratio * (own - base) + texts[:, :, None]) / math.sqrt(2)
    errors = np.sqrt(generator.chisquare(60, (count, rows)) / 60)
    for of_rows, of_texts in zip(differences, errors, strict=True):
        yield simultaneous(
            {str(i): list(row) for i, row in enumerate(of_rows)},
            text_errors={str(i): StandardError(se, 60) for i, se in enumerate(of_texts)},
        ).values()


def false_share(seeds, rows, ratio, count, generator):
    every = tables(seeds, rows, ratio, count, generator)
    return sum(any(not r.low < 0 < r.high for r in row) for row in every) / count


def most(share, count):
    """A share with three Monte Carlo standard errors on top."""
    return share + 3 * math.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize(("seeds", "rows", "ratio"), [(2, 7, 8), (3, 3, 8), (4, 3, 4)])
def test_equal_arms_have_no_verdict_in_95_of_100_tables(seeds, rows, ratio):
    """Satterthwaite's degrees of freedom alone: 42, 11 and 8%."""
    share = false_share(seeds, rows, ratio, 1_000, np.random.default_rng(seeds))
    assert share <= most(0.05, 1_000)


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "rows"), [*itertools.product(SEEDS, ROWS)])
def test_at_any_ratio_of_the_errors_at_most_5_5_percent_of_tables_have_a_false_verdict(seeds, rows):
    generator = np.random.default_rng(100 * seeds + rows)
    for ratio in RATIOS:
        assert false_share(seeds, rows, ratio, 10_000, generator) <= most(0.055, 10_000), ratio


@pytest.mark.parametrize("rows", ROWS)
def test_five_seeds_cost_a_tenth_of_width_at_most(rows):
    """Against Satterthwaite's degrees of freedom, whichever of the errors is the larger."""
    freedom = 6 if rows > 3 else 4
    for ratio in np.geomspace(0.01, 100, 81):
        level, text = 0.05 / rows, StandardError(1.0, 60)
        joined = joined_df(StandardError(ratio, freedom), text, level)
        plain = (ratio**2 + 1) ** 2 / (ratio**4 / freedom + 1 / 60)
        wide, usual = (stats.t.isf(level / 2, df) for df in (joined, plain))
        assert 1 - 1e-9 <= wide / usual <= 1.11


def test_of_two_seeds_the_squared_half_widths_of_both_errors_add_by_hand():
    pair, text = [-0.00763, -0.00779], StandardError(0.001, 54.9)
    row = simultaneous({"a": pair}, text_errors={"a": text}, family=7)["a"]
    of_seeds = stats.t.isf(0.05 / 14, 1) * np.std(pair, ddof=1) / math.sqrt(2)
    of_text = stats.t.isf(0.05 / 14, 54.9) * 0.001
    assert row.high - row.mean == pytest.approx(math.hypot(of_seeds, of_text))
    assert row.df < 3


def test_with_one_error_alone_its_own_t_decides():
    assert joined_df(StandardError(0.0, 1.0), StandardError(0.1, 30.0), 0.05) == 30
    assert joined_df(StandardError(0.1, 3.0), StandardError(0.0, math.inf), 0.05) == 3


def test_a_text_error_that_is_nearly_nothing_does_not_widen_an_interval():
    """Of two mean squares that nearly cancel the degrees of freedom are near 0."""
    seeds = StandardError(0.1, 4.0)
    alone, joined = (
        stats.t.isf(0.025, joined_df(seeds, text, 0.05))
        for text in (StandardError(0.0, math.inf), StandardError(1e-4, 0.01))
    )
    assert joined == pytest.approx(alone, rel=1e-3)


def test_a_further_error_never_makes_an_interval_narrower():
    """By Satterthwaite's degrees of freedom alone it does, by up to 10% with two of the seeds."""
    values = [0.9, 1.0, 1.13, 0.95]
    for n, df in itertools.product((2, 3, 4), (0.1, 1, 5, 60, math.inf)):
        alone = simultaneous({"": values[:n]}, family=15)[""]
        halves = [alone.high - alone.mean]
        for se in np.geomspace(1e-3, 10, 40) * alone.seed_se:
            row = simultaneous(
                {"": values[:n]}, text_errors={"": StandardError(float(se), df)}, family=15
            )[""]
            halves.append(row.high - row.mean)
        assert min(halves) >= halves[0] * (1 - 1e-9)
