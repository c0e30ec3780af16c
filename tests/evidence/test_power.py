"""What is promised before an experiment runs, against tables drawn here and judged by its rules."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from llama_ablate.evidence import StandardError, contrasts, simultaneous, verdict
from llama_ablate.evidence.factorial import weights
from llama_ablate.evidence.power import (
    SEEDS,
    DrawnTables,
    Noise,
    expected_half_width,
    fewest,
    simulate_factors,
    simulate_rows,
    with_looks,
)
from llama_ablate.evidence.sequential import spending, standings

LOOKS = (3, 6, 12)


def noise(seeds=1.0, text=0.3, df=40.0):
    return Noise(StandardError(seeds, math.inf), StandardError(text, df), df)


def table(generator, effect, seeds, rows, text, df=40.0):
    """Return the differences of arms that share a baseline, and what is estimated of the text."""
    arms, base = generator.normal(size=(rows, seeds)), generator.normal(size=seeds)
    shift = effect + text * generator.normal(size=(rows, 1))
    differences = (arms - base) / math.sqrt(2) + shift
    errors = text * np.sqrt(generator.chisquare(df, rows) / df)
    return (
        {str(i): list(row) for i, row in enumerate(differences)},
        {str(i): StandardError(float(se), df) for i, se in enumerate(errors)},
    )


@pytest.mark.parametrize(("seeds", "rows", "text"), [(3, 3, 0.2), (5, 5, 0.4), (8, 1, 0.0)])
def test_a_promised_power_of_8_in_10_is_found_in_tables_of_single_changes(
    seeds, rows, text, volume
):
    tables, generator = volume(300, 1_000, 1_000), np.random.default_rng(seeds)
    promised = simulate_rows([noise(text=text)] * rows, [seeds], known=True, tables=1_000)
    effect = float(promised.detectable().mean())
    found = 0
    for _ in range(tables):
        values, errors = table(generator, effect, seeds, rows, text)
        found += sum(row.low > 0 for row in simultaneous(values, text_errors=errors).values())
    assert found / tables / rows == pytest.approx(0.8, abs=0.05)


def test_a_promised_power_of_8_in_10_is_found_in_fractions_of_a_factorial(volume):
    tables, generator = volume(100, 1_000, 1_000), np.random.default_rng(2)
    factors = ["a", "b", "c", "d", "e"]  # half of 32 cells, as the quickstart has them
    cells = [c for c in itertools.product((0, 1), repeat=5) if sum(c) % 2 == 0]
    levels = {str(cell): list(cell) for cell in cells}
    names = [*weights(levels, factors)]
    text = noise(text=0.1)
    promised = simulate_factors(
        levels,
        factors,
        StandardError(1.0, math.inf),
        dict.fromkeys(names, text),
        2,
        known=True,
        tables=400,
    )
    effect = float(promised.detectable()[[one.factors for one in names].index(("a",))])
    found = 0
    for _ in range(tables):
        losses = {
            cell: list(generator.normal(effect * cell_levels[0], 1, 2))
            for cell, cell_levels in levels.items()
        }
        shift = 0.1 * generator.normal()
        error = StandardError(0.1 * math.sqrt(generator.chisquare(40) / 40), 40.0)
        rows = contrasts(levels, factors, losses, text_errors=dict.fromkeys(names, error))
        own = next(one.interval for one in rows if one.factors == ("a",))
        found += own.low + shift > 0
    assert found / tables == pytest.approx(0.8, abs=0.05 if tables == 1_000 else 0.13)


def test_a_promised_power_of_8_in_10_is_found_with_looks(volume):
    tables, generator = volume(150, 1_000, 1_000), np.random.default_rng(3)
    noises, shares = [noise(text=0.2)] * 4, spending(LOOKS)
    low, high = 0.5, 3.0
    for _ in range(6):
        effect = (low + high) / 2
        promised = with_looks(noises, effect, LOOKS, shares, known=True, tables=200)
        low, high = (low, effect) if promised.power.mean() > 0.8 else (effect, high)
    found = stops = 0

    for _ in range(tables):
        values, errors = table(generator, effect, LOOKS[-1], 4, 0.2)

        def judge(at, values=values, errors=errors):
            taken = {arm: own[: LOOKS[at[arm]]] if arm in at else [] for arm, own in values.items()}
            spent = {arm: shares[look] for arm, look in at.items()}
            return simultaneous(taken, text_errors=errors, shares=spent)

        stands = standings(
            3,
            [*values],
            lambda *_: "complete",
            judge,
            lambda _arm, _look, row: verdict(row) != "inconclusive",
        )
        found += sum(at.row.low > 0 for at in stands.values())
        stops += sum(LOOKS[at.look] for at in stands.values())
    assert found / tables / 4 == pytest.approx(0.8, abs=0.05)
    assert stops / tables / 4 == pytest.approx(promised.seeds.mean(), rel=0.06)


def test_half_widths_range_as_far_as_a_pilots_few_seeds_leave_open():
    """A deviation known to two degrees of freedom may be a third, or four times what it seems."""
    few = Noise(StandardError(1.0, 2.0))
    low, middle, high = simulate_rows([few] * 3, [5]).half_widths()
    known = simulate_rows([few] * 3, [5], known=True).half_widths()
    assert (high > 1.5 * known[2]).all()
    assert (low < middle).all()


def test_a_row_that_the_text_limits_needs_documents_and_one_that_seeds_limit_needs_seeds():
    by_text, by_seeds = noise(seeds=0.1, text=1.0), noise(seeds=1.0, text=0.05)

    def more_seeds(n, one):
        return simulate_rows([one], [int(n)], known=True, tables=100)

    def more_documents(factor, one):
        return simulate_rows([one.with_documents(factor)], [4], known=True, tables=100)

    factors = (1, 2, 4, 8, 16, 32)
    assert fewest(partial(more_seeds, one=by_text), 1.0, SEEDS, 0) == math.inf
    assert fewest(partial(more_seeds, one=by_seeds), 1.0, SEEDS, 0) in range(8, 25)
    assert 4 <= fewest(partial(more_documents, one=by_text), 1.0, factors, 0) <= 32
    assert fewest(partial(more_documents, one=by_seeds), 1.0, factors, 0) == math.inf


@pytest.mark.parametrize(("seeds", "rows", "text"), [(2, 4, 0.0), (4, 1, 0.3), (8, 5, 0.3)])
def test_the_expected_half_width_is_about_the_median_of_drawn_tables(seeds, rows, text):
    own = noise(text=text)
    median = simulate_rows([own] * rows, [seeds], known=True, tables=1_000).half_widths()[1].mean()
    assert expected_half_width(seeds, rows, own) == pytest.approx(median, rel=0.15)


def test_the_effect_that_is_seen_is_the_quantile_of_what_stands_in_its_way():
    drawn = DrawnTables(np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]), np.zeros((5, 1)))
    assert drawn.power(3.5)[0] == 0.6
    assert drawn.power(-3.5)[0] == 0.6
    assert drawn.detectable(0.5)[0] == 3.0
