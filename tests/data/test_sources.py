import math

import numpy as np
import pytest

from llama_ablate.data.sources.source import Induction, LagCopy, Recall

GENERATOR = np.random.default_rng
SMALL = [
    LagCopy(3, 2, 0.3),
    Recall(2, 2, 0.2),
    Induction(3, 0.2, 0.1),
]


def entropy_rate(source):
    """Return a source's loss per symbol: of a copy once the copied one is in sight."""
    same, other = 1 - source.noise + source.noise / source.vocab, source.noise / source.vocab
    return -(same * math.log(same) + (source.vocab - 1) * other * math.log(other))


@pytest.mark.parametrize(("vocab", "entropy"), [(64, 0.729476), (16, 0.565009), (256, 0.876186)])
def test_the_entropy_of_lag_copy_is_the_worked_out_one(vocab, entropy):
    source = LagCopy(vocab, 5, 0.1)
    assert entropy_rate(source) == pytest.approx(entropy, abs=1e-6)
    stretch = source.sample(GENERATOR(0), 200_000)
    floor = source.floor(stretch[None])[0]
    assert floor[:4].tolist() == [math.log(vocab)] * 4
    assert floor[5:].mean() == pytest.approx(entropy, abs=0.02)


def test_recall_costs_nothing_where_the_value_is_known_and_the_exact_rest():
    """Keys 0 1, values 2 3, reset 4: log 2 for new values, keys at (1 - 0.2)/2, resets at 0.2."""
    source = Recall(2, 2, 0.2)
    window = np.array([[0, 3, 1, 2, 0, 3, 4, 0, 2]])
    expected = [
        math.log(2),
        -math.log(0.4),
        math.log(2),
        -math.log(0.4),
        0.0,
        -math.log(0.2),
        math.log(2),
        math.log(2),
    ]
    assert source.floor(window)[0].tolist() == pytest.approx(expected)


def test_induction_costs_nothing_but_its_jumps_where_a_symbol_was_followed_before():
    """Symbols 0 1 2, jump 3, reset 4; a jump at 0.2, a reset at 0.1."""
    source, anywhere = Induction(3, 0.2, 0.1), math.log(3)
    window = np.array([[0, 2, 1, 0, 2, 3, 1, 0, 4, 1, 1]])
    new, known = anywhere - math.log(0.7), -math.log(0.7)
    jump, reset = -math.log(0.2), -math.log(0.1)
    expected = [new, new, new, known, jump, anywhere, known, reset, anywhere, new]
    assert source.floor(window)[0].tolist() == pytest.approx(expected)
    assert source.answers(window)[0].tolist() == [-1, -1, -1, 2, -1, -1, 0, -1, -1, -1]


@pytest.mark.parametrize("source", [LagCopy(5, 2, 0.0), Recall(3, 3, 0.1), SMALL[2]], ids=str)
def test_what_a_window_tells_is_what_comes(source):
    """Without noise: answers are right, and who knows the source is sure of them."""
    stretch = source.sample(GENERATOR(2), 20_000)
    windows = stretch.reshape(-1, 40)
    answers = source.answers(windows)
    told = answers >= 0
    assert 0.05 < told.mean() < 1
    assert np.array_equal(answers[told], windows[:, 1:][told])
    sure = -math.log(1 - getattr(source, "jump", 0.0) - getattr(source, "reset", 0.0))
    limit = 0.0 if isinstance(source, Recall) else sure
    assert source.floor(windows)[told] == pytest.approx(limit, abs=1e-9)


@pytest.mark.parametrize("source", SMALL, ids=str)
def test_no_other_predictor_beats_the_floor_on_a_long_stretch(source):
    """A predictor by counts, fitted to the very windows that it is tested on, does not either."""
    stretch = source.sample(GENERATOR(1), 60_000)
    assert stretch.min() == 0
    assert stretch.max() == source.alphabet - 1
    windows = stretch.reshape(-1, 30)
    floor = source.floor(windows)
    counts = np.ones((source.alphabet, source.alphabet))
    np.add.at(counts, (windows[:, :-1], windows[:, 1:]), 1)
    chances = counts / counts.sum(1, keepdims=True)
    bigram = -np.log(chances[windows[:, :-1], windows[:, 1:]])
    slack = 3 * (bigram - floor).std() / math.sqrt(floor.size)
    assert floor.mean() < bigram.mean() + slack
