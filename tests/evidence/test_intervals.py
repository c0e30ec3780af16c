import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import StandardError, simultaneous
from llama_ablate.evidence.intervals import joined_df, power, seeds_for, seeds_needed
from llama_ablate.evidence.student import not_negative, quantile

NOISE = np.array([-0.01, 0.0, 0.01, 0.005])
ARMS = 7


def noise(population, tables, arms, seeds, generator):
    """Draw (tables, arms, seeds) differences from a baseline that all arms share, with mean 0.

    `unequal`: log-variances of standard deviation 1.0 and a correlation over seeds of 0.3, as the
    records have them. `skewed`: the baseline's losses are exponential, of twice the arms' spread.
    """
    shapes = (tables, 1, seeds), (tables, arms, seeds)
    if population == "heavy tails":
        base, own = (generator.standard_t(3, shape) for shape in shapes)
    else:
        base, own = (generator.normal(size=shape) for shape in shapes)
    if population == "unequal":
        shared = generator.normal(size=shapes[0])
        base, own = (
            np.exp(generator.normal(size=(tables, len(x[0]), 1)) / 2)
            * (math.sqrt(0.3) * shared + math.sqrt(0.7) * x)
            for x in (base, own)
        )
    if population == "skewed":
        base = 2 * (generator.exponential(size=shapes[0]) - 1)
    return own - base


def named(rows):
    return {str(i): list(row) for i, row in enumerate(rows)}


def most(share, tables):
    """A share with three Monte Carlo standard errors on top."""
    return share + 3 * math.sqrt(share * (1 - share) / tables)


def test_one_row_alone_has_scipys_interval():
    interval = simultaneous({"a": list(NOISE + 0.1)})["a"]
    expected = stats.ttest_1samp(NOISE + 0.1, 0)
    ends = expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert interval.p == pytest.approx(expected.pvalue)
    assert (interval.n, interval.df, interval.alpha, interval.pooled) == (4, 3, 0.05, False)


def test_three_rows_share_five_percent():
    rows = named([NOISE + 0.02, NOISE * 2, NOISE[::-1] * 3])
    for name, interval in simultaneous(rows).items():
        expected = stats.ttest_1samp(rows[name], 0)
        ends = expected.confidence_interval(1 - 0.05 / 3)
        assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
        assert interval.p == pytest.approx(min(1, 3 * expected.pvalue))


def test_a_larger_family_and_a_smaller_share_widen_an_interval():
    values = {"a": list(NOISE + 0.02)}
    ends = stats.ttest_1samp(values["a"], 0).confidence_interval(1 - 0.05 * 0.2 / 6)
    interval = simultaneous(values, family=6, shares={"a": 0.2})["a"]
    assert (interval.low, interval.high) == pytest.approx((ends.low, ends.high))
    assert interval.alpha == pytest.approx(0.05 * 0.2 / 6)


@pytest.mark.parametrize("shift", [0.0, 0.004, 0.0158, 0.0159, 0.05, -0.05])
def test_p_is_below_five_percent_just_where_the_interval_leaves_out_zero(shift):
    rows = named([NOISE + shift, NOISE * 1.1, NOISE * 0.9, NOISE * 1.2, NOISE])
    interval = simultaneous(rows)["0"]
    assert interval.pooled
    assert (interval.p < 0.05) == (interval.low > 0 or interval.high < 0)


def test_the_moderated_variance_by_hand():
    """Own variance 1 with 2 df, the others' mean (1 + 4 + 4) / 3 = 3 with 2: together 2 with 4."""
    unit = np.array([-1.0, 0.0, 1.0])
    interval = simultaneous(named([unit, unit, 2 * unit, 2 * unit]))["0"]
    assert (interval.seed_se**2 * 3, interval.df, interval.pooled) == (pytest.approx(2), 4, True)
    assert interval.high == pytest.approx(stats.t.isf(0.05 / 8, 4) * math.sqrt(2 / 3))


def test_a_row_noisier_than_the_others_takes_less_of_their_variance_by_hand():
    """Own variance 8 with 2 df, the others' 1: the prior weighs 2 x 2 / 8 = 1/2, as (2, 1/2)."""
    unit = np.array([-1.0, 0.0, 1.0])
    rows = simultaneous(named([math.sqrt(8) * unit, unit, unit, unit]))
    assert all(row.pooled for row in rows.values())
    assert rows["0"].seed_df == pytest.approx(2.5)
    assert rows["0"].seed_se ** 2 * 3 == pytest.approx((0.5 * 1 + 2 * 8) / 2.5)


def test_an_interval_widens_steadily_with_its_rows_variance():
    unit = np.array([-1.0, 0.0, 1.0])
    widths = [
        simultaneous(named([times * unit, unit, unit, unit]))["0"].high
        for times in np.linspace(0.5, 6, 200)
    ]
    assert 0 < np.diff(widths).min() <= np.diff(widths).max() < 0.3


def test_few_rows_few_seeds_and_rows_without_spread_are_not_pooled():
    unit = np.array([-1.0, 0.0, 1.0])
    assert not any(row.pooled for row in simultaneous(named([unit] * 3)).values())
    assert not any(row.pooled for row in simultaneous(named([unit[:2]] * 9)).values())
    rows = simultaneous(named([unit, unit, unit, 0 * unit]))
    assert not any(row.pooled for row in rows.values())
    assert (rows["3"].low, rows["3"].high, rows["3"].p) == (0, 0, 1)


def test_fewer_than_two_seeds_have_no_interval_and_count_in_the_family():
    rows = simultaneous({"a": [1.0], "b": [], "c": list(NOISE)})
    assert rows["a"].mean == 1
    assert all(math.isnan(v) for v in (rows["a"].low, rows["a"].p, rows["b"].mean, rows["b"].high))
    assert rows["c"].alpha == pytest.approx(0.05 / 3)
    assert simultaneous({}) == {}


def test_the_texts_variance_is_added():
    values = list(NOISE + 0.05)
    seed_se = np.std(values, ddof=1) / 2
    interval = simultaneous({"a": values}, text_errors={"a": StandardError(0.004, 19)})["a"]
    assert (interval.seed_se, interval.text_se) == (pytest.approx(seed_se), 0.004)
    half = stats.t.ppf(0.975, interval.df) * math.hypot(seed_se, 0.004)
    assert interval.high - 0.05 - np.mean(NOISE) == pytest.approx(half)
    joined = joined_df(StandardError(seed_se, 3), StandardError(0.004, 19), 0.05)
    assert interval.df == pytest.approx(joined)


def test_intervals_with_the_texts_error_cover_the_difference_over_all_texts(volume):
    """Three seeds on one draw of thirty documents, whose effects differ by as much as seeds do."""
    tables, generator = volume(2_000, 10_000, 10_000), np.random.default_rng(0)
    covered = 0
    for _ in range(tables):
        documents = generator.normal(0, 1, 30)
        text = StandardError(float(documents.std(ddof=1)) / math.sqrt(30), 29)
        seeds = documents.mean() + generator.normal(0, 0.3, 3)
        interval = simultaneous({"a": list(seeds)}, text_errors={"a": text})["a"]
        covered += interval.low < 0 < interval.high
    assert 1 - covered / tables <= most(0.05, tables)


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize("population", ["normal", "unequal", "heavy tails"])
def test_all_intervals_of_a_table_hold_at_once_in_95_of_100_tables(population, seeds, volume):
    """Seven arms against one baseline: an interval that misses is a false verdict, or may be."""
    tables, generator = volume(300, 10_000, 10_000), np.random.default_rng(1)
    truth = generator.normal(0, 2, ARMS)
    missed = 0
    for table in noise(population, tables, ARMS, seeds, generator) + truth[:, None]:
        rows = simultaneous(named(table)).values()
        missed += any(not r.low < t < r.high for r, t in zip(rows, truth, strict=True))
    assert missed / tables <= most(0.05, tables)


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "share"), [(3, 0.05), (6, 0.065)])
def test_a_skewed_baseline_costs_a_percent_of_error_and_costs_plain_t_more(seeds, share):
    """Its skew is in every row's difference: three seeds keep 5%, six do not; nor does plain t."""
    tables, generator = 10_000, np.random.default_rng(2)
    missed, plain = 0, 0
    for table in noise("skewed", tables, ARMS, seeds, generator):
        missed += any(not r.low < 0 < r.high for r in simultaneous(named(table)).values())
        plain += bool((stats.ttest_1samp(table, 0, axis=1).pvalue * ARMS < 0.05).any())
    assert missed / tables <= most(share, tables)
    assert missed < plain


def test_three_seeds_see_twice_as_much_as_without_the_other_rows_variance(volume):
    """An effect of three deviations among seven arms."""
    tables, generator = volume(400, 10_000, 10_000), np.random.default_rng(3)
    seen, plain = 0, 0
    for table in noise("unequal", tables, ARMS, 3, generator):
        table[0] += 3 * math.sqrt(2)
        row = simultaneous(named(table))["0"]
        seen += row.low > 0
        plain += stats.ttest_1samp(table[0], 0).pvalue * ARMS < 0.05
    assert seen > 1.8 * plain


def test_four_seeds_find_an_effect_of_three_deviations_among_five_arms_in_nine_tables_of_ten(
    volume,
):
    """With a prior that a row of more than twice the others' variance loses: 83%."""
    tables, generator = volume(500, 10_000, 10_000), np.random.default_rng(5)
    seen = 0
    for table in noise("normal", tables, 5, 4, generator):
        table[0] += 3 * math.sqrt(2)
        seen += simultaneous(named(table))["0"].low > 0
    assert seen / tables >= 0.89 - 3 * math.sqrt(0.1 / tables)


def test_one_row_several_times_noisier_than_the_others_is_not_decided_falsely(volume):
    tables, generator = volume(1_000, 10_000, 10_000), np.random.default_rng(4)
    tables_of = generator.normal(size=(tables, 4, 3)) * np.array([3.0, 1, 1, 1])[:, None]
    missed = sum(
        any(not r.low < 0 < r.high for r in simultaneous(named(table)).values())
        for table in tables_of
    )
    assert missed / tables <= most(0.05, tables)


def test_the_power_is_what_simulation_finds():
    generator = np.random.default_rng(6)
    found = [stats.ttest_1samp(generator.normal(1.2, 1, 6), 0).pvalue < 0.05 for _ in range(4000)]
    assert power(1.2, 1.0, 6) == pytest.approx(np.mean(found), abs=0.025)


def test_the_seeds_for_an_effect_are_the_fewest_that_reach_the_power():
    for effect in (0.3, 0.7, 1.5, 4.0):
        n = seeds_for(effect, 1.0)
        assert power(effect, 1.0, n) >= 0.8
        assert n == 2 or power(effect, 1.0, n - 1) < 0.8
    assert seeds_for(1.0, 0.0) == 2
    with pytest.raises(ValueError, match="an effect of 0"):
        seeds_for(0.0, 1.0)


def test_the_seeds_needed_hold_the_number_that_the_true_deviation_asks_for(volume):
    """In 95 of 100 samples, whatever they show of the deviation, which is 1."""
    tables, generator = volume(500, 10_000, 10_000), np.random.default_rng(7)
    truth, held = seeds_for(0.5, 1.0), 0
    for _ in range(tables):
        interval = simultaneous({"a": list(generator.normal(size=6))})["a"]
        low, high = seeds_needed(interval, 0.5)
        held += low <= truth <= high
    assert 1 - held / tables <= most(0.05, tables)


def test_the_seeds_needed_are_silent_where_they_cannot_be_known():
    five = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    whole, fewer = (simultaneous({"a": list(v)})["a"] for v in (five, five[:4]))
    assert seeds_needed(fewer, 1.0) is None
    assert seeds_needed(whole, 0.01) is None  # more than a thousand, at the best
    low, high = seeds_needed(whole, 0.2)
    assert 5 < low < math.inf == high
    # The text alone has an error of 1: no seeds bring the interval within 1 of its mean.
    text = simultaneous({"a": list(five)}, text_errors={"a": StandardError(1.0, 30)})["a"]
    assert seeds_needed(text, 1.0) is None
    assert seeds_needed(text, 4.0)[0] >= seeds_needed(whole, 4.0)[0]


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize(
    ("population", "true"),
    [
        (stats.expon(), 1.0),
        (stats.lognorm(0.83), math.exp(0.83**2 / 2)),
        (stats.beta(2, 5), 2 / 7),
        (stats.poisson(3), 3.0),
    ],
)
def test_an_interval_of_what_is_never_negative_stays_so_and_holds_no_less_often_than_students(
    population, true, seeds
):
    drawn = population.rvs((10_000, seeds), random_state=np.random.default_rng(0)).astype(float)
    mean = drawn.mean(1)
    half = quantile(0.975, seeds - 1) * drawn.std(1, ddof=1) / math.sqrt(seeds)
    low, high = not_negative(mean, half)
    assert (low >= 0).all()
    held, by_student = (
        ((ends[0] <= true + 1e-9) & (true <= ends[1] + 1e-9)).mean()
        for ends in ((low, high), (mean - half, mean + half))
    )
    assert by_student < held <= 0.97
    assert held > 0.88


def test_far_from_zero_an_interval_of_what_is_never_negative_is_students():
    low, high = not_negative([100.0, 0.0, 3.0], [1.0, 0.0, math.nan])
    assert (low[0], high[0]) == pytest.approx((99.0, 101.0), rel=1e-4)
    assert (low[1], high[1]) == (0.0, 0.0)
    assert math.isnan(low[2])
    assert math.isnan(high[2])


def test_what_two_intervals_say_together_is_what_the_wider_and_the_less_sure_says():
    narrow, wide = (simultaneous({"": [c, -c, 2.0]})[""] for c in (0.1, 0.2))
    for both in (narrow.hull(wide), wide.hull(narrow)):
        assert (both.low, both.high) == (wide.low, wide.high)
        assert both.p == wide.p > narrow.p
    assert narrow.hull(simultaneous({"": []})[""]) == narrow
