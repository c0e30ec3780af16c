"""Items of tasks in a report: their groups, and what those do to the error of an accuracy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.values import MetricRow
from llama_ablate.results import Results

REFERENCE = Path(__file__).parents[2] / "results/reference"
NAME = "minimal-pairs_accuracy"


@pytest.fixture(scope="module")
def prose():
    return Frames.of(Results.open(REFERENCE / "prose")).table


def test_records_without_groups_have_those_that_their_accuracies_tell(prose):
    for of_seed in prose.answers[NAME].values():
        for own in of_seed.values():
            assert own.groups.tolist() == np.repeat(range(8), 25).tolist()


def test_the_error_of_an_accuracy_is_that_between_templates(prose):
    base = prose.plan.baseline.id
    variant = next(v.id for v in prose.plan.variants if v.label == "layernorm")
    own, other = (prose.answers[NAME][id_] for id_ in (variant, base))
    differences = np.array([own[seed].scores - other[seed].scores for seed in sorted(own)])
    by_hand = item_error(differences.reshape(len(own), 8, 25).mean(2), least=least_error(200))
    found = tasks.error(prose.answers, NAME, variant, base)
    assert found.se == pytest.approx(by_hand.se)
    assert found.se > 3 * item_error(differences, least=least_error(200)).se
    assert by_group(differences, own[0].groups) == pytest.approx(
        differences.reshape(len(own), 8, 25).mean(2)
    )


def test_two_published_holds_rested_on_pairs_taken_as_independent(prose):
    guards = framed(prose.guards).set_index(["label", "measure"])["result"]
    assert guards["layernorm", NAME] == guards["gelu", NAME] == "undecided"


def test_groups_are_read_where_a_record_has_them_and_none_are_made_up():
    rows = [
        MetricRow(
            variant="v",
            label="v",
            run="r",
            metric="cloze",
            name="",
            quantity=quantity,
            coordinates={"task": "t", **where},
            value=value,
            samples=samples,
        )
        for quantity, where, value, samples in (
            ("accuracy", {}, 0.5, (1.0, 0.0, 1.0, 0.0)),
            ("accuracy", {"group": "a"}, 1.0, ()),
            ("accuracy", {"group": "b"}, 0.0, ()),
            ("groups", {}, 2.0, (0.0, 1.0, 0.0, 1.0)),
        )
    ]
    assert tasks._groups(rows)["r", "t"].tolist() == [0, 1, 0, 1]
    assert tasks._groups(rows[:3]) == {}


def test_a_guard_is_gone_on_for_where_more_seeds_may_decide_it(prose):
    labels = {v.id: v.label for v in prose.plan.variants}
    assert guards.still_open(prose, [5]) == set()  # there are no more
    found = guards.still_open(prose, [5, 500])
    assert {labels[id_] for id_ in found} == {"layernorm", "sinusoidal", "gelu"}
    one = prose.experiment.guard[0]
    loose = prose.experiment.model_copy(
        update={"guard": [one.model_copy(update={"worse_by": "0.9 points"})]}
    )
    assert guards.still_open(replace(prose, experiment=loose), [5, 500]) == set()
