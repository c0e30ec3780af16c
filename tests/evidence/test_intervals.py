"""Intervals of a table's rows against scalar references, and the seeds that a row needs."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from llama_ablate.evidence.intervals import (
    bound_bias,
    estimate,
    join_errors,
    power,
    seeds_for,
    seeds_needed,
    simultaneous,
    widen,
)
from llama_ablate.evidence.student import not_negative, quantile
from tests.evidence.rows import most, row_of, rows_of

NOISE = np.array([-0.01, 0.0, 0.01, 0.005])
FIVE = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])


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
    if not text:
        return math.sqrt(of_seeds)
    text_se, text_df = text
    if n < 5:
        return math.sqrt(of_seeds + (text_se * stats.t.ppf(level, max(df, text_df))) ** 2)
    total = se2 + text_se**2
    joined = total**2 / (se2**2 / df + text_se**4 / text_df)
    return math.sqrt(max(total * stats.t.ppf(level, joined) ** 2, of_seeds))


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("with_text", [False, True])
def test_every_row_has_the_half_width_of_the_rule_as_it_is_stated(rows, with_text):
    """Rows of two to eight seeds, whose spreads differ up to tenfold."""
    generator = np.random.default_rng(rows)
    for _ in range(50):
        spread = np.exp(generator.normal(size=rows))
        table = [sd * generator.normal(size=generator.integers(2, 9)) for sd in spread]
        errors = generator.uniform([0.01, 0.2], [2, 60], (rows, 2)).tolist()
        errors = [tuple(error) if with_text else None for error in errors]
        found = rows_of(table, errors)
        for i, (row, error) in enumerate(zip(found, errors, strict=True)):
            half = half_width(table, i, error)
            assert row["high"] - row["mean"] == pytest.approx(half, rel=1e-12)
            assert row["mean"] == pytest.approx(np.mean(table[i]), rel=1e-12)
            assert row["mean"] - row["low"] == pytest.approx(half, rel=1e-12)
            # The degrees of freedom give the same half width again.
            total = math.hypot(row["seed_se"], row["text_se"])
            again = total * stats.t.ppf(1 - row["alpha"] / 2, row["df"])
            assert again == pytest.approx(half, rel=1e-6)


def test_one_row_alone_has_scipys_interval():
    row = row_of(NOISE + 0.1)
    ends = stats.ttest_1samp(NOISE + 0.1, 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((ends.low, ends.high))
    assert [row[key] for key in ("n", "df", "alpha", "pooled")] == [4, 3, 0.05, False]


def test_the_moderated_variance_of_a_worked_example():
    """Own variance 1 with 2 df, the others' mean 3 with 3: (3 x 3 + 2 x 1) / 5 = 2.2."""
    unit = np.array([-1.0, 0.0, 1.0])
    row, *_ = rows_of([unit, unit, 2 * unit, 2 * unit])
    assert (row["seed_se"] ** 2 * 3, row["df"], row["pooled"]) == (pytest.approx(2.2), 5, True)
    assert row["high"] == pytest.approx(stats.t.isf(0.05 / 8, 5) * math.sqrt(2.2 / 3))


def test_rows_without_spread_or_seeds_have_no_interval_and_lend_what_they_have():
    same, one, none, last = rows_of([[0.5, 0.5, 0.5], [1.0], [], [-1.0, 0.0, 1.0]])
    assert same["high"] > 0.5  # of the other's variance
    assert math.isnan(one["low"])
    assert math.isnan(none["mean"])
    assert last["df"] == pytest.approx(2 + 3 * min(1, 2 * 0 / 1))
    assert math.isnan(row_of([0.5, 0.5])["low"])
    assert simultaneous(pd.DataFrame()).empty


def test_a_row_that_is_equal_bit_for_bit_is_exactly_0_and_no_part_of_the_family():
    rows = [NOISE + 0.02, NOISE * 2]
    *found, same = rows_of([*rows, [0.0] * 4])
    assert (same["low"], same["high"]) == (0, 0)
    assert found == rows_of(rows)


def test_a_larger_family_and_a_smaller_share_widen_an_interval():
    row = row_of(NOISE + 0.02, family=6, shares=[0.2])
    ends = stats.ttest_1samp(NOISE + 0.02, 0).confidence_interval(1 - 0.05 * 0.2 / 6)
    assert (row["low"], row["high"]) == pytest.approx((ends.low, ends.high))
    assert row["alpha"] == pytest.approx(0.05 * 0.2 / 6)


def test_a_further_error_never_makes_an_interval_narrower():
    """By Satterthwaite's degrees of freedom alone it does, by up to 10%."""
    values = [0.9, 1.0, 1.13, 0.95, 1.02, 0.97]
    for n in (2, 4, 5, 6):
        alone = row_of(values[:n], family=15)
        by_t = join_errors(0.0, 1.0, 0.1, 30.0, n, 0.05)  # of one error, its own t decides
        assert by_t == pytest.approx(0.1 * stats.t.isf(0.025, 30))
        text_se = np.geomspace(1e-3, 10, 40)[:, None] * alone["seed_se"]
        table = np.tile(values[:n], (40, 1, 1))
        for df in (0.1, 1, 5, 60, math.inf):
            found = estimate(table, text_se, df, 0.05 / 15)
            half = (found["high"] - found["mean"]).min()
            assert half >= (alone["high"] - alone["mean"]) * (1 - 1e-9)


def test_a_bias_widens_the_side_that_it_could_have_made_and_never_narrows():
    row = simultaneous(pd.DataFrame([NOISE + 0.1]))

    def ends(bias):
        found = [of[["low", "high"]].to_numpy().ravel() for of in (row, widen(row, bias))]
        return found[1] - found[0]

    assert ends((-0.02, 0.03)) == pytest.approx([-0.03, 0.02])
    assert ends((0.01, 0.03)) == pytest.approx([-0.03, 0.0])
    assert ends((-math.inf, math.inf)).tolist() == [-math.inf, math.inf]


def test_a_fault_of_all_arms_but_the_baseline_is_caught_where_runs_do_not_repeat_exactly(volume):
    """Four arms of five seeds, none better or worse than the baseline but for the fault."""
    count, generator, wrong = volume(200, 2_000, 2_000), np.random.default_rng(1), 0
    for _ in range(count):
        fault, arms = 4.0, generator.normal(size=(4, 5))
        bias = bound_bias((fault + 0.3 * generator.normal(size=5)).tolist())
        wider = widen(simultaneous(pd.DataFrame(fault + arms)), bias)
        wrong += bool(((wider["low"] > 0) | (wider["high"] < 0)).any())
    assert wrong / count <= most(0.05, count)


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
    found = estimate(generator.normal(size=(tables, 1, 6)), 0.0, math.inf)
    truth = seeds_for(0.5, 1.0)
    each = [{key: of[i, 0] for key, of in found.items()} for i in range(tables)]
    over = sum(seeds_needed(row, 0.5) > truth for row in each)
    assert over / tables <= most(0.025, tables)


def test_the_seeds_needed_are_silent_where_they_cannot_be_known():
    whole = row_of(FIVE)
    assert math.isnan(seeds_needed(row_of(FIVE[:4]), 1.0))
    assert math.isnan(seeds_needed(whole, 0.01))  # more than a thousand, at the best
    # The text alone has an error of 1: no seeds bring the interval within 1 of its mean.
    text = row_of(FIVE, (1.0, 30))
    assert math.isnan(seeds_needed(text, 1.0))
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
