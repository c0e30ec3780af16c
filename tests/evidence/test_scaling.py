import math

import numpy as np
import pytest
from scipy import optimize

from llama_ablate.evidence.scaling import Law, fit, fit_law, fit_laws, fit_surface, gap
from llama_ablate.evidence.sensitivity import sensitivity

SIZES = [1e5, 3e5, 1e6, 3e6, 1e7]


@pytest.mark.parametrize(
    "law", [Law(1.5, 12.0, 0.18), Law(0.0, 5.0, 0.1), Law(2.0, 300.0, 0.5)], ids=str
)
def test_known_constants_are_recovered_from_points_on_the_law(law):
    found = fit_law(SIZES, [law(x) for x in SIZES])
    assert found.floor == pytest.approx(law.floor, abs=1e-3)
    assert found.exponent == pytest.approx(law.exponent, rel=1e-3)
    assert found(1e9) == pytest.approx(law(1e9), rel=1e-4)


def test_a_known_floor_is_kept_and_two_sizes_are_then_enough():
    law = Law(0.7, 40.0, 0.3)
    found = fit_law([1e4, 1e6], [law(1e4), law(1e6)], floor=0.7)
    assert found.floor == 0.7
    assert found.exponent == pytest.approx(0.3, rel=1e-4)
    assert found.scale == pytest.approx(40.0, rel=1e-3)
    with pytest.raises(ValueError, match="3 constants need 3 sizes"):
        fit_law([1e4, 1e6], [2.0, 1.0])


def test_bootstrap_intervals_hold_the_true_projection():
    law, held = Law(1.5, 12.0, 0.18), 0
    for trial in range(20):
        noise = np.random.default_rng(trial).normal(0, 0.003, (len(SIZES), 8))
        losses = [[law(x) + e for e in row] for x, row in zip(SIZES, noise, strict=True)]
        found = fit(SIZES, losses, at=1e8, draws=100)
        assert found.projected.low < found.projected.value < found.projected.high
        held += found.projected.low <= law(1e8) <= found.projected.high
    assert held >= 16  # 95% intervals miss five of twenty in one of 300 such tests


@pytest.mark.parametrize("seeds", [3, 8])
def test_intervals_of_few_seeds_are_as_wide_as_they_must_be(seeds):
    law, held = Law(1.5, 12.0, 0.18), 0
    for trial in range(25):
        noise = np.random.default_rng(100 + trial).normal(0, 0.003, (len(SIZES), seeds))
        losses = [[law(x) + e for e in row] for x, row in zip(SIZES, noise, strict=True)]
        found = fit(SIZES, losses, at=1e8, draws=40)
        held += found.exponent.low <= law.exponent <= found.exponent.high
    assert held >= 20  # of 25: what holds 95% falls below that in one of 1,000 such tests


def test_laws_that_are_fitted_at_once_are_those_that_are_fitted_alone():
    """What scipy reaches from the same start with the same loss is the reference."""
    near = Law(1.5, 12.0, 0.18)
    noise = np.random.default_rng(3).normal(0, 0.003, (8, len(SIZES)))
    rows = np.array([near(x) for x in SIZES]) + noise
    laws, lost = fit_laws(SIZES, rows, [near] * len(rows))

    def residuals(of, row):
        return np.log(of[0] + of[1] * (np.array(SIZES) / 1e6) ** -of[2]) - np.log(row)

    for law, mine, row in zip(laws, lost, rows, strict=True):
        theirs = optimize.least_squares(
            residuals,
            [1.5, near.scale * 1e6**-0.18, 0.18],
            args=(row,),
            loss="huber",
            f_scale=1e-3,
            bounds=([0, 0, 0], [9, 9, 5]),
            xtol=1e-12,
            ftol=1e-12,
            max_nfev=2000,
        )
        assert mine <= 2 * theirs.cost * 1.001
        assert law.exponent == pytest.approx(theirs.x[2], rel=0.02)


def test_losses_that_follow_no_law_still_give_one():
    assert fit_law([1e12, 2e12, 4e12], [2.5, 2.3, 2.301]).exponent <= 5


def test_one_seed_has_no_interval():
    law = Law(1.0, 9.0, 0.2)
    found = fit(SIZES, [[law(x)] for x in SIZES], at=1e8)
    assert math.isnan(found.exponent.low)
    assert found.exponent.value == pytest.approx(0.2, rel=1e-2)


def test_the_surface_of_parameters_and_tokens_is_recovered():
    n = [size for size in (1e5, 3e5, 1e6) for _ in range(3)]
    d = [1e6, 3e6, 1e7] * 3
    losses = [1.4 + 20 / a**0.3 + 300 / b**0.4 for a, b in zip(n, d, strict=True)]
    found = fit_surface(n, d, losses)
    expected = {"E": 1.4, "A": 20.0, "alpha": 0.3, "B": 300.0, "beta": 0.4}
    assert found == pytest.approx(expected, rel=1e-2)
    for tilt in (0, 1e-4):  # steps are whole numbers, so a ratio of tokens is never quite kept
        tokens = [20 * x * (1 + tilt * (-1) ** i) for i, x in enumerate(SIZES)]
        with pytest.raises(ValueError, match="vary together"):
            fit_surface(SIZES, tokens, [2.0, 1.9, 1.8, 1.7, 1.6])
    with pytest.raises(ValueError, match="five points"):
        fit_surface(n[:4], d[:4], losses[:4])


SIZES_3 = [1e4, 1e5, 1e6]
NOISE = np.array([-0.002, 0.0, 0.002, 0.001, -0.001])


def differences(*means, tilt=0.0):
    """Return a row of differences by seed for each size; `tilt` gives seeds slopes of their own."""
    middle = (len(means) - 1) / 2
    return [list(mean + NOISE * (1 + tilt * (i - middle))) for i, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("values", "margin", "trend"),
    [
        (differences(-0.01, -0.03, -0.05, tilt=1), None, "grows"),
        (differences(0.01, 0.03, 0.05, tilt=1), None, "grows"),
        (differences(-0.05, -0.03, -0.01, tilt=1), None, "closes"),
        (differences(-0.03, -0.03, -0.03, tilt=1), 0.01, "holds"),
        (differences(-0.03, -0.03, -0.03, tilt=1), None, "undecided"),
        (differences(-0.03, -0.03, -0.03, tilt=9), 0.001, "undecided"),
    ],
)
def test_a_gap_grows_holds_or_closes(values, margin, trend):
    assert gap(SIZES_3, values, at=1e7, margin=margin).trend == trend


def test_the_slope_and_the_projection_are_those_of_a_line_by_hand():
    found = gap(SIZES_3, differences(-0.01, -0.03, -0.05), at=1e7)
    assert found.slope.mean == pytest.approx(-0.02)  # nats per tenfold size
    assert found.projected.mean == pytest.approx(-0.07)
    with pytest.raises(ValueError, match="two sizes"):
        gap([1e4], [[0.1, 0.2]], at=1e5)


def test_slope_intervals_cover_the_true_slope_in_93_to_97_percent_of_simulations():
    generator, held = np.random.default_rng(0), 0
    for _ in range(2000):
        noise = generator.normal(0, 0.01, (3, 4))
        values = np.array([[-0.01], [-0.03], [-0.05]]) + noise
        slope = gap(SIZES_3, values.tolist(), at=1e7).slope
        held += slope.low <= -0.02 <= slope.high
    assert 0.93 <= held / 2000 <= 0.97


def test_learning_rate_sensitivity_is_the_mean_above_the_minimum():
    assert sensitivity([2.0, 1.0, 1.5, 3.5]) == pytest.approx((1.0 + 0.0 + 0.5 + 2.5) / 4)
    assert sensitivity([1.0, 1.0, 1.0]) == 0
    assert math.isnan(sensitivity([1.0, 2.0]))
