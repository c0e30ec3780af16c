"""Episodes: what follows is what a reader of the window works out, and all else is as uncertain."""

import collections
import math
from functools import partial

import numpy as np
import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.sources.episodes import Episodes, depo, mano, mqar
from llama_ablate.data.tokenizer import TOKENIZERS

GENERATOR = np.random.default_rng
SMALL = {
    "mqar": partial(mqar, pairs=2, keys=3, values=2, queries=1),
    "depo": partial(depo, nodes=3, hops=2, queries=1),
    "depo of four": partial(depo, nodes=4, hops=1, queries=1),
    "mano": partial(mano, modulus=3, operations=2),
}
LARGER = {
    "mqar": partial(mqar, pairs=5, keys=12, values=7, queries=6),
    "depo": partial(depo, nodes=6, hops=3, queries=5),
    "mano": partial(mano, modulus=7, operations=3),
}


def recalled(symbols, keys, pairs):
    """The values of keys, read off an episode of `mqar`."""
    stated = dict(zip(symbols[: 2 * pairs : 2], symbols[1 : 2 * pairs : 2], strict=True))
    assert len(stated) == len(set(stated.values())) == pairs
    assert all(key < keys <= value for key, value in stated.items())
    return [stated[key] for key in symbols[2 * pairs :: 2]]


def walked(symbols, nodes):
    """Where the walks of `depo` end, step by step along its edges."""
    after = dict(zip(symbols[: 2 * nodes : 2], symbols[1 : 2 * nodes : 2], strict=True))
    seen = {at := 0}
    while (at := after[at]) not in seen:
        seen.add(at)
    assert len(seen) == nodes, "one cycle"
    ends = []
    for hop, at, _ in np.reshape(symbols[2 * nodes :], (-1, 3)).tolist():
        for _ in range(hop - nodes + 1):
            at = after[at]  # noqa: PLW2901  a walk
        ends.append(at)
    return ends


def worked_out(symbols, modulus, operations):
    """The value of an expression in prefix notation, by recursion."""
    rest = iter(symbols)

    def value():
        now = next(rest)
        if now < modulus:
            return now
        left, right = value(), value()
        return (left + right, left - right, left * right)[now - modulus] % modulus

    found = value()
    assert len(list(rest)) == 1, operations
    return [found]


READERS = {
    "mqar": partial(recalled, keys=12, pairs=5),
    "depo": partial(walked, nodes=6),
    "mano": partial(worked_out, modulus=7, operations=3),
}


@pytest.mark.parametrize("name", LARGER)
def test_who_reads_the_episode_answers_all(name):
    drawn = LARGER[name](GENERATOR(0), 400)
    answers = drawn.symbols[:, drawn.ways == 0]
    assert answers.size
    for symbols, told in zip(drawn.symbols.tolist(), answers.tolist(), strict=True):
        assert READERS[name](symbols) == told


@pytest.mark.parametrize("name", LARGER)
def test_the_best_guess_of_who_reads_nothing_is_right_as_often_as_chance_says(name):
    """One value that was stated, a node that is not the start, and 0: no constant does better."""
    drawn = LARGER[name](GENERATOR(1), 60_000)
    answers = drawn.symbols[:, drawn.ways == 0]
    if name == "mqar":
        guess = drawn.symbols[:, [3]]
    elif name == "depo":
        start = drawn.symbols[:, np.flatnonzero(drawn.ways == 0) - 1]
        guess = (start + 1) % 6
    else:
        guess = np.zeros_like(answers)
        shares = np.bincount(answers.ravel()) / answers.size
        assert shares.argmax() == 0
    error = 3 * math.sqrt(drawn.chance / len(drawn.symbols))
    assert (guess == answers).mean() == pytest.approx(drawn.chance, abs=error)


@pytest.mark.parametrize("name", SMALL)
def test_as_many_symbols_follow_each_beginning_as_its_ways_and_all_as_often(name):
    """Of all beginnings that a long sample has; with them the floor of each token is exact."""
    drawn = SMALL[name](GENERATOR(2), 40_000)
    for place, ways in enumerate(np.maximum(drawn.ways, 1)):
        followed = collections.defaultdict(collections.Counter)
        for row in map(tuple, drawn.symbols[:, : place + 1].tolist()):
            followed[row[:-1]][row[-1]] += 1
        for counts in followed.values():
            total = counts.total()
            if total > 200:
                assert len(counts) == ways
                expected = total / ways
                assert max(counts.values()) < expected + 5 * math.sqrt(expected) * (ways > 1) + 0.5
            else:
                assert len(counts) <= ways


@pytest.mark.parametrize("name", SMALL)
def test_the_mean_floor_is_the_entropy_of_an_episode_over_its_length(name):
    source = Episodes(SMALL[name])
    drawn = SMALL[name](GENERATOR(3), 60_000)
    counts = np.array(list(collections.Counter(map(tuple, drawn.symbols.tolist())).values()))
    shares = counts / counts.sum()
    entropy = -(shares * np.log(shares)).sum()
    stretch = source.sample(GENERATOR(0), source.length * 50 + 1)[None]
    assert source.floor(stretch).mean() == pytest.approx(entropy / source.length, rel=0.01)


@pytest.mark.parametrize("name", LARGER)
def test_a_window_tells_the_answers_of_the_episodes_that_begin_in_it(name):
    source = Episodes(LARGER[name])
    size, answers = source.length, int((source.layout.ways == 0).sum())
    stretch = source.sample(GENERATOR(4), 4 * size)
    whole = source.answers(stretch[None])
    assert (whole >= 0).sum() == 4 * answers
    assert np.array_equal(whole[whole >= 0], stretch[None, 1:][whole >= 0])
    assert (source.floor(stretch[None])[whole >= 0] == 0).all()
    for start in range(1, size):
        later = stretch[None, start:]
        assert (source.answers(later) >= 0).sum() == 3 * answers
        # The floors of the same symbols are the same, wherever the window begins.
        assert np.array_equal(source.floor(later), source.floor(stretch[None])[:, start:])
    inside = stretch[None, 1:size]  # no mark: nothing is known of where it stands
    assert (source.answers(inside) == -1).all()
    assert (source.floor(inside) == 0).all()


@pytest.mark.parametrize("entry", ["mqar", "depo", {"name": "mano", "modulus": 5}], ids=str)
def test_no_held_out_episode_was_trained_on_and_each_split_is_its_seeds_alone(entry, tmp_path):
    named = {"name": entry, "tokens": 30_000} if isinstance(entry, str) else entry
    named = {**named, "tokens": 30_000}
    made = store.prepare(CORPORA.resolve(named), TOKENIZERS.resolve("chars"), tmp_path)
    source = made.source
    assert made.counts == {"train": 30_000, "validation": 1500, "test": 1500}
    of_split = {}
    for split, count in made.counts.items():
        ids = np.asarray(made.split(split)[: count // source.length * source.length])
        whole = ids.reshape(-1, source.length)
        assert (whole[:, 0] == 0).all()
        of_split[split] = set(map(tuple, whole.tolist()))
    train, validation, test = of_split.values()
    assert not train & validation
    assert not train & test
    assert not validation & test
    again = store.prepare(CORPORA.resolve(named), TOKENIZERS.resolve("chars"), tmp_path / "b")
    other = store.prepare(CORPORA.resolve({**named, "seed": 1}), TOKENIZERS.resolve("chars"))
    assert again.fingerprint == made.fingerprint != other.fingerprint
