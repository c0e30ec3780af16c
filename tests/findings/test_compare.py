"""One comparison for all: its intervals equal the array functions', whatever is compared."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.evidence.text_error import text_error
from llama_ablate.evidence.verdicts import judge
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


def test_any_pair_of_variants_is_compared_in_either_direction():
    table = tables.frames({"": {"base": [2.0, 2.1], "a": [1.9, 2.2], "b": [1.7, 1.9]}}).table
    _, a, b = (variant.id for variant in table.plan.variants)
    one, other = compare(table, table.loss, [(a, b), (b, a)]).to_dict("records")
    assert one["mean"] == pytest.approx(0.25)
    assert (one["low"], one["high"]) == pytest.approx((-other["high"], -other["low"]))


def test_an_arm_that_lost_all_its_runs_is_worse_and_the_baseline_better():
    losses = {"base": [2.0, 2.1, 2.0], "lost": ["diverged"] * 3}
    table = tables.frames({"": losses}).table
    base, lost = (variant.id for variant in table.plan.variants)
    one, other = compare(table, table.loss, [(lost, base), (base, lost)]).to_dict("records")
    assert (judge(one), judge(other)) == ("diverged", "inconclusive")
    assert (one["own_lost"], one["other_runs"], other["other_diverged"]) == (3, 3, 3)


def test_values_are_compared_by_their_log_ratios_whatever_their_size():
    """No share is meant: a ratio of e^3 is not cut at 1, and a baseline of 0 has no ratio."""
    table = tables.frames({"": {"base": [1.0] * 3, "a": [2.0] * 3}}).table
    base, a = (variant.id for variant in table.plan.variants)
    numbers = {a: (20.0, 21.0, 19.0), base: (1.0, 1.1, 0.0)}
    values = [numbers[run.variant][run.seed] for run in table.planned.itertuples()]
    table.planned["count"] = values
    (row,) = compare(table, "count", [(a, base)], relative=True).to_dict("records")
    assert row["mean"] == pytest.approx((math.log(20) + math.log(21 / 1.1)) / 2)
    assert (row["n"], row["high"] > row["mean"] > 1) == (2, True)


def test_not_worse_is_better_than_worse_by_the_margin():
    expected = {"worse": ("worse", 0.01), "not worse": ("better", -0.01), "lower": ("better", 0.01)}
    for said, direction in {**expected, "not lower": ("worse", -0.01)}.items():
        stated = {"variant": "a", "direction": said, "margin": "0.01 nats"}
        assert _read_direction(Hypothesis.check(stated)) == direction
