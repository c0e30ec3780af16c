import math

import numpy as np
import pytest

from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.evidence.item_error import by_group, item_error, least_error
from llama_ablate.evidence.text_error import text_error
from tests.evidence.rows import most, row_of
from tests.simulations import find_false


def test_it_is_the_texts_error_where_items_are_documents_of_one_length():
    draw = np.random.default_rng(0)
    scores = 0.3 * draw.normal(size=(4, 1)) + draw.normal(size=30) + draw.normal(size=(4, 30))
    own, text = item_error(scores), text_error(scores, np.ones(30))
    assert own.se == pytest.approx(text.se, rel=1e-9)
    assert own.df == pytest.approx(text.df, rel=1e-9)
    assert item_error(scores[:1]).se == pytest.approx(scores[0].std(ddof=1) / math.sqrt(30))


def test_seeds_that_agree_by_chance_do_not_seem_to_have_no_error():
    """Two seeds that win one item each, and not the same: their means are equal."""
    scores = np.zeros((2, 100))
    scores[0, 0] = scores[1, 1] = 1.0
    error = item_error(scores)
    # By hand: every residual of the two items is 1/2, over 99 degrees of freedom and 200 scores.
    assert error.se == pytest.approx(math.sqrt(4 * 0.25 / 99 / 200))
    row = row_of(scores.mean(1), (error.se, error.df))
    assert row["low"] < 0 < row["high"]


def test_variants_that_answer_alike_differ_by_no_less_than_an_item_would_tell():
    """Of 198 pairs none is discordant: Agresti and Min add half a pair to each of four cells."""
    error = item_error(np.zeros((3, 198)), least=least_error(198))
    assert error.se == pytest.approx(math.sqrt(0.5 + 0.5) / (198 + 2))


def test_scores_by_group_have_the_mean_of_the_items_whatever_the_sizes_of_groups():
    draw = np.random.default_rng(3)
    scores, groups = draw.normal(size=(3, 40)), draw.integers(0, 5, 40)
    found = by_group(scores, groups)
    assert found.shape == (3, 5)
    assert found.mean(1) == pytest.approx(scores.mean(1))
    own = scores[:, groups == 2].sum(1) * 5 / 40
    assert found[:, 2] == pytest.approx(own)
    assert by_group(scores, np.arange(40)) == pytest.approx(scores)


@pytest.mark.parametrize(("seeds", "apart"), [(3, 0.0), (3, 0.6), (8, 0.6)])
def test_equal_variants_are_not_told_apart_by_the_templates_of_a_task(seeds, apart, volume):
    """200 pairs of eight templates; a variant is better at some, and no better over all templates.

    As 200 independent items 19 to 79% of tables had a verdict, more with more seeds.
    """
    draw, trials, false = np.random.default_rng(seeds), volume(100, 2_000, 2_000), 0
    groups = np.repeat(np.arange(8), 25)
    for _ in range(trials):
        hard = draw.normal(0.3, 0.8, 200)
        base = draw.normal(size=(seeds, 200)) < hard
        shift = draw.normal(0, apart, (3, 1, 8))[..., groups]
        scores = (draw.normal(size=(3, seeds, 200)) < hard + shift).astype(float) - base
        errors = [item_error(by_group(own, groups), least=least_error(200)) for own in scores]
        se, df = np.array([(error.se, error.df) for error in errors]).T
        false += find_false(estimate(scores.mean(-1), se, df, ALPHA / 3)).any()
    assert false / trials <= most(0.05, trials)
