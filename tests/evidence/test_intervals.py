"""Intervals of a table's rows against scalar references, and the seeds that a row needs."""

import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import StandardError, bound_bias, simultaneous
from llama_ablate.evidence.intervals import (
    join_errors,
    moderate_variances,
    power,
    seeds_for,
    seeds_needed,
)
from llama_ablate.evidence.student import not_negative, quantile

NOISE = np.array([-0.01, 0.0, 0.01, 0.005])


def named(rows):
    return {str(i): list(row) for i, row in enumerate(rows)}


def most(share, tables):
    """A share with three Monte Carlo standard errors on top."""
    return share + 3 * math.sqrt(share * (1 - share) / tables)


def half_width(rows, i, text):
    """Return the half width of a row, number by number, as `docs/evidence.md` states the rule."""
    n, own = len(rows[i]), np.var(rows[i], ddof=1)
    others = [np.var(row, ddof=1) for j, row in enumerate(rows) if j != i and len(row) > 1]
    prior = sum(others) / len(others) if others else 0.0
    w = 0.0 if not others else 3 * min(1.0, 2 * prior / own) if own else 3.0
    df = w + n - 1
    se2 = (w * prior + (n - 1) * own) / df / n
    level = 1 - 0.05 / 2 / len(rows)
    of_seeds = se2 * stats.t.ppf(level, df) ** 2
    if not text.se:
        return math.sqrt(of_seeds)
    if n < 5:
        return math.sqrt(of_seeds + (text.se * stats.t.ppf(level, max(df, text.df))) ** 2)
    total = se2 + text.se**2
    joined = total**2 / (se2**2 / df + text.se**4 / text.df)
    return math.sqrt(max(total * stats.t.ppf(level, joined) ** 2, of_seeds))


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("with_text", [False, True])
def test_every_row_has_the_half_width_of_the_rule_as_it_is_stated(rows, with_text):
    """Rows of two to eight seeds, whose spreads differ up to tenfold."""
    generator = np.random.default_rng(rows)
    for _ in range(50):
        spread = np.exp(generator.normal(size=rows))
        table = [sd * generator.normal(size=generator.integers(2, 9)) for sd in spread]
        errors = [
            StandardError(float(se) * with_text, float(df))
            for se, df in generator.uniform([0.01, 0.2], [2, 60], (rows, 2))
        ]
        texts = {str(i): error for i, error in enumerate(errors) if with_text}
        found = simultaneous(named(table), text_errors=texts)
        for i, error in enumerate(errors):
            row = found[str(i)]
            expected = half_width(table, i, error)
            assert row.high - row.mean == pytest.approx(expected, rel=1e-12)
            assert row.mean == pytest.approx(np.mean(table[i]), rel=1e-12)


def test_one_row_alone_has_scipys_interval():
    interval = simultaneous({"a": list(NOISE + 0.1)})["a"]
    expected = stats.ttest_1samp(NOISE + 0.1, 0)
    ends = expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert interval.p == pytest.approx(expected.pvalue)
    assert (interval.n, interval.df, interval.alpha, interval.pooled) == (4, 3, 0.05, False)


def test_the_moderated_variance_of_a_worked_example():
    """Own variance 1 with 2 df, the others' mean 3 with 3: (3 x 3 + 2 x 1) / 5 = 2.2."""
    unit = np.array([-1.0, 0.0, 1.0])
    interval = simultaneous(named([unit, unit, 2 * unit, 2 * unit]))["0"]
    assert (interval.seed_se**2 * 3, interval.df, interval.pooled) == (pytest.approx(2.2), 5, True)
    assert interval.high == pytest.approx(stats.t.isf(0.05 / 8, 5) * math.sqrt(2.2 / 3))


def test_a_row_noisier_than_the_others_takes_less_of_their_variance():
    """Own variance 8, the others' 1: the prior weighs 3 x 2 / 8 = 3/4."""
    variance, df, borrows = moderate_variances([8.0, 1.0, 1.0, 1.0], 2.0)
    assert (df[0], variance[0]) == pytest.approx((2.75, (0.75 * 1 + 2 * 8) / 2.75))
    assert borrows.all()


def test_rows_without_spread_or_seeds_have_no_interval_and_lend_what_they_have():
    unit = [-1.0, 0.0, 1.0]
    found = simultaneous({"same": [0.5, 0.5, 0.5], "one": [1.0], "none": [], "a": unit})
    assert found["same"].high > 0.5  # of the other's variance
    assert math.isnan(found["one"].low)
    assert math.isnan(found["none"].mean)
    assert found["a"].df == pytest.approx(2 + 3 * min(1, 2 * 0 / 1))
    assert math.isnan(simultaneous({"a": [0.5, 0.5]})["a"].low)
    assert simultaneous({}) == {}


def test_a_row_that_is_equal_bit_for_bit_is_exactly_0_and_no_part_of_the_family():
    rows = {"a": list(NOISE + 0.02), "b": list(NOISE * 2), "same": [0.0, 0.0, 0.0, 0.0]}
    found, without = simultaneous(rows), simultaneous({k: rows[k] for k in "ab"})
    assert (found["same"].low, found["same"].high, found["same"].p) == (0, 0, 1)
    assert {k: found[k] for k in "ab"} == without


def test_a_larger_family_and_a_smaller_share_widen_an_interval():
    values = {"a": list(NOISE + 0.02)}
    ends = stats.ttest_1samp(values["a"], 0).confidence_interval(1 - 0.05 * 0.2 / 6)
    interval = simultaneous(values, family=6, shares={"a": 0.2})["a"]
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert interval.alpha == pytest.approx(0.05 * 0.2 / 6)


@pytest.mark.parametrize("shift", [0.0, 0.004, 0.0110, 0.0111, 0.05, -0.05])
@pytest.mark.parametrize("text", [0.0, 0.002])
def test_p_is_below_five_percent_exactly_where_the_interval_leaves_out_zero(shift, text):
    rows = named([NOISE + shift, NOISE * 1.1, NOISE * 0.9, NOISE * 1.2, NOISE])
    texts = {"0": StandardError(text, 30.0)} if text else None
    interval = simultaneous(rows, text_errors=texts)["0"]
    assert (interval.p < 0.05) == (interval.low > 0 or interval.high < 0)


def test_a_further_error_never_makes_an_interval_narrower():
    """By Satterthwaite's degrees of freedom alone it does, by up to 10%."""
    values = [0.9, 1.0, 1.13, 0.95, 1.02, 0.97]
    for n in (2, 4, 5, 6):
        for df in (0.1, 1, 5, 60, math.inf):
            alone = simultaneous({"": values[:n]}, family=15)[""]
            halves = [
                row.high - row.mean
                for se in np.geomspace(1e-3, 10, 40) * alone.seed_se
                for row in simultaneous(
                    {"": values[:n]}, text_errors={"": StandardError(float(se), df)}, family=15
                ).values()
            ]
            assert min(halves) >= (alone.high - alone.mean) * (1 - 1e-9)


def test_with_one_error_alone_its_own_t_decides():
    assert join_errors(0.0, 1.0, 0.1, 30.0, 8, 0.05) == pytest.approx(0.1 * stats.t.isf(0.025, 30))
    assert join_errors(0.1, 3.0, 0.0, math.inf, 4, 0.05) == pytest.approx(
        0.1 * stats.t.isf(0.025, 3)
    )


def test_a_bias_widens_the_side_that_it_could_have_made_and_never_narrows():
    row = simultaneous({"a": list(NOISE + 0.1)})["a"]
    wider = row.widened((-0.02, 0.03))
    assert (wider.low, wider.high) == pytest.approx((row.low - 0.03, row.high + 0.02))
    assert row.widened((0.01, 0.03)).high == row.high
    assert (row.p < wider.p < 0.05) == (wider.low > 0)
    unbounded = row.widened((-math.inf, math.inf))
    assert (unbounded.low, unbounded.high) == (-math.inf, math.inf)


def test_a_repeated_baseline_bounds_the_bias_by_its_interval():
    assert bound_bias([]) is None
    assert bound_bias([0.0, 0.0]) == (0.0, 0.0)
    assert bound_bias([0.01]) == (-math.inf, math.inf)
    ends = stats.ttest_1samp([0.01, 0.02, 0.0], 0).confidence_interval(0.95)
    assert bound_bias([0.01, 0.02, 0.0]) == pytest.approx((ends.low, ends.high))


def test_the_power_is_what_simulation_finds():
    drawn = np.random.default_rng(6).normal(1.2, 1, (4000, 6))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert power(1.2, 1.0, 6) == pytest.approx(np.mean(found), abs=0.025)


def test_the_seeds_for_an_effect_are_the_fewest_that_reach_the_power():
    for effect in (0.3, 0.7, 1.5, 4.0):
        n = seeds_for(effect, 1.0)
        assert power(effect, 1.0, n) >= 0.8
        assert n == 2 or power(effect, 1.0, n - 1) < 0.8
    assert seeds_for(1.0, 0.0) == 2
    with pytest.raises(ValueError, match="an effect of 0"):
        seeds_for(0.0, 1.0)


def test_at_least_the_seeds_needed_are_needed_in_97_of_100_samples(volume):
    """Whatever a sample shows of the deviation, which is 1."""
    tables, generator = volume(500, 10_000, 10_000), np.random.default_rng(7)
    truth, over = seeds_for(0.5, 1.0), 0
    for _ in range(tables):
        interval = simultaneous({"a": list(generator.normal(size=6))})["a"]
        over += seeds_needed(interval, 0.5) > truth
    assert over / tables <= most(0.025, tables)


def test_the_seeds_needed_are_silent_where_they_cannot_be_known():
    five = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    whole, fewer = (simultaneous({"a": list(v)})["a"] for v in (five, five[:4]))
    assert seeds_needed(fewer, 1.0) is None
    assert seeds_needed(whole, 0.01) is None  # more than a thousand, at the best
    # The text alone has an error of 1: no seeds bring the interval within 1 of its mean.
    text = simultaneous({"a": list(five)}, text_errors={"a": StandardError(1.0, 30)})["a"]
    assert seeds_needed(text, 1.0) is None
    assert seeds_needed(text, 4.0) >= seeds_needed(whole, 4.0)


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize(("population", "true"), [(stats.expon(), 1.0), (stats.beta(2, 5), 2 / 7)])
def test_an_interval_of_what_is_never_negative_stays_so_and_holds_no_less_often_than_students(
    population, true, seeds
):
    drawn = population.rvs((10_000, seeds), random_state=np.random.default_rng(0)).astype(float)
    mean = drawn.mean(1)
    half = float(quantile(0.975, seeds - 1)) * drawn.std(1, ddof=1) / math.sqrt(seeds)
    low, high = not_negative(mean, half)
    assert (low >= 0).all()
    held, by_student = (
        ((ends[0] <= true + 1e-9) & (true <= ends[1] + 1e-9)).mean()
        for ends in ((low, high), (mean - half, mean + half))
    )
    assert by_student < held <= 0.97
    assert held > 0.88
