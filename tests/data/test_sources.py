import itertools
import math

import numpy as np
import pytest
from scipy import special

from llama_ablate.data.sources import chains
from llama_ablate.data.sources.chains import HiddenMarkov, Markov
from llama_ablate.data.sources.skills import Counting, Induction
from llama_ablate.data.sources.source import LagCopy, Recall
from llama_ablate.errors import ConfigError

GENERATOR = np.random.default_rng
SMALL = [
    LagCopy(3, 2, 0.3),
    Markov(3, 1, 0.5, 0),
    Markov(2, 2, 0.7, 1),
    HiddenMarkov(3, 2, 0.8, 0),
    Recall(2, 2, 0.2),
    Induction(3, 0.2, 0.1),
    Counting(4),
]


def entropy_rate(source):
    """Return a source's loss per symbol: of a copy once the copied one is in sight."""
    if isinstance(source, Markov):
        rows = -(source.table * np.log(source.table)).sum(1)
        return source.stationary @ rows
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


def test_the_entropy_rate_of_a_markov_chain_is_that_of_dirichlet_rows():
    """A row of Dirichlet(a) over V has the mean entropy digamma(aV + 1) - digamma(a + 1)."""
    source = Markov(64, 1, 0.05, 0)
    expected = special.digamma(0.05 * 64 + 1) - special.digamma(1.05)
    assert expected == pytest.approx(1.809, abs=0.001)
    # 64 rows with a deviation of 0.4.
    assert entropy_rate(source) == pytest.approx(expected, abs=0.1)
    stretch = source.sample(GENERATOR(0), 100_000)
    assert source.floor(stretch[None]).mean() == pytest.approx(entropy_rate(source), abs=0.03)


def transitions(source):
    """The chain that a source is, as states, a start, and P(next state, symbol | state)."""
    if isinstance(source, Markov):
        states = list(itertools.product(range(source.vocab), repeat=source.order))
        start = dict(zip(states, source.stationary, strict=True))
        table = dict(zip(states, source.table, strict=True))
        return start, lambda s: [((*s[1:], x), x, table[s][x]) for x in range(source.vocab)]
    if isinstance(source, HiddenMarkov):
        start = dict(enumerate(source.chain.stationary))
        return start, lambda s: [
            (n, x, source.emission[s][x] * source.chain.table[s][n])
            for n in range(source.states)
            for x in range(source.vocab)
        ]
    states = list(itertools.product(range(source.vocab), repeat=source.lag))
    start = dict.fromkeys(states, 1 / len(states))
    return start, lambda s: [
        ((*s[1:], x), x, (1 - source.noise) * (x == s[0]) + source.noise / source.vocab)
        for x in range(source.vocab)
    ]


@pytest.mark.parametrize("source", SMALL[:4], ids=str)
def test_the_floor_is_the_exact_conditional_probability_by_brute_force(source):
    """All states summed over, for every window of five symbols."""
    start, step = transitions(source)

    def chance(window):
        belief = dict(start)
        for symbol in window:
            after = {}
            for state, weight in belief.items():
                for to, emitted, p in step(state):
                    if emitted == symbol:
                        after[to] = after.get(to, 0) + weight * p
            belief = after
        return sum(belief.values())

    windows = np.array(list(itertools.product(range(source.alphabet), repeat=5)))
    floor = source.floor(windows)
    for window, nats in zip(windows.tolist(), floor, strict=True):
        for t in range(1, 5):
            if chance(window[:t]) > 0:
                exact = chance(window[: t + 1]) / chance(window[:t])
                assert nats[t - 1] == pytest.approx(-math.log(exact), rel=1e-9)


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


def test_counting_costs_the_choice_of_a_number_alone():
    """Numbers 1 to 3: the first symbol of a count is behind the last one of the one before."""
    source = Counting(3)
    window = np.array([[1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1]])
    floor = source.floor(window)[0]
    # A second of two, or of three: 2/3. A third: 1/2 of these. Behind three there is no fourth.
    expected = [-math.log(2 / 3), -math.log(1 / 2), 0.0, 0.0, -math.log(1 / 3)]
    expected += [0.0, -math.log(2 / 3), -math.log(1 / 2), 0.0, 0.0, 0.0]
    assert floor[1:].tolist() == pytest.approx(expected, abs=1e-12)
    # The first symbol is one of 1 + 2 + 3 places of the second symbol, three of them a last one.
    assert floor[0] == pytest.approx(math.log(2))
    told = source.answers(window)[0].tolist()
    assert told == [-1, -1, -1, 1, 0, -1, 0, -1, -1, -1, -1, 1]


@pytest.mark.parametrize("source", [LagCopy(5, 2, 0.0), Recall(3, 3, 0.1), *SMALL[5:]], ids=str)
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


@pytest.mark.parametrize("source", SMALL, ids=str)
def test_a_stretch_depends_on_its_generator_alone(source):
    assert np.array_equal(source.sample(GENERATOR(5), 500), source.sample(GENERATOR(5), 500))
    assert not np.array_equal(source.sample(GENERATOR(5), 500), source.sample(GENERATOR(6), 500))


def test_the_stationary_distribution_found_by_walking_is_that_found_by_solving(monkeypatch):
    solved = Markov(6, 2, 0.5, 3).stationary
    monkeypatch.setattr(chains, "_DENSE", 0)
    np.testing.assert_allclose(Markov(6, 2, 0.5, 3).stationary, solved, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LagCopy(1, 3, 0.1), "vocab 1: must be 2 or more"),
        (lambda: LagCopy(8, 0, 0.1), "lag 0: must be 1 or more"),
        (lambda: LagCopy(8, 3, 1.5), "noise 1.5: must be from 0 to 1"),
        (lambda: Markov(64, 5, 0.1, 0), "vocab 64 to the power of order 5"),
        (lambda: Markov(8, 1, 0.0, 0), "concentration 0 must be above 0"),
        (lambda: HiddenMarkov(8, 1, 0.1, 0), "states 1: must be 2 or more"),
        (lambda: Recall(0, 4, 0.1), "keys 0: must be 1 or more"),
        (lambda: Recall(4, 4, -0.1), "reset -0.1: must be from 0 to 1"),
        (lambda: Induction(1, 0.1, 0.1), "vocab 1: must be 2 or more"),
        (lambda: Induction(4, 0.6, 0.4), "jump 0.6 and reset 0.4: must add to less than 1"),
        (lambda: Counting(65), "longest 65: must be 64 or less"),
        (lambda: LagCopy(40_000, 3, 0.1), "vocab 40000: must be 32,768 or less"),
        (lambda: LagCopy(10**30, 3, 0.1), "vocab 10{30}: must be 32,768 or less"),
        (lambda: LagCopy(10**1000, 3, 0.1), "vocab 10{59}: must be 32,768 or less"),
        (lambda: LagCopy(8, 10**9, 0.1), "lag 1000000000: must be 1,000,000 or less"),
        (lambda: Markov(8, 99_999_999_999, 0.1, 0), "order 99999999999: must be 23 or less"),
        (lambda: Markov(8, 1, 0.1, -1), "table_seed -1: must be 0 or more"),
        (lambda: HiddenMarkov(8, 2, 0.1, -1), "table_seed -1: must be 0 or more"),
        (lambda: HiddenMarkov(8, 10**6, 0.1, 0), "states 1000000: must be 1,024 or less"),
        (lambda: HiddenMarkov(30_000, 1000, 0.1, 0), "states 1000 times vocab 30000 is more than"),
        (lambda: Recall(10**11, 4, 0.1), "keys 100000000000: must be 4,096 or less"),
        (lambda: Recall(100, 10**30, 0.1), "values 10{30}: must be 32,667 or less"),
    ],
    ids=range(22),
)
def test_sizes_that_make_no_source_are_refused_at_the_option_to_blame(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert caught.value.where == (message.split()[0],) or message.startswith("vocab 64 to")
    assert "\n" not in caught.value.message


def test_a_table_too_large_is_blamed_on_the_order_only_where_a_lower_one_would_do():
    for order, blamed in ((2, "order"), (1, "vocab")):
        with pytest.raises(ConfigError) as caught:
            Markov(5000, order, 0.1, 0)
        assert caught.value.where == (blamed,)


def test_a_hidden_chain_emits_as_its_table_says():
    """Symbol by symbol, each is the first whose cumulative probability reaches what was drawn."""
    source = HiddenMarkov(7, 5, 0.5, 2)
    symbols = source.sample(GENERATOR(3), 2000)
    again = GENERATOR(3)
    hidden, uniform = source.chain.sample(again, 2000), again.random(2000)
    cumulative = source.emission.cumsum(1)
    expected = (cumulative[hidden] < uniform[:, None]).sum(1)
    assert np.array_equal(symbols, np.minimum(expected, 6))


def test_a_chain_that_mixes_too_slowly_is_given_up_after_a_bounded_amount_of_work(monkeypatch):
    monkeypatch.setattr(chains, "_DENSE", 0)
    monkeypatch.setattr(chains, "_PRODUCTS", 1000)
    with pytest.raises(ConfigError, match="mixes too slowly") as caught:
        _ = Markov(6, 2, 0.05, 3).stationary
    assert caught.value.where == ("concentration",)
