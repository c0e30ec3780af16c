"""How often pairs of arms are ranked alike at two settings: shares, their intervals, subsets."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.agreement import alike, share, with_seeds

#: Arms of each experiment: one alone, and five together as in the committed packs.
DESIGNS = [(5,), (6,), (8,), (12,), (17,), (8, 6, 4, 16, 2)]


def pairs_of(arms, begin=0):
    return np.array([*itertools.combinations(range(begin, begin + arms), 2)]).T


def share_of(x, y):
    """The share over all pairs of arms with these losses at two settings."""
    first, second = pairs_of(len(x))
    return share(first, second, alike(x[first] - x[second], y[first] - y[second]))


@pytest.mark.parametrize("arms", [2, 5, 17])
def test_the_share_is_kendalls_tau_and_one_halved(arms):
    x, y = np.random.default_rng(arms).normal(size=(2, arms))
    found = share_of(x, y)
    assert found.value == pytest.approx((stats.kendalltau(x, y).statistic + 1) / 2)
    assert (found.pairs, found.arms) == (arms * (arms - 1) // 2, arms)


def test_a_tie_is_half_a_pair_ranked_alike():
    assert alike([1.0, -2.0, 0.0, 3.0], [2.0, 1.0, 5.0, 0.0]).tolist() == [1.0, 0.0, 0.5, 0.5]


def test_of_pairs_that_share_no_arm_the_interval_is_wilsons():
    ranked = [1] * 13 + [0] * 7
    found = share(range(0, 40, 2), range(1, 40, 2), ranked)
    wilson = stats.binomtest(13, 20).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high))


@pytest.mark.parametrize("arms", [6, 16])
def test_where_all_pairs_are_ranked_alike_they_say_as_much_as_half_as_many_pairs_as_arms(arms):
    found = share_of(np.arange(arms), np.arange(arms))
    wilson = stats.binomtest(arms // 2, arms // 2).proportion_ci(0.95, method="wilson")
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(wilson.low)


def test_the_correlation_of_pairs_that_share_an_arm_is_that_of_a_double_loop():
    """Over a part of the pairs, as over those that are decided."""
    generator = np.random.default_rng(3)
    first, second = pairs_of(9)[:, generator.random(36) < 0.7]
    ranked = (generator.random(len(first)) < 0.6).astype(float)
    n, mean = len(ranked), ranked.mean()
    ends = [*zip(first, second, strict=True)]
    twos = [(i, j) for i in range(n) for j in range(n) if i != j and {*ends[i]} & {*ends[j]}]
    product = np.mean([(ranked[i] - mean) * (ranked[j] - mean) for i, j in twos])
    r = (15 * 0.5 + 9 * product / (mean * (1 - mean))) / 24
    independent = n / (1 + r * len(twos) / n)
    z = stats.norm.ppf(0.975)
    found = share(first, second, ranked)
    for end in (found.low, found.high):  # Wilson's are the roots of this
        assert (end - mean) ** 2 == pytest.approx(z**2 * end * (1 - end) / independent)


def test_fewer_than_five_arms_have_a_share_and_no_interval():
    found = share_of(np.arange(4), np.arange(4))
    assert found.value == 1
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_without_pairs_nothing_is_known():
    found = share([], [], [])
    assert (found.pairs, found.arms) == (0, 0)
    assert math.isnan(found.value)


def test_no_interval_is_a_point_and_all_lie_between_0_and_1():
    generator = np.random.default_rng(8)
    for arms in range(5, 18):
        for spread in (0.0, 0.1, 1.0, 10.0):
            x, noise = generator.normal(size=(2, arms))
            found = share_of(x, x + spread * noise)
            assert 0 <= found.low < found.value or found.value == found.low == 0
            assert found.value < found.high <= 1 or found.value == found.high == 1
            assert found.high - found.low > 0.1


def drawn(kind, shape, generator):
    """Losses of arms at two settings, the seeds' noise in them, of a population of known truth."""
    x, z, u = generator.normal(size=(3, *shape))
    coin = generator.random(shape)
    if isinstance(kind, float):  # a correlation of the true effects, with noise that both share
        y = kind * x + math.sqrt(1 - kind**2) * z
        own, other = 0.3 * generator.normal(size=(2, *shape))
        return x + 0.3 * u + own, y + 0.3 * u + other
    if kind == "factor":  # half of the arms have what is good early and bad late
        return x - 3 * (coin < 0.5), 0.7 * x + 0.7 * z + 3 * (coin < 0.5)
    if kind == "rare":  # one arm of eight, against all others
        return x - 6 * (coin < 0.12), x + 0.2 * z + 6 * (coin < 0.12)
    if kind == "lasting":  # half of the arms are far better at both settings
        return x + 5 * (coin < 0.5), z + 5 * (coin < 0.5)
    heavy = generator.standard_t(2, shape)
    return heavy + 0.3 * x, heavy + 0.3 * z


KINDS = [-0.5, 0.0, 0.5, 0.9, 0.98, "factor", "rare", "lasting", "heavy"]


def coverage(kind, design, decided, count, generator):
    """How often the interval holds the population's share; of pairs `decided` at the second."""

    def ranked(x, y, first, second):
        differences = x[..., first] - x[..., second], y[..., first] - y[..., second]
        return alike(*differences), np.abs(differences[1]) > decided

    kept, far = ranked(*drawn(kind, (400_000, 2), generator), 0, 1)
    truth = kept[far].mean()
    begins = np.cumsum([0, *design[:-1]])
    first, second = np.hstack([pairs_of(n, at) for n, at in zip(design, begins, strict=True)])
    held, told = 0, 0
    values, far = ranked(*drawn(kind, (count, sum(design)), generator), first, second)
    for own, here in zip(values, far, strict=True):
        found = share(first[here], second[here], own[here])
        if not math.isnan(found.low):
            told += 1
            held += found.low <= truth <= found.high
    return held / told, told


@pytest.mark.parametrize("design", [(5,), (17,), (8, 6, 4, 16, 2)], ids=str)
@pytest.mark.parametrize("kind", [0.5, "factor", "rare"], ids=str)
def test_a_95_percent_interval_holds_in_90_percent(kind, design):
    held, told = coverage(kind, design, 0.0, 300, np.random.default_rng(5))
    assert held >= 0.90 - 3 * math.sqrt(0.09 / told)


@pytest.mark.full
@pytest.mark.parametrize(("decided", "least"), [(0.0, 0.90), (1.0, 0.87)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_does_in_every_population_and_of_decided_pairs_in_87_percent(kind, decided, least):
    for number, design in enumerate(DESIGNS):
        generator = np.random.default_rng([number, int(decided)])
        held, told = coverage(kind, design, decided, 4_000, generator)
        assert held >= least - 3 * math.sqrt(0.09 / told), design


def test_seeds_at_the_small_setting_are_held_against_the_others_at_the_large():
    """By hand: each way to choose two of four seeds."""
    small, large = np.array([1.0, -2.0, 3.0, -0.5]), np.array([2.0, -1.0, -4.0, 0.5])
    ways = [
        float((small[[*chosen]].sum() > 0) == (np.delete(large, chosen).sum() > 0))
        for chosen in itertools.combinations(range(4), 2)
    ]
    assert with_seeds(small, large, 2) == pytest.approx(np.mean(ways))
    assert 0 < np.mean(ways) < 1


def test_many_ways_to_choose_seeds_are_drawn_at_random_and_alike_each_time():
    small, large = np.random.default_rng(1).normal(0.3, 1, size=(2, 14))
    ways = [
        float((small[[*chosen]].sum() > 0) == (np.delete(large, chosen).sum() > 0))
        for chosen in itertools.combinations(range(14), 5)
    ]
    assert len(ways) > 1_000
    found = with_seeds(small, large, 5)
    assert found == pytest.approx(np.mean(ways), abs=3 * 0.5 / math.sqrt(1_000))
    assert found == with_seeds(small, large, 5)


def test_noise_that_a_run_and_its_branch_share_ranks_nothing_alike():
    """Arms that are equal: on the same seeds all pairs would be ranked alike."""
    noise = np.random.default_rng(2).normal(size=(400, 6))
    assert alike(noise.mean(1), noise.mean(1)).mean() == 1
    assert np.mean([with_seeds(own, own, 3) for own in noise]) < 0.5


@pytest.mark.parametrize(("seeds", "others", "n"), [(3, 3, 3), (3, 3, 0), (3, 4, 2), (1, 1, 1)])
def test_a_seed_is_left_for_each_side_or_an_error(seeds, others, n):
    with pytest.raises(ValueError, match="leave none for one side"):
        with_seeds(np.ones(seeds), np.ones(others), n)
