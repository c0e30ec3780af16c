"""Synthetic reasoning tasks: episodes that state random facts, then ask questions about them.

All episodes of a task have one layout. A task is a function that draws many episodes at once and
returns, for each position, the number of equally likely symbols there; the floor (lowest possible
loss) of a token is the logarithm of that number. `depo` and `mano` are small relatives of the tasks
of that name in Physics of Language Models 4.1 (Allen-Zhu 2025, arXiv:2512.17351).
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from llama_ablate.data.sources.source import Nats, Symbols, within
from llama_ablate.errors import ConfigError

_MOST = 128  # most pairs, nodes, queries or operations: an episode has to fit a context
#: One in so many episodes is used for validation and one for test, chosen by a hash of its symbols.
HELD_OUT = 20
_EPISODES_PER_DRAW = (
    2000  # if none of them belongs to a split, there are too few different episodes
)
_NAMES = 1 << 10  # most keys, values or residues: each episode shuffles all of them


class DrawnEpisodes(NamedTuple):
    """Batch of N random episodes with the same layout, of L symbols each."""

    symbols: Symbols  # (N, L), each from 0 to `alphabet` - 1
    alphabet: int
    #: Number of equally likely symbols at each position given the symbols before it, (L,); 0 marks
    #: an answer, which these symbols determine.
    ways: Symbols
    #: Chance accuracy: how often a guess among the possible answers is correct.
    chance: float


@dataclass(frozen=True)
class Episodes:
    """Source of random episodes, with a mark (symbol 0) before each episode.

    The symbols of episodes are shifted by 1, to leave 0 for the mark. No episode is in two splits.
    The floor (lowest possible loss) is exact in a window that begins with an episode, as all
    held-out windows do if the context is a multiple of `length`. In any other window, tokens before
    the first mark have the floor of a predictor that has also seen the beginning of their episode,
    so no model is better.
    """

    draw: Callable[[np.random.Generator, int], DrawnEpisodes]  # draws a number of episodes
    split: int = 0  # index of train, validation or test

    def __post_init__(self) -> None:
        """Raise ConfigError for options from which no episode can be drawn."""
        _ = self.layout

    @cached_property
    def layout(self) -> DrawnEpisodes:
        """Example episode, whose alphabet, symbol counts and chance accuracy all episodes have."""
        return self.draw(np.random.default_rng(0), 1)

    @property
    def alphabet(self) -> int:
        """Size of the alphabet: the mark and the symbols of episodes."""
        return 1 + self.layout.alphabet

    @property
    def length(self) -> int:
        """Number of symbols of an episode, its mark included."""
        return 1 + len(self.layout.ways)

    @property
    def chance(self) -> float:
        """Chance accuracy at an answer."""
        return self.layout.chance

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw consecutive episodes of this split, with `length` symbols in total.

        Raises ConfigError if `length` is shorter than an episode, or if the split would have no
        episode.
        """
        if length < self.length:
            message = f"a split of {length:,} tokens holds no episode, which has {self.length:,}"
            raise ConfigError(message, ("tokens",))
        missing, parts = -(-length // self.length), [np.zeros((0, self.length), np.int64)]
        while missing > 0:
            symbols = self.draw(generator, _EPISODES_PER_DRAW).symbols
            sums = [zlib.crc32(row.tobytes()) % HELD_OUT for row in symbols.astype("<u2")]
            chosen = symbols[(np.minimum(sums, 2) + 1) % 3 == self.split][:missing]
            if not len(chosen):
                raise ConfigError("too few different episodes to hold some out: take larger ones")
            parts.append(np.pad(chosen + 1, ((0, 0), (1, 0))))
            missing -= len(chosen)
        return np.concatenate(parts).ravel()[:length]

    def floor(self, windows: Symbols) -> Nats:
        """Return the lowest possible loss in nats of each prediction, (N, T - 1).

        The loss is the logarithm of the number of equally likely symbols, and 0 in a window without
        a mark.
        """
        has_mark = (windows == 0).any(1, keepdims=True)
        return np.where(has_mark, np.log(np.maximum(self._count_branches(windows), 1)), 0.0)

    def answers(self, windows: Symbols) -> Symbols:
        """Return answers in episodes that begin in the windows, (N, T - 1); else -1."""
        begun = np.logical_or.accumulate(windows == 0, 1)[:, :-1]
        return np.where(begun & (self._count_branches(windows) == 0), windows[:, 1:], -1)

    def _count_branches(self, windows: Symbols) -> Symbols:
        """Return the number of equally likely symbols at each prediction, (N, T - 1).

        Positions within an episode are counted from the window's first mark. The number is 0 for an
        answer, which earlier symbols determine.
        """
        first = (windows == 0).argmax(1)[:, None]
        places = (np.arange(1, windows.shape[1]) - first) % self.length
        return np.asarray(np.append(1, self.layout.ways)[places])


def mqar(
    generator: np.random.Generator,
    count: int,
    *,
    pairs: int = 4,
    keys: int = 16,
    values: int = 16,
    queries: int = 4,
) -> DrawnEpisodes:
    """Draw episodes that state `pairs` of key and value, then ask for values (arXiv:2312.04927).

    The task is multi-query associative recall. All keys differ, and so do all values. A guess is
    one of the stated values. An episode has 1 + 2 pairs + 2 queries tokens.
    """
    within(2, _MOST, pairs=pairs)
    within(1, _MOST, queries=queries)
    within(pairs, _NAMES, keys=keys, values=values)
    key, value = (_different(generator, count, most, pairs) for most in (keys, values))
    queried = generator.integers(0, pairs, (count, queries))
    statements = _in_turn(key, keys + value)
    answered = _in_turn(_at(key, queried), keys + _at(value, queried))
    given = np.arange(pairs)
    branching = np.append(_in_turn(keys - given, values - given), [pairs, 0] * queries)
    return DrawnEpisodes(np.hstack([statements, answered]), keys + values, branching, 1 / pairs)


def depo(
    generator: np.random.Generator, count: int, *, nodes: int = 6, hops: int = 2, queries: int = 4
) -> DrawnEpisodes:
    """Draw episodes that state a cycle's edges, then ask for nodes on it (arXiv:2512.17351).

    Each query asks for the node 1 to `hops` steps after a given node. Edges are stated in random
    order. A guess is one of the other nodes. An episode has 1 + 2 nodes + 3 queries tokens.
    """
    within(3, _MOST, nodes=nodes)
    within(1, nodes - 1, hops=hops)
    within(1, _MOST, queries=queries)
    cycle, edge = (_different(generator, count, nodes, nodes) for _ in range(2))
    start = generator.integers(0, nodes, (count, queries))
    hop = generator.integers(1, hops + 1, (count, queries))
    statements = _in_turn(_at(cycle, edge), _at(cycle, (edge + 1) % nodes))
    questions = _in_turn(nodes - 1 + hop, _at(cycle, start), _at(cycle, (start + hop) % nodes))
    left = np.arange(nodes, 0, -1)  # free sources; a target is free and does not close the cycle
    branching = np.append(_in_turn(left, np.maximum(left - 1, 1)), [hops, nodes, 0] * queries)
    return DrawnEpisodes(
        np.hstack([statements, questions]), nodes + hops, branching, 1 / (nodes - 1)
    )


def mano(
    generator: np.random.Generator, count: int, *, modulus: int = 11, operations: int = 2
) -> DrawnEpisodes:
    """Draw chains of +, - and * modulo a prime, followed by their value (arXiv:2512.17351).

    A chain is written in prefix notation, `* + a b c`. A guess is 0, the value that products make
    the likeliest. An episode has 3 + 2 operations tokens.
    """
    within(2, _NAMES, modulus=modulus)
    within(1, _MOST, operations=operations)
    if not all(modulus % factor for factor in range(2, math.isqrt(modulus) + 1)):
        raise ConfigError(f"modulus {modulus}: must be a prime", ("modulus",))
    signs = generator.integers(0, 3, (count, operations))
    numbers = generator.integers(0, modulus, (count, operations + 1))
    value, zero = numbers[:, 0], 1 / modulus
    for sign, number in zip(signs.T[::-1], numbers.T[1:], strict=True):
        value = np.choose(sign, [value + number, value - number, value * number]) % modulus
        zero = (2 / modulus + zero + (1 - zero) / modulus) / 3  # +, -: uniform; *: 0 if a factor is
    branching = np.array([3] * operations + [modulus] * (operations + 1) + [0])
    return DrawnEpisodes(
        np.column_stack([modulus + signs, numbers, value]), modulus + 3, branching, zero
    )


def _different(generator: np.random.Generator, count: int, most: int, size: int) -> Symbols:
    """Draw `size` different symbols below `most` in each of `count` rows."""
    return generator.permuted(np.tile(np.arange(most), (count, 1)), axis=1)[:, :size]


def _at(of: Symbols, places: Symbols) -> Symbols:
    return np.asarray(np.take_along_axis(of, places, 1))


def _in_turn(*columns: Symbols) -> Symbols:
    """Interleave the columns of two arrays: a1 b1 a2 b2."""
    return np.stack(columns, -1).reshape(*columns[0].shape[:-1], -1)
