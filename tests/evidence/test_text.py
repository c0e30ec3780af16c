"""The held-out text's part of an error: clustered by document, crossed with seeds."""

import math

import numpy as np
import pytest
from scipy import special

from llama_ablate.evidence.text_error import clusters, text_error
from tests.evidence.rows import most


def test_clusters_are_documents_and_windows_where_there_are_few():
    assert clusters(range(0, 2500, 100), 2500, 64).tolist() == list(range(0, 2500, 100))
    assert clusters([0, 700], 1000, 100).tolist() == list(range(0, 1000, 100))


@pytest.mark.parametrize(("documents", "context"), [([0], 64), (range(0, 100_000, 37), 64)])
def test_many_documents_or_windows_are_joined_to_clusters_of_about_one_size(documents, context):
    starts = clusters(documents, 100_000, context)
    sizes = np.diff(starts, append=100_000)
    assert len(starts) == 64
    assert starts[0] == 0
    assert max(sizes) - min(sizes) <= 2 * max(37, 64)
    assert {*starts.tolist()} <= {*(documents if len(documents) > 1 else range(0, 100_000, 64))}
    # Of short documents, which are half of all and hold 1% of the text, one cluster is made.
    unequal = clusters([*range(0, 1000, 10), *range(1000, 101_000, 1000)], 101_000, 64)
    assert max(np.diff(unequal, append=101_000)) <= 3000
    assert sum(unequal < 1000) == 1


def test_the_text_error_of_one_seed_and_equal_documents_is_that_of_a_mean():
    nats = np.random.default_rng(0).normal(size=30)
    error = text_error([nats * 100], np.full(30, 100))
    assert error.se == pytest.approx(np.std(nats, ddof=1) / np.sqrt(30))
    assert error.df == pytest.approx(29)


def test_a_difference_alike_in_every_document_has_no_text_error():
    tokens = np.arange(1, 31)
    assert text_error([tokens * 0.1, tokens * 0.3], tokens).se == pytest.approx(0, abs=1e-9)


#: Tokens of the test files of Python's library in a split of 0.9, 0.05, 0.05: one has a third.
_SIZES = (
    "806 1805 2029 3094 3181 3872 4479 5096 5295 5568 5931 7084 7857 8472 11300 11627 11766 12256 "
    "13880 14654 14874 20864 21538 25150 30016 103737"
)
FILES = np.array(_SIZES.split(), float)


def simulated(tables, *, seeds, sd_seed, sd_file, sd_both, fall, tokens=FILES):
    """Yield tables of seeds x files whose true difference is 0, in nats.

    Effects of files, and of seeds within a file, have variances that fall with a power of its size.
    """
    generator = np.random.default_rng(14)
    scale = (tokens / np.median(tokens)) ** (-fall / 2)
    for _ in range(tables):
        of_seed = generator.normal(0, sd_seed, (seeds, 1))
        of_file = generator.normal(0, sd_file, len(tokens)) * scale
        of_both = generator.normal(0, sd_both, (seeds, len(tokens))) * scale
        yield tokens * (of_seed + of_file + of_both)


def covered(nats, tokens=FILES):
    """Whether the 95% interval from the errors of seeds and text holds 0."""
    means, n = nats.sum(1) / tokens.sum(), len(nats)
    of_seeds = means.std(ddof=1) / math.sqrt(n)
    of_text = text_error(nats, tokens)
    error = math.hypot(of_seeds, of_text.se)
    df = error**4 / (of_seeds**4 / (n - 1) + of_text.se**4 / of_text.df)
    return abs(means.mean()) <= special.stdtrit(df, 0.975) * error


#: The records' spreads, a text that decides, and files without an effect of their own.
SPREADS = [
    {"sd_seed": 0.004, "sd_file": 0.012, "sd_both": 0.006},
    {"sd_seed": 0.001, "sd_file": 0.02, "sd_both": 0.01},
    {"sd_seed": 0.004, "sd_file": 0.0, "sd_both": 0.02},
]


@pytest.mark.parametrize("seeds", [3, 12])
@pytest.mark.parametrize("fall", [0, 1])
@pytest.mark.parametrize("spread", SPREADS, ids=range(3))
def test_an_interval_with_the_texts_part_covers_95_of_100_tables(seeds, fall, spread, volume):
    count = volume(400, 10_000, 10_000)
    tables = simulated(count, seeds=seeds, fall=fall, **spread)
    missed = 1 - np.mean([covered(nats) for nats in tables])
    assert missed <= most(0.05, count)


def test_noise_of_seeds_within_files_is_not_counted_as_the_texts():
    """Files differ by nothing but that noise: the text's error is a small part of the seeds'."""
    tables = list(simulated(500, seeds=6, sd_seed=0.0, sd_file=0.0, sd_both=0.02, fall=0.5))
    of_text = np.mean([text_error(nats, FILES).se ** 2 for nats in tables])
    of_seeds = np.mean([nats.sum(1).var(ddof=1) / 6 / FILES.sum() ** 2 for nats in tables])
    counted_twice = np.mean([text_error(nats.mean(0)[None], FILES).se ** 2 for nats in tables])
    assert counted_twice == pytest.approx(of_seeds, rel=0.1)
    assert of_text < 0.35 * of_seeds


def test_the_text_error_is_the_spread_of_the_difference_over_samples_of_files():
    """A tenth of the squared error is the Monte Carlo error of 2,000 tables of one seed."""
    tables = list(simulated(2000, seeds=1, sd_seed=0, sd_file=0.01, sd_both=0, fall=0.5))
    spread = np.mean([(nats.sum() / FILES.sum()) ** 2 for nats in tables])
    assert np.mean([text_error(n, FILES).se ** 2 for n in tables]) == pytest.approx(spread, rel=0.1)
