import math

import numpy as np
import pytest

from llama_ablate.evidence.pairing import measure_pairing


@pytest.mark.parametrize(("r", "times"), [(0.92, 12.5), (0.5, 2.0), (0.09, 1.1)])
def test_pairing_saves_one_run_in_one_less_the_correlation(r, times):
    generator = np.random.default_rng(0)
    shared, own, other = generator.normal(0, 1, (3, 200_000))
    a = math.sqrt(r) * shared + math.sqrt(1 - r) * own
    b = math.sqrt(r) * shared + math.sqrt(1 - r) * other
    correlation, saved = measure_pairing(a, b)
    assert correlation == pytest.approx(r, abs=0.01)
    assert saved == pytest.approx(times, rel=0.01)


def test_pairing_saves_little_where_the_spreads_differ_however_high_the_correlation():
    correlation, saved = measure_pairing([2.0, 4.0, 6.0, 8.0, 10.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert correlation == pytest.approx(1)
    # Variances 10 and 0.025; the differences 1.9, 3.8 ... 9.5 have 9.025.
    assert saved == pytest.approx(10.025 / 9.025)


def test_the_correlation_of_fewer_than_five_pairs_is_not_shown():
    """Three pairs along a line have r 1.00 and save hundreds of runs, by chance."""
    for pairs in (([2.0, 4.0, 6.1, 8.0], [1.0, 3.0, 5.0, 7.0]), ([], [])):
        assert np.isnan(measure_pairing(*pairs)).all()
