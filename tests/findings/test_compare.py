"""One comparison for all: its intervals equal the array functions', whatever is compared."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence import Expectation
from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings.compare import RowFamily, compare, compare_all
from llama_ablate.findings.hypotheses import _expectation
from tests import tables
from tests.metric_rows import with_documents
from tests.simulations import SEEDS, SHARES

DOCUMENTS = 40


def drawn(generator, rows, seeds, share):
    """Draw a table's losses, (rows + 1, seeds), and each run's loss by document."""
    of_text = math.sqrt(share) * generator.normal(size=(rows + 1, 1, DOCUMENTS))
    nats = 2 + of_text + math.sqrt(1 - share) * generator.normal(size=(rows + 1, seeds, 1))
    return nats.mean(-1), nats


@pytest.mark.parametrize(("seeds", "rows", "share"), [*itertools.product(SEEDS, (1, 5), SHARES)])
def test_compare_has_the_intervals_of_the_simulated_rule(seeds, rows, share, volume):
    generator = np.random.default_rng(seeds + 10 * rows)
    for _ in range(volume(2, 50, 50)):
        losses, nats = drawn(generator, rows, seeds, share)
        labels = ["base", *(f"arm {i}" for i in range(rows))]
        frames = tables.frames({"": dict(zip(labels, losses.tolist(), strict=True))})
        by_seed = {label: dict(enumerate(own)) for label, own in zip(labels, nats, strict=True)}
        tokens = dict.fromkeys(labels, np.ones(DOCUMENTS))
        table = with_documents(frames.table, by_seed, tokens)
        base, *arms = (variant.id for variant in table.plan.variants)
        family = RowFamily([(arm, base) for arm in arms])
        errors = [text_error(own - nats[0], np.ones(DOCUMENTS)) for own in nats[1:]]
        expected = estimate(
            losses[1:] - losses[0],
            [error.se for error in errors],
            [error.df for error in errors],
            ALPHA / rows,
        )
        for i, arm in enumerate(arms):
            interval = compare(table, table.loss, arm, base, family).interval
            half = float(expected.half[i])
            assert interval.high - interval.mean == pytest.approx(half, rel=1e-12)
            assert interval.mean == pytest.approx(float(expected.mean[i]), abs=1e-12)
            assert table.comparison[1 + i].low == pytest.approx(interval.low, rel=1e-12)


def test_any_pair_of_variants_is_compared_in_either_direction():
    table = tables.frames({"": {"base": [2.0, 2.1], "a": [1.9, 2.2], "b": [1.7, 1.9]}}).table
    _, a, b = (variant.id for variant in table.plan.variants)
    found = compare_all(table, table.loss, RowFamily([(a, b), (b, a)]))
    assert found[a, b].interval.mean == pytest.approx(0.25)
    assert (-found[a, b]).interval == found[b, a].interval


def test_an_arm_that_lost_all_its_runs_is_worse_and_the_baseline_better():
    losses = {"base": [2.0, 2.1, 2.0], "lost": ["diverged"] * 3}
    table = tables.frames({"": losses}).table
    base, lost = (variant.id for variant in table.plan.variants)
    found = compare_all(table, table.loss, RowFamily([(lost, base), (base, lost)]))
    assert found[lost, base].judged() == "diverged"
    assert found[base, lost].judged() == "inconclusive"
    assert found[lost, base].own.lost == 3


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("worse", Expectation("worse", 0.01)),
        ("not worse", Expectation("better", -0.01)),
        ("not lower", Expectation("worse", -0.01)),
    ],
)
def test_not_worse_is_better_than_worse_by_the_margin(said, expected):
    stated = {"variant": "a", "direction": said, "margin": "0.01 nats"}
    assert _expectation(Hypothesis.check(stated)) == expected
