"""One comparison for all: its intervals equal the array functions', whatever is compared."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings.compare import compare
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.hypotheses import _read_direction
from tests import tables
from tests.metric_rows import with_documents
from tests.simulations import SEEDS, SHARES

DOCUMENTS = 40


def draw(generator, rows, seeds, share):
    """Draw a table's losses, (rows + 1, seeds), and each run's loss by document."""
    of_text = math.sqrt(share) * generator.normal(size=(rows + 1, 1, DOCUMENTS))
    nats = 2 + of_text + math.sqrt(1 - share) * generator.normal(size=(rows + 1, seeds, 1))
    return nats.mean(-1), nats


@pytest.mark.parametrize(("seeds", "rows", "share"), [*itertools.product(SEEDS, (1, 5), SHARES)])
def test_compare_has_the_intervals_of_the_simulated_rule(seeds, rows, share):
    generator = np.random.default_rng(seeds + 10 * rows)
    losses, nats = draw(generator, rows, seeds, share)
    labels = ["base", *(f"arm {i}" for i in range(rows))]
    frames = tables.frames({"": dict(zip(labels, losses.tolist(), strict=True))})
    by_seed = {label: dict(enumerate(own)) for label, own in zip(labels, nats, strict=True)}
    table = with_documents(frames.table, by_seed, dict.fromkeys(labels, np.ones(DOCUMENTS)))
    base, *arms = (variant.id for variant in table.plan.variants)
    errors = [text_error(own - nats[0], np.ones(DOCUMENTS)) for own in nats[1:]]
    se, df = np.array([(error.se, error.df) for error in errors]).T
    expected = estimate(losses[1:] - losses[0], se, df, ALPHA / rows)
    found = compare(table, table.loss, [(arm, base) for arm in arms])
    for name in ("mean", "low", "high", "seed_se", "text_se", "df"):
        assert found[name].to_numpy() == pytest.approx(expected[name], rel=1e-12, abs=1e-12)
    assert compare_variants(table)["low"][1:].to_numpy() == pytest.approx(expected["low"])


def test_not_worse_is_better_than_worse_by_the_margin():
    expected = {"worse": ("worse", 0.01), "not worse": ("better", -0.01), "lower": ("better", 0.01)}
    for said, direction in {**expected, "not lower": ("worse", -0.01)}.items():
        stated = {"variant": "a", "direction": said, "margin": "0.01 nats"}
        assert _read_direction(Hypothesis.check(stated)) == direction
