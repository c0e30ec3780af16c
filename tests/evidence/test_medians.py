import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.medians import ratio, timing


def test_the_interval_is_students_over_the_logarithms_of_the_medians_of_processes():
    """Medians 2, 3, 5 and 4: the other turns do not matter."""
    measured = timing([[2.0, 1.0, 9.0], [3.0, 3.0, 3.0], [4.0, 5.0, 60.0], [4.0]])
    logs = np.log([2.0, 3.0, 5.0, 4.0])
    low, high = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert measured.value == pytest.approx(stats.gmean([2, 3, 5, 4]))
    assert (measured.low, measured.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert (measured.processes, measured.turns) == (4, 10)


def test_one_process_has_no_interval_and_none_has_no_timing():
    alone = timing([[6, 5, 4, 3, 2, 1]])
    assert (alone.value, alone.processes) == (pytest.approx(3.5), 1)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    for nothing in ([], [[1.0], []]):
        with pytest.raises(ValueError, match="needs a process, and a turn in each"):
            timing(nothing)


def test_ratios_are_taken_turn_by_turn():
    """The machine slowed tenfold in the second turn, and for all of the second process."""
    steady = ratio([[2, 20, 2], [40, 40, 40]], [[1, 10, 1], [20, 20, 20]])
    assert (steady.value, steady.low, steady.high) == (2, 2, 2)
    # The ratios are 1, 3 and 4; that of the medians would be 2.
    assert ratio([[1, 6, 4]], [[1, 2, 1]]).value == pytest.approx(3)


@pytest.mark.parametrize("processes", [3, 10])
@pytest.mark.parametrize("share", [0.0, 3.0])
def test_the_interval_holds_the_ratio_over_all_processes_in_95_percent(processes, share):
    """`share` is the spread between processes in units of that of a turn, which is skewed."""
    generator = np.random.default_rng(0)
    shape = 2000, processes, 9
    places = share * generator.normal(size=(*shape[:2], 1))
    case, other = (np.exp(0.05 * generator.exponential(size=shape)) for _ in range(2))
    case *= 1.2 * np.exp(0.05 * places)
    measured = [ratio(*both) for both in zip(case.tolist(), other.tolist(), strict=True)]
    held = np.mean([m.low <= 1.2 <= m.high for m in measured])
    assert 0.93 < held < 0.97  # four standard errors of 2,000 at 0.95 are 0.02
