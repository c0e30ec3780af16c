"""A baseline whose runs are of two kinds: what is warned of, and how rows are then judged."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import llama_ablate as la
from llama_ablate.evidence import shape_alarm
from llama_ablate.findings import comparison
from llama_ablate.findings.rows import frame as framed
from llama_ablate.report.warnings import warnings
from tests.tables import frames

E07 = Path(__file__).parents[2] / "results/reference/claims/e07-ffn-activation"
#: Two of nine runs lie apart; against the others an arm that is like them is worse.
TWO_KINDS, AGAIN = [2.0, 2.01, 2.2, 2.201], [2.199, 2.2, 2.201, 2.202]


def of(again, arm, margin="0.02 nats"):
    arms = {"base": TWO_KINDS, "arm": arm, "again": again}
    return frames({"": arms}, changes={"again": {"role": "aa", "reseed": "both"}}, margin=margin)


@pytest.fixture(scope="module")
def losses():
    """The reported losses of the runs of e07, by label."""
    table = la.open(E07).frames.table
    return {table.plan.variant(id_).label: [*own.values()] for id_, own in table.losses.items()}


def test_fewer_than_eight_runs_and_normal_ones_raise_no_alarm(volume):
    assert shape_alarm([1.0] * 6 + [9.0]) is None
    assert shape_alarm([1.0] * 8) is None
    assert shape_alarm([1.0, 1.01, 1.02, 1.0, 1.01, 1.02, 1.01, 9.0]) < 0.01
    count, generator = volume(500, 10_000, 10_000), np.random.default_rng(0)
    alarms = sum(shape_alarm(generator.normal(size=12)) is not None for _ in range(count))
    assert alarms / count <= 0.01 + 3 * (0.01 * 0.99 / count) ** 0.5


def test_a_row_is_then_judged_by_the_weaker_of_the_comparisons_with_either_baseline():
    better = [loss - 0.05 for loss in TWO_KINDS]  # than the baseline, in every seed
    table = of(AGAIN, better).table
    row = framed(table.comparison).set_index("label").loc["arm"]
    first, second = (
        comparison.intervals(
            table.plan, comparison.pairs_by_seed(table.plan, table.losses, other), {}, {}
        )["v1"]
        for other in ("v0", "v2")
    )
    assert row["verdict"] == "inconclusive"  # against the A/A it spreads as the baseline does
    assert (row["low"], row["high"]) == pytest.approx(
        (min(first.low, second.low), max(first.high, second.high))
    )
    assert row["difference"] == pytest.approx(first.mean) == pytest.approx(-0.05)
    assert row["p_corrected"] == pytest.approx(max(first.p, second.p))


def test_the_warning_lists_the_runs_and_a_normal_baseline_has_none():
    sentences = [s for s in warnings(of(AGAIN, AGAIN)) if "Shapiro" in s]
    assert len(sentences) == 1
    assert "2.000, 2.010, 2.199" in sentences[0]
    assert not [s for s in warnings(of([2.0, 2.1, 2.2, 2.15], AGAIN)) if "Shapiro" in s]


def test_of_e07s_runs_resampled_with_all_arms_equal_few_tables_have_a_false_verdict(losses, volume):
    """The population is twelve runs, three of which lie apart: 15 to 18% without the rule."""
    runs = np.array(losses.pop("relu (baseline)") + losses.pop("A/A"))
    losses.pop("positive control")
    arms = {name: np.mean(runs) + np.array(own) - np.mean(own) for name, own in losses.items()}
    assert shape_alarm(list(runs)) < 0.001
    roles = {"base": {}, "again": {"role": "aa", "reseed": "both"}}
    variants = [
        SimpleNamespace(
            id=name,
            baseline=name == "base",
            role=roles.get(name, {}).get("role", ""),
            noise=None,
        )
        for name in (*roles, *arms)
    ]
    table = SimpleNamespace(
        variants=variants, baseline=variants[0], repeated={}, redrawn=["again"], scale=1
    )
    count, generator = volume(150, 10_000, 10_000), np.random.default_rng(0)
    for seeds in (5, 6):
        false = before = 0
        for _ in range(count):
            drawn = {
                name: dict(enumerate(generator.choice(own, seeds)))
                for name, own in ({"base": runs, "again": runs} | arms).items()
            }
            further, _ = comparison.further_baselines(table, drawn)
            first, *others = (
                comparison.Against(comparison.pairs_by_seed(table, drawn, name), {})
                for name in ("base", *further)
            )
            rows = comparison.intervals(table, *first, {}, others)
            false += any(not rows[name].low < 0 < rows[name].high for name in arms)
            rows = comparison.intervals(table, *first, {})
            before += any(not rows[name].low < 0 < rows[name].high for name in arms)
        assert before / count > 0.10
        assert false / count <= 0.065 + (0.065 / count) ** 0.5 * (count < 10_000)
