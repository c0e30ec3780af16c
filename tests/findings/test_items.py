"""Items of tasks in a report: their groups, and what those do to the error of an accuracy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.findings.compare import compare, find_answers
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results
from tests import tables
from tests.metric_rows import make_values, of_run

REFERENCE = Path(__file__).parents[2] / "results/reference"
NAME = "minimal-pairs_accuracy"


@pytest.fixture(scope="module")
def prose():
    return Frames.of(Results.open(REFERENCE / "prose")).table


def test_the_error_of_an_accuracy_is_that_between_templates(prose):
    base = prose.base
    variant = next(v.id for v in prose.plan.variants if v.label == "layernorm")
    own, other = (find_answers(prose, NAME)[id_] for id_ in (variant, base))
    differences = np.array([own[seed].scores - other[seed].scores for seed in sorted(own)])
    by_template = differences.reshape(len(own), 8, 25).mean(2)
    by_hand = item_error(by_template, least=least_error(200))
    (found,) = compare(prose, NAME, [(variant, base)]).itertuples()
    assert (found.text_se, found.text_df) == pytest.approx((by_hand.se, by_hand.df))
    assert found.text_se > 3 * item_error(differences, least=least_error(200)).se
    assert by_group(differences, own[0].groups) == pytest.approx(by_template)


def test_groups_are_read_where_a_record_has_them_and_none_are_made_up():
    table = tables.frames({"": {"base": [2.0]}}).table
    (run,) = table.planned.itertuples()
    rows = [
        of_run(run, "cloze", quantity, samples, task="t", **where)
        for quantity, samples, where in (
            ("accuracy", (1.0, 0.0, 1.0, 0.0), {}),
            ("accuracy", (), {"group": "a"}),
            ("accuracy", (), {"group": "b"}),
            ("groups", (0.0, 1.0, 0.0, 1.0), {}),
        )
    ]
    with_groups, without = (
        find_answers(replace(table, measured=make_values(own)), "accuracy")[run.variant][0]
        for own in (rows, rows[:3])
    )
    assert with_groups.groups.tolist() == [0, 1, 0, 1]
    assert without.groups.tolist() == []
