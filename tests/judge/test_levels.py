"""Levels over a ledger: a published example, the formulas read anew, and simulated ledgers."""

import math

import numpy as np
import pytest

from llama_ablate.evidence import StandardError, simultaneous, verdict
from llama_ablate.evidence.sequential import spending
from llama_ablate.judge.gates import decide
from llama_ablate.judge.ledger import GateDifference
from llama_ablate.judge.levels import MAX_LEVELS, family_wise, lord, split_level, weights

#: The example of Bioconductor's onlineFDR: p values, and the levels that its documentation prints.
P = [
    *(2.90e-08, 0.06743, 0.01514, 0.08174, 0.00171, 3.60e-05, 0.79149, 0.27201),
    *(0.28295, 7.59e-08, 0.69274, 0.30443, 0.00136, 0.72342, 0.54757),
]
IN_ORDER = [
    *(0.0002675839, 0.0024664457, 0.0005732818, 0.0004872805, 0.0004059066, 0.0003447286),
    *(0.0029745013, 0.0008450114, 0.0007305648, 0.0006243143, 0.0032185913, 0.0010617227),
    *(0.0009256825, 0.0008019657, 0.0007059610),
]
OVERLAPPING = [
    *(2.675839e-04, 5.819103e-05, 2.457817e-03, 5.649373e-04, 4.810068e-04, 4.011918e-04),
    *(3.410964e-04, 2.971630e-03, 8.426900e-04, 7.286513e-04, 6.227110e-04, 3.217229e-03),
    *(1.060551e-03, 9.246646e-04, 8.010731e-04),
]
#: As onlineFDR has the weights: over all whole numbers they sum to 1.
EVERY = (0.07720838 * np.log(2) / weights(1000)[0] * np.array(weights(1000))).tolist()


@pytest.mark.parametrize(("lag", "published"), [(0, IN_ORDER), (1, OVERLAPPING)])
def test_the_levels_are_those_of_a_published_example(lag, published):
    """Each test is decided before the next begins, or one later."""
    accepted, levels = [], []
    for test, p in enumerate(P, 1):
        levels.append(lord(test, accepted, EVERY, 0.05, 0.005))
        if p <= levels[-1]:
            accepted.append(test + lag)
    assert levels == pytest.approx(published, rel=2e-7)
    assert accepted == [1 + lag, 6 + lag, 10 + lag]


@pytest.mark.parametrize("most", [1, 2, 30, 1000])
def test_the_weights_fall_and_all_levels_together_spend_the_error(most):
    shares = weights(most)
    assert shares == sorted(shares, reverse=True)
    assert sum(family_wise(n, shares, 0.05) for n in range(1, most + 1)) == pytest.approx(0.05)
    # Without an acceptance LORD++ spends its first wealth, however many tests there are.
    assert sum(lord(n, [], shares, 0.05, 0.025) for n in range(1, most + 1)) == pytest.approx(0.025)


@pytest.mark.parametrize("level", [1e-9, 1e-4, 6.2e-4, 1.5e-3, 0.025])
def test_the_levels_of_both_gates_multiply_to_the_granted_one_at_most(level):
    one, two = split_level(level)
    assert one * two <= level * (1 + 1e-12)
    assert one == min(math.sqrt(level), MAX_LEVELS[0])
    assert two == min(math.sqrt(level), MAX_LEVELS[1])


LOOKS, CONFIRM, CANDIDATES, MARGIN = (4, 8), 6, 100, 0.5


def show(differences, text_sd, share=1.0, alpha=None):
    """Return a gate's difference as its table shows it, with the error of its text."""
    errors = {"": StandardError(text_sd, 200.0)} if text_sd else {}
    row = simultaneous({"": list(differences)}, shares={"": share}, text_errors=errors)[""]
    row = row.at(alpha) if alpha else row
    numbers = {name: getattr(row, name) for name in ("n", "low", "high", "alpha")}
    word = verdict(row, MARGIN)
    return GateDifference(
        **numbers, unit="nats", difference=row.mean, verdict=word, seeds_low=math.nan
    )


def judge(draw, level, means, text_sd):
    """Return whether a candidate passes both gates, whose differences have these means."""
    one, two = (2 * own for own in split_level(level))
    losses = draw.standard_normal(LOOKS[-1]) + means[0]
    for look, share in zip(LOOKS, spending(LOOKS), strict=True):
        found = show(losses[:look], text_sd, one / 0.05 * share)
        if found.verdict != "inconclusive":
            break
    if decide(1, [found]):
        return False
    losses = draw.standard_normal(CONFIRM) + means[1]
    return decide(2, [show(losses, text_sd, alpha=two)])[0] == "accepted"


def simulate(count, share, effect, text_sd=0.0):
    """Return of many ledgers: false discoveries, share with any, and share of helpful accepted.

    `text_sd` is the deviation of what all candidates of a ledger have in common on a text; the
    intervals have that error, too, as a table's have.
    """
    found = []
    for seed in range(count):
        draw, shares = np.random.default_rng(seed), weights(CANDIDATES)
        texts, accepted, right = text_sd * draw.standard_normal(2), [], 0
        helps = draw.random(CANDIDATES) < share
        for test, is_true in enumerate(helps, 1):
            level = min(lord(test, accepted, shares, 0.05, 0.025), 0.025)
            if judge(draw, level, texts - effect * is_true, text_sd):
                accepted.append(test)
                right += is_true
        false = (len(accepted) - right) / max(len(accepted), 1)
        found.append((false, false > 0, right / max(helps.sum(), 1)))
    return dict(zip(("fdr", "any", "power"), np.mean(found, 0), strict=True))


@pytest.mark.parametrize(("effect", "power"), [(1.0, 0.23), (1.5, 0.78), (2.0, 0.98)])
def test_two_gates_accept_most_of_what_helps_and_little_else(effect, power, volume):
    """Effects in deviations of a seed's difference; one candidate in ten helps."""
    count = volume(3, 60, 300)
    found = simulate(count, 0.1, effect)
    print(f"{effect} sd, {count} ledgers: {found}")
    assert found["fdr"] <= 0.02 + 0.1 / count**0.5
    assert found["power"] == pytest.approx(power, abs=0.03 + 0.35 / count**0.5)


@pytest.mark.parametrize("text_sd", [0.0, 0.25])
def test_where_nothing_helps_no_ledger_in_twenty_accepts_anything(text_sd, volume):
    count = volume(4, 60, 300)
    found = simulate(count, 0.0, 0.0, text_sd)
    print(f"nothing helps, texts of {text_sd} sd, {count} ledgers: {found}")
    assert found["any"] <= 0.05
