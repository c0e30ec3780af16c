"""The memory of noise: what it predicts of experiments that it has not seen."""

import math
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from llama_ablate.evidence import StandardError, simultaneous
from llama_ablate.evidence.noise import FEWEST, KINDS, NoiseMemory, Seen
from tests.evidence.test_few_seeds import most


def drawn(generator, spread, experiments=30, df=200):
    """A memory of experiments whose variance falls with length, each off by a factor of its own."""
    rows = []
    for i in range(experiments):
        tokens, off = int(10 ** generator.uniform(5, 7)), generator.normal(0, spread)
        for kind in ("norm", "feedforward"):
            log = -8 - 0.5 * math.log(tokens / 1e6) + (kind == "feedforward") + off
            variance = math.exp(log) * generator.chisquare(df) / df
            rows.append(Seen(f"e{i}", "books", kind, 10**6, tokens, variance**0.5, df, 0.01))
    return NoiseMemory(tuple(rows))


def test_the_law_of_a_made_population_is_found():
    memory = drawn(np.random.default_rng(0), 0.1)
    for kind, more in (("norm", 0.0), ("feedforward", 1.0)):
        for tokens in (200_000, 4_000_000):
            found = memory.expected(kind, 10**6, tokens)
            true = math.exp((-8 - 0.5 * math.log(tokens / 1e6) + more) / 2)
            assert found.se == pytest.approx(true, rel=0.15)


def test_a_prediction_is_worth_less_the_more_experiments_differ():
    """Of a scaled inverse chi-squared variance trigamma(df / 2) is that of its logarithm."""
    from scipy.special import polygamma

    worth = [drawn(np.random.default_rng(1), spread, 200).df for spread in (0.3, 1.0)]
    for df, spread in zip(worth, (0.3, 1.0), strict=True):
        assert polygamma(1, df / 2) == pytest.approx(spread**2, rel=0.25)


def test_nothing_is_predicted_of_what_is_unlike_all_that_was_seen():
    memory = drawn(np.random.default_rng(2), 0.3)
    assert memory.expected("norm", 10**6, 10**6)
    assert memory.expected("norm", 10**6, 10**9) is None
    assert memory.expected("norm", 10**8, 10**6) is None
    few = NoiseMemory(
        tuple(row for row in memory.rows if row.experiment in {"e0", "e1", "e2", "e3"})
    )
    assert few.experiments == FEWEST - 1
    assert few.expected("norm", 10**6, 10**6) is None
    assert NoiseMemory(()).text("books", 10) is None


def test_the_texts_error_falls_with_the_root_of_its_documents():
    memory = drawn(np.random.default_rng(2), 0.3)
    assert memory.text("books", 100).se == pytest.approx(0.001)
    assert memory.text("others", 25).se == pytest.approx(0.002)
    assert memory.text("books", 0) is None
    blank = NoiseMemory(tuple(replace(row, text=math.nan) for row in memory.rows))
    assert blank.text("books", 100) is None


def test_what_is_written_is_read_again_and_the_shipped_table_is_small():
    memory = NoiseMemory.shipped()
    assert NoiseMemory.read(memory.written()).written() == memory.written()
    assert len(memory.written()) <= 10_000
    assert {row.kind for row in memory.rows} <= {*KINDS}
    assert memory.experiments >= 20
    file = resources.files("llama_ablate.evidence") / "noise.csv"
    assert file.read_text("utf-8") == memory.written()


def false_tables(scale, seeds, rows, count, generator, expected):
    """Count tables of equal arms with a verdict; `scale` draws the true deviation of a table."""
    false = 0
    for _ in range(count):
        arms, base = generator.normal(size=(rows, seeds)), generator.normal(size=seeds)
        differences = scale(generator) * (arms - base) / math.sqrt(2)
        found = simultaneous(
            {str(i): list(row) for i, row in enumerate(differences)},
            expected={str(i): expected for i in range(rows)},
        )
        false += any(not row.low <= 0 <= row.high for row in found.values())
    return false / count


@pytest.mark.parametrize(("seeds", "rows"), [(2, 1), (2, 7), (3, 3), (5, 3)])
def test_in_the_population_that_is_expected_at_most_5_percent_of_equal_tables_have_a_verdict(
    seeds, rows, volume
):
    expected, count = StandardError(1.0, 2.16), volume(400, 10_000, 10_000)

    def scale(generator):
        return math.sqrt(expected.df / generator.chisquare(expected.df))

    share = false_tables(scale, seeds, rows, count, np.random.default_rng(9), expected)
    assert share <= most(0.05, count)


@pytest.mark.full
@pytest.mark.parametrize(("times", "worst"), [(2, 0.1), (4, 0.17), (8, 0.13)])
def test_a_table_that_is_noisier_than_expected_is_wrong_more_often_and_this_often(times, worst):
    """What a prior costs where it is wrong, beside 5%; docs/evidence.md says so."""
    for seeds, rows in ((2, 1), (2, 7), (3, 3), (5, 3)):
        share = false_tables(
            lambda _: times, seeds, rows, 4_000, np.random.default_rng(1), StandardError(1.0, 2.16)
        )
        assert share <= worst, (seeds, rows)


def test_a_table_that_is_far_noisier_than_expected_keeps_its_own_variance():
    values = {"a": [10.0, -10.0, 9.0], "b": [8.0, -11.0, 10.0]}
    expected = dict.fromkeys(values, StandardError(0.01, 2.16))
    assert simultaneous(values, expected=expected) == simultaneous(values)
    quiet = {"a": [0.1, -0.1], "b": [0.11, -0.12]}
    with_prior = simultaneous(quiet, expected=dict.fromkeys(quiet, StandardError(1.0, 2.16)))
    assert all(row.pooled and row.df == pytest.approx(3.16) for row in with_prior.values())


def test_a_row_of_no_variance_takes_nothing_of_what_was_expected():
    found = simultaneous({"a": [0.5, 0.5]}, expected={"a": StandardError(1.0, 2.16)})["a"]
    assert (found.low, found.high) == (0.5, 0.5)
