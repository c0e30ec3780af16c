import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.medians import (
    UNMEASURED,
    compare_column,
    estimate_column,
    find_ratio,
    summarize_turns,
)


def test_the_interval_is_students_over_the_logarithms_of_the_medians_of_processes():
    """Medians 2, 3, 5 and 4: the other turns do not matter."""
    found = summarize_turns([[2.0, 1.0, 9.0], [3.0, 3.0, 3.0], [4.0, 5.0, 60.0], [4.0]])
    logs = np.log([2.0, 3.0, 5.0, 4.0])
    ends = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert found["value"] == pytest.approx(stats.gmean([2, 3, 5, 4]))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.exp(ends)))
    assert (found["processes"], found["turns"], {*found}) == (4, 10, {*UNMEASURED})


def test_one_process_has_no_interval_and_none_has_no_timing():
    alone = summarize_turns([[6, 5, 4, 3, 2, 1]])
    assert (alone["value"], alone["processes"]) == (pytest.approx(3.5), 1)
    assert np.isnan([alone["low"], alone["high"]]).all()
    for nothing in ([], [[1.0], []]):
        with pytest.raises(ValueError, match="needs a process, and a turn in each"):
            summarize_turns(nothing)


def test_ratios_are_taken_turn_by_turn():
    """The machine slowed tenfold in the second turn, and for all of the second process."""
    steady = find_ratio([[2, 20, 2], [40, 40, 40]], [[1, 10, 1], [20, 20, 20]])
    assert [steady[key] for key in ("value", "low", "high")] == pytest.approx([2, 2, 2])
    # The ratios are 1, 3 and 4; that of the medians would be 2.
    assert find_ratio([[1, 6, 4]], [[1, 2, 1]])["value"] == pytest.approx(3)


def test_speeds_that_were_not_taken_in_the_same_turns_have_no_ratio():
    for own, base in ((((1.0, 2.0),), ((1.0,), (2.0,))), ((), ()), (((1.0,),), ((0.0,),))):
        assert math.isnan(compare_column({"own": own, "base": base}, "base")["own"]["value"])


def test_a_column_of_speeds_shares_one_variance_and_its_intervals_hold_at_once():
    """Medians of the turns' ratios in a process: 1.2, 1.25, 1.15, and 1.01, 1, 0.99."""
    base = np.array([[1000.0, 1100.0, 900.0], [500.0, 500.0, 500.0], [1000.0, 1000.0, 1000.0]])
    faster = base * [[1.2, 1.3, 1.1], [1.25, 1.25, 1.0], [1.15, 1.15, 2.0]]
    medians = {"faster": [1.2, 1.25, 1.15], "again": [1.01, 1.0, 0.99]}
    turns = {"base": base, "faster": faster, "again": base * np.array(medians["again"])[:, None]}
    found = compare_column({row: own.tolist() for row, own in turns.items()}, "base")
    logs = {row: np.log(own) for row, own in medians.items()}
    error = math.sqrt(np.mean([own.var(ddof=1) for own in logs.values()]) / 3)
    half = stats.t.ppf(1 - 0.05 / 2 / 2, 2 * 2) * error
    for row, own in logs.items():
        ends = [math.exp(own.mean() + by) for by in (0.0, -half, half)]
        assert [found[row][key] for key in ("value", "low", "high")] == pytest.approx(ends)
    assert found["base"]["value"] == 1
    assert math.isnan(found["base"]["low"])


def test_a_row_that_varies_more_than_the_others_has_its_own_variance_and_lends_it_to_none():
    logs = np.random.default_rng(0).normal(0, 0.01, (6, 5))
    logs[0] *= 20
    mean, half = estimate_column(logs)
    assert half[0] == pytest.approx(stats.t.ppf(1 - 0.05 / 6 / 2, 4) * stats.sem(logs[0]))
    pooled = math.sqrt(logs.var(1, ddof=1).mean() / 5)
    assert half[1:] == pytest.approx(stats.t.ppf(1 - 0.05 / 6 / 2, 24) * pooled)
    assert mean == pytest.approx(logs.mean(1))
