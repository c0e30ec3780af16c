import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import (
    Ended,
    Expectation,
    StandardError,
    judged,
    seeds_to_decide,
    simultaneous,
    verdict,
)
from llama_ablate.evidence.intervals import seeds_for
from tests.evidence.test_intervals import most, named

NOISE = np.array([-0.1, 0.0, 0.1, 0.05])


def verdicts(rows, margin=None, **options):
    intervals = simultaneous(rows, **options)
    return {name: verdict(interval, margin) for name, interval in intervals.items()}


@pytest.mark.parametrize(
    ("shift", "margin", "expected"),
    [
        (-1.0, None, "better"),
        (1.0, None, "worse"),
        (0.0, None, "inconclusive"),
        (0.0, 0.3, "equivalent"),
        (0.0, 0.05, "inconclusive"),
        (-1.0, 0.3, "better"),
        (-1.0, 2.0, "equivalent"),  # it is there for certain, and smaller than what matters
    ],
)
def test_one_row_alone(shift, margin, expected):
    assert verdicts({"a": NOISE + shift}, margin)["a"] == expected


def test_a_row_among_many_must_show_more():
    """t = 0.03 / (0.01 / sqrt(3)) = 5.2, p = 0.035: enough alone, not among three (0.105)."""
    values = np.array([0.02, 0.03, 0.04])
    assert simultaneous({"a": values})["a"].p == pytest.approx(0.0351, abs=0.0005)
    assert verdicts({"a": values})["a"] == "worse"
    assert verdicts({"a": values}, family=3)["a"] == "inconclusive"


def test_the_error_from_the_text_takes_part_in_the_verdict():
    values = {"a": NOISE / 100 + 0.01}
    assert verdicts(values)["a"] == "worse"
    assert verdicts(values, text_errors={"a": StandardError(0.006, 25)})["a"] == "inconclusive"


def test_false_equivalents_at_the_edge_of_the_margin_are_at_most_5_in_100_tables(volume):
    """Seven arms that differ by the margin, against one baseline."""
    tables, generator = volume(400, 10_000, 10_000), np.random.default_rng(2)
    edge = np.where(np.arange(7) % 2, -1.0, 1.0)[:, None]
    false = 0
    for _ in range(tables):
        values = edge + (generator.normal(size=(7, 4)) - generator.normal(size=4)) / 8
        false += "equivalent" in verdicts(named(values), 1.0).values()
    assert false / tables <= most(0.05, tables)


@pytest.mark.parametrize(
    ("mean", "margin", "distance"),
    [
        (0.03, None, 0.03),  # to 0
        (0.03, 0.1, 0.07),  # to the margin, which is further: fewer seeds are enough
        (-0.08, 0.1, 0.08),
        (0.2, 0.1, 0.2),  # beyond the margin only 0 can be left out
    ],
)
def test_an_inconclusive_row_counts_the_seeds_to_the_bound_it_reaches_first(mean, margin, distance):
    values = np.array([-0.4, -0.2, 0.0, 0.2, 0.4]) + mean
    interval = simultaneous({"a": values})["a"]
    sd, chi = np.std(values, ddof=1), 11.1433  # 97.5% of four degrees of freedom
    expected = max(6, seeds_for(distance, sd * math.sqrt(4 / chi)))
    assert seeds_to_decide(interval, margin) == expected


def test_a_decided_row_and_one_of_few_seeds_count_none():
    wide = np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
    assert seeds_to_decide(simultaneous({"a": wide + 9})["a"]) is None
    assert seeds_to_decide(simultaneous({"a": wide[:4]})["a"], 0.1) is None
    assert seeds_to_decide(simultaneous({"a": wide * 0})["a"]) is None


def test_one_seed_says_nothing():
    assert verdicts({"a": [-1.0]}, 0.5)["a"] == "inconclusive"


def test_a_difference_of_nothing_at_all_in_every_seed_is_equivalent_with_no_margin_too():
    assert verdicts({"a": [0.0, 0.0, 0.0]})["a"] == "equivalent"
    assert verdicts({"a": [0.0, 0.0]}, 0.01)["a"] == "equivalent"


def ended(runs, lost=0, short=0):
    return Ended.of(["collapsed"] * lost + ["too short"] * short + ["ok"] * (runs - lost - short))


BETTER, WORSE = (simultaneous({"a": NOISE / 100 + shift})["a"] for shift in (-0.1, 0.1))


@pytest.mark.parametrize(
    ("own", "base", "expected"),
    [
        (ended(4), ended(4), ("better", "worse", "equivalent")),
        (ended(4, short=1), ended(4), ("too short",) * 3),
        (ended(4), ended(4, short=1), ("too short",) * 3),
        # A lost run counts against its arm: the others cannot show that it is better, or equal.
        (ended(4, lost=1), ended(4), ("inconclusive", "worse", "inconclusive")),
        (ended(4), ended(4, lost=1), ("better", "inconclusive", "inconclusive")),
        (ended(4, lost=1), ended(4, lost=1), ("inconclusive",) * 3),
        (ended(4, lost=1, short=1), ended(4), ("too short",) * 3),
        # All and none; 3 of 4 against none has p = 0.14.
        (ended(2, lost=2), ended(2), ("collapsed",) * 3),
        (ended(12, lost=8, short=4), ended(12), ("collapsed",) * 3),
        (ended(4, lost=3), ended(4), ("inconclusive", "worse", "inconclusive")),
        (ended(4), ended(4, lost=4), ("better", "inconclusive", "inconclusive")),
    ],
)
def test_how_runs_ended_may_decide_or_keep_an_interval_from_deciding(own, base, expected):
    within = simultaneous({"a": NOISE / 100})["a"]
    found = [judged(interval, None, own, base) for interval in (BETTER, WORSE)]
    assert (*found, judged(within, 0.5, own, base)) == expected


def test_what_most_of_the_lost_runs_did_is_the_word():
    def word(diverged, collapsed):
        own = Ended.of(["diverged"] * diverged + ["collapsed"] * collapsed)
        return judged(WORSE, None, own, ended(3))

    assert [word(2, 1), word(1, 2), word(1, 1)] == ["diverged", "collapsed", "diverged"]


def test_an_arm_that_ends_no_worse_run_by_run_never_has_the_worse_word():
    """All ways in which four runs of two arms and a baseline may end, one of them no worse."""
    order, lost = ["ok", "too short", "collapsed", "diverged"], {"collapsed", "diverged"}
    ways = list(itertools.combinations_with_replacement(range(4), 4))
    for base, own in itertools.product(ways, ways):
        baseline, first = (Ended.of(order[i] for i in way) for way in (base, own))
        for way in (w for w in ways if all(a <= b for a, b in zip(own, w, strict=True))):
            second = Ended.of(order[i] for i in way)
            # The interval of the better arm lies no higher.
            for one, other in ((BETTER, BETTER), (BETTER, WORSE), (WORSE, WORSE)):
                better = judged(one, None, first, baseline)
                worse = judged(other, None, second, baseline)
                assert (better, worse) != ("worse", "better")
                assert better not in lost or worse in lost
                if better == "too short":
                    assert worse in {"too short", *lost} or second.lost > first.lost


@pytest.mark.parametrize(("rate", "tied"), [(0.2, 0.8), (0.4, 0.0), (0.4, 0.8)])
def test_where_no_arm_differs_lost_seeds_make_false_verdicts_no_more_likely(rate, tied, volume):
    """Three arms, five seeds; `tied` is the correlation of being lost with the loss that was."""
    tables, generator = volume(150, 5_000, 5_000), np.random.default_rng(3)
    false = reversed_signs = 0
    for _ in range(tables):
        losses, other = generator.normal(size=(2, 4, 5))
        lost = tied * losses + math.sqrt(1 - tied**2) * other > stats.norm.ppf(1 - rate)
        kept = {str(i): (losses[i] - losses[0])[~lost[i] & ~lost[0]] for i in (1, 2, 3)}
        whole = {str(i): losses[i] - losses[0] for i in (1, 2, 3)}
        base, *arms = (Ended.of(np.where(own, "collapsed", "ok")) for own in lost)
        rows, of_all = simultaneous(kept), simultaneous(whole)
        words = [judged(rows[str(i)], None, own, base) for i, own in enumerate(arms, 1)]
        false += any(word != "inconclusive" for word in words)
        reversed_signs += any(
            {word, verdict(of_all[str(i)])} == {"better", "worse"}
            for i, word in enumerate(words, 1)
        )
    assert false / tables <= most(0.05, tables)
    assert reversed_signs == 0


def test_the_seeds_that_an_arm_kept_do_not_show_it_to_be_better(volume):
    """An arm that equals the baseline, and loses the half of its twelve seeds that are worst."""
    tables, generator = volume(100, 2_000, 2_000), np.random.default_rng(4)
    survivors = judged_better = 0
    for _ in range(tables):
        own, base = generator.normal(size=(2, 12))
        kept = own < np.median(own)
        interval = simultaneous({"a": (own - base)[kept]})["a"]
        survivors += verdict(interval) == "better"
        word = judged(interval, None, ended(12, lost=6), ended(12))
        judged_better += word == "better"
    assert survivors / tables > 0.2
    assert judged_better == 0


SMALL = np.array([-0.004, 0.0, 0.004, 0.002, -0.002])


def result(direction, margin, shift, noise=SMALL):
    return Expectation(direction, margin).result(simultaneous({"": list(noise + shift)})[""])


@pytest.mark.parametrize(
    ("direction", "margin", "shift", "expected"),
    [
        ("better", 0.0, -0.05, "supported"),
        ("better", 0.0, 0.05, "refuted"),
        ("better", 0.0, 0.0, "undecided"),
        ("better", 0.04, -0.05, "supported"),
        ("better", 0.04, -0.01, "refuted"),  # better, and not by that much
        ("better", 0.04, -0.04, "undecided"),
        ("worse", 0.04, 0.01, "refuted"),
        ("better", -0.04, 0.01, "supported"),  # not worse by 0.04
        ("better", -0.04, 0.05, "refuted"),
        ("equivalent", 0.01, 0.0, "supported"),
        ("equivalent", 0.01, 0.05, "refuted"),
        ("equivalent", 0.001, 0.0, "undecided"),
    ],
)
def test_a_hypothesis_is_supported_refuted_or_undecided(direction, margin, shift, expected):
    assert result(direction, margin, shift) == expected


def test_the_same_difference_named_the_other_way_round_has_the_mirrored_result():
    interval = simultaneous({"": list(SMALL + 0.05)})[""]
    assert Expectation("worse", 0.04).result(interval) == "supported"
    assert Expectation("better", 0.04).result(-interval) == "supported"
    assert ((-interval).low, (-interval).high) == (-interval.high, -interval.low)


def results_of(hypothesis, rows):
    return [hypothesis.result(interval) for interval in simultaneous(named(rows)).values()]


@pytest.mark.parametrize("direction", ["better", "worse"])
def test_a_list_of_hypotheses_at_their_edge_is_decided_either_way_in_5_of_100(direction, volume):
    """Three that are neither true nor false, six seeds: both ways together are false results."""
    tables, generator = volume(1_000, 10_000, 10_000), np.random.default_rng(0)
    wrong = 0
    for _ in range(tables):
        rows = generator.normal(size=(3, 6))
        wrong += any(r != "undecided" for r in results_of(Expectation(direction, 0.0), rows))
    assert wrong / tables <= most(0.05, tables)


@pytest.mark.parametrize("margin", [0.05, 0.25, 1.0])
def test_a_true_equivalence_is_refuted_in_at_most_5_of_100(margin, volume):
    """The difference is the margin itself, in units of the standard error; three in a list."""
    tables, generator = volume(700, 10_000, 10_000), np.random.default_rng(1)
    wrong = 0
    for _ in range(tables):
        rows = margin / math.sqrt(6) + generator.normal(size=(3, 6))
        hypothesis = Expectation("equivalent", margin / math.sqrt(6))
        wrong += "refuted" in results_of(hypothesis, rows)
    assert wrong / tables <= most(0.05, tables)


def test_an_undecided_hypothesis_counts_the_seeds_to_the_nearest_end_of_what_it_states():
    """Better by 0.05, at -0.055: 0.005 away, a quarter of a deviation; alone, some 130 seeds."""
    noise = np.array([-0.02, -0.02, 0.0, 0.02, 0.02])
    interval = simultaneous({"": list(noise - 0.055)})[""]
    hypothesis = Expectation("better", 0.05)
    assert hypothesis.result(interval) == "undecided"
    assert (
        40 < hypothesis.seeds_to_decide(interval) <= 130
    )  # it would be 4, were it the effect that had to be as large as the margin
    assert Expectation("better", 0.0).seeds_to_decide(interval) is None


def test_one_seed_decides_nothing_and_an_equivalence_needs_a_margin():
    interval = simultaneous({"": [-1.0]})[""]
    assert Expectation("better", 0.0).result(interval) == "undecided"
    with pytest.raises(ValueError, match="an equivalence needs a margin"):
        Expectation("equivalent", 0.0)
