import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.intervals import estimate, seeds_for, seeds_needed
from llama_ablate.evidence.verdicts import (
    SIDES,
    compare_region,
    count_ended,
    find_region,
    judge,
    negate,
    seeds_to_decide,
    verdict,
)
from tests.evidence.rows import most, row_of

NOISE = np.array([-0.1, 0.0, 0.1, 0.05])


def word(values, margin=None):
    row = row_of(values)
    return verdict(row["low"], row["high"], margin)


def test_one_row_alone():
    words = {-1.0: "better", 1.0: "worse", 0.0: "inconclusive"}
    assert {shift: word(NOISE + shift) for shift in words} == words
    assert (word(NOISE, 0.3), word(NOISE, 0.05)) == ("equivalent", "inconclusive")
    # A difference within the margin is there for certain, and smaller than what matters.
    assert (word(NOISE - 1.0, 0.3), word(NOISE - 1.0, 2.0)) == ("better", "equivalent")
    assert word([-1.0], 0.5) == "inconclusive"  # one seed says nothing


def test_losses_that_are_equal_bit_for_bit_are_equal_with_and_without_a_margin():
    for margin, alike in ((None, "inconclusive"), (0.01, "equivalent")):
        assert word([0.0, 0.0, 0.0], margin) == "equal"
        assert word([1e-15, 0.0, -1e-15], margin) == alike


def test_false_equivalents_at_the_edge_of_the_margin_are_at_most_5_in_100_tables():
    """Seven arms that differ by the margin, against one baseline."""
    tables, generator = 10_000, np.random.default_rng(2)
    edge = np.where(np.arange(7) % 2, -1.0, 1.0)[:, None]
    arms, base = generator.normal(size=(tables, 7, 4)), generator.normal(size=(tables, 1, 4))
    found = estimate(edge + (arms - base) / 8, 0.0, math.inf, 0.05 / 7)
    words = np.vectorize(verdict)(found["low"], found["high"], 1.0)
    assert (words == "equivalent").any(1).mean() <= most(0.05, tables)


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
    sd, chi = np.std(values, ddof=1), 11.1433  # 97.5% of four degrees of freedom
    expected = max(6, seeds_for(distance, sd * math.sqrt(4 / chi)))
    assert seeds_to_decide(row_of(values), margin) == expected


def test_a_decided_row_and_one_of_few_seeds_count_none():
    wide = np.array([-0.4, -0.2, 0.0, 0.2, 0.4])
    assert math.isnan(seeds_to_decide(row_of(wide + 9)))
    assert math.isnan(seeds_to_decide(row_of(wide[:4]), 0.1))
    assert math.isnan(seeds_to_decide(row_of(wide * 0)))


def ended(runs, lost=0, short=0):
    return ["collapsed"] * lost + ["too short"] * short + ["ok"] * (runs - lost - short)


def judged(row, own, base, margin=None):
    counts = [*count_ended(own).values(), *count_ended(base).values()]
    return judge({**row, **dict(zip(SIDES, counts, strict=True))}, margin)


WITHIN, BETTER, WORSE = (row_of(NOISE / 100 + shift) for shift in (0.0, -0.1, 0.1))


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
        # Most of the lost runs give the word.
        (["diverged", "collapsed", "collapsed"], ended(3), ("collapsed",) * 3),
        (["diverged", "collapsed"], ended(3), ("diverged",) * 3),
    ],
)
def test_how_runs_ended_may_decide_or_keep_an_interval_from_deciding(own, base, expected):
    found = [judged(row, own, base) for row in (BETTER, WORSE)]
    assert (*found, judged(WITHIN, own, base, 0.5)) == expected


def test_an_arm_that_ends_no_worse_run_by_run_never_has_the_worse_word():
    """All ways in which four runs of two arms and a baseline may end, one of them no worse."""
    order, lost = ["ok", "too short", "collapsed", "diverged"], {"collapsed", "diverged"}
    ways = list(itertools.combinations_with_replacement(range(4), 4))
    words = {way: [order[i] for i in way] for way in ways}
    found = {
        (row["mean"] > 0, own, base): judged(row, words[own], words[base])
        for row, own, base in itertools.product((BETTER, WORSE), ways, ways)
    }
    for base, own, way in itertools.product(ways, ways, ways):
        if any(a > b for a, b in zip(own, way, strict=True)):
            continue
        lost_of = [sum(i > 1 for i in of) for of in (own, way)]
        # The interval of the better arm lies no higher.
        for one, other in ((False, False), (False, True), (True, True)):
            better, worse = found[one, own, base], found[other, way, base]
            assert (better, worse) != ("worse", "better")
            assert better not in lost or worse in lost
            if better == "too short":
                assert worse in {"too short", *lost} or lost_of[1] > lost_of[0]


@pytest.mark.parametrize(("rate", "tied"), [(0.2, 0.8), (0.4, 0.0), (0.4, 0.8)])
def test_where_no_arm_differs_lost_seeds_make_false_verdicts_no_more_likely(rate, tied, volume):
    """Three arms, five seeds; `tied` is the correlation of being lost with the loss that was."""
    tables, generator = volume(400, 5_000, 5_000), np.random.default_rng(3)
    losses, other = generator.normal(size=(2, tables, 4, 5))
    lost = tied * losses + math.sqrt(1 - tied**2) * other > stats.norm.ppf(1 - rate)
    whole = losses[:, 1:] - losses[:, :1]
    kept = np.where(lost[:, 1:] | lost[:, :1], math.nan, whole)
    rows, of_all = (estimate(of, 0.0, math.inf, 0.05 / 3) for of in (kept, whole))
    ends = np.where(lost, "collapsed", "ok")
    false = reversed_signs = 0
    for i in range(tables):
        each = [{key: of[i, arm] for key, of in rows.items()} for arm in range(3)]
        words = [judged(row, ends[i, 1 + arm], ends[i, 0]) for arm, row in enumerate(each)]
        uncut = [verdict(of_all["low"][i, arm], of_all["high"][i, arm]) for arm in range(3)]
        false += any(one != "inconclusive" for one in words)
        reversed_signs += any(
            {*both} == {"better", "worse"} for both in zip(words, uncut, strict=True)
        )
    assert false / tables <= most(0.05, tables)
    assert reversed_signs == 0


SMALL = np.array([-0.004, 0.0, 0.004, 0.002, -0.002])


@pytest.mark.parametrize(
    ("direction", "margin", "shift", "expected"),
    [
        ("better", 0.0, -0.05, "supported"),
        ("better", 0.0, 0.05, "refuted"),
        ("better", 0.0, 0.0, "undecided"),
        ("better", 0.04, -0.05, "supported"),
        ("better", 0.04, -0.01, "refuted"),  # better, and not by that much
        ("better", 0.04, -0.04, "undecided"),
        ("better", -0.04, 0.01, "supported"),  # not worse by 0.04
        ("better", -0.04, 0.05, "refuted"),
        ("equivalent", 0.01, 0.0, "supported"),
        ("equivalent", 0.01, 0.05, "refuted"),
        ("equivalent", 0.001, 0.0, "undecided"),
    ],
)
def test_a_hypothesis_is_supported_refuted_or_undecided(direction, margin, shift, expected):
    row = row_of(SMALL + shift)
    assert compare_region(row, find_region(direction, margin)) == expected
    mirrored = {"better": "worse", "worse": "better"}.get(direction, direction)
    turned = negate({**row, **dict.fromkeys(SIDES, 0)})
    assert compare_region(turned, find_region(mirrored, margin)) == expected
    alone = row_of([shift + 1e-6])  # one seed, which says nothing
    assert compare_region(alone, find_region(direction, margin)) == "undecided"


def test_an_equivalence_needs_a_margin_and_a_negated_row_exchanges_its_sides():
    with pytest.raises(ValueError, match="an equivalence needs a margin"):
        find_region("equivalent", 0.0)
    row = {**BETTER, **dict.fromkeys(SIDES, 0), "own_lost": 2, "other_runs": 5}
    turned = negate(row)
    assert (turned["low"], turned["high"]) == (-row["high"], -row["low"])
    assert (turned["other_lost"], turned["own_runs"]) == (2, 5)
    assert negate(turned) == row


def test_an_undecided_hypothesis_counts_the_seeds_to_the_nearest_end_of_what_it_states():
    """Better by 0.05, at -0.055: 0.005 away, a quarter of a deviation; alone, some 130 seeds."""
    row = row_of(np.array([-0.02, -0.02, 0.0, 0.02, 0.02]) - 0.055)
    assert compare_region(row, find_region("better", 0.05)) == "undecided"
    # It would be 4, were it the effect that had to be as large as the margin.
    assert 40 < seeds_needed(row, 0.005) <= 130
