"""Markov chains and hidden Markov models as sources of known entropy."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from llama_ablate.data.sources.source import SYMBOLS, Nats, OfVocabulary, Symbols, at_least, within
from llama_ablate.errors import ConfigError

_DENSE = 4096  # histories up to which the stationary distribution is solved for directly
_TABLE = 1 << 24  # probabilities of one table: 128 MiB
_ORDER = 23  # with two symbols, the fewest, a longer history exceeds _TABLE
_STATES = 1 << 10  # hidden: the forward filter is quadratic in them
_PRODUCTS = 1 << 33  # multiplications of the power iteration before it gives up: a minute


@dataclass(frozen=True)
class Markov(OfVocabulary):
    """Each symbol depends on the `order` before it, by rows drawn from a Dirichlet distribution."""

    vocab: int = 64
    order: int = 1
    concentration: float = 0.05
    table_seed: int = 0
    name: ClassVar[str] = "markov"

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range, or a table too large for memory."""
        within(2, SYMBOLS, vocab=self.vocab)
        within(1, _ORDER, order=self.order)
        if self.vocab ** (self.order + 1) > _TABLE:
            key = "order" if self.order > 1 else "vocab"  # an order of 1 is the least
            raise ConfigError(
                f"vocab {self.vocab} to the power of order {self.order} + 1 is more "
                f"than {_TABLE:,} probabilities",
                (key,),
            )
        at_least(0, table_seed=self.table_seed)
        _positive(self.concentration)

    @cached_property
    def table(self) -> Nats:
        """The probability of each symbol after each history, (vocab^order, vocab)."""
        return _rows(self.vocab**self.order, self.vocab, self.concentration, self.table_seed)

    @cached_property
    def stationary(self) -> Nats:
        """The probability of each history, (vocab^order,): the fixed point of the chain."""
        states = self.vocab**self.order
        if states <= _DENSE:
            step = np.zeros((states, states))
            old, new = np.divmod(np.arange(states * self.vocab), self.vocab)
            step[old, old % (states // self.vocab) * self.vocab + new] = self.table.ravel()
            equations = step.T - np.eye(states)
            equations[-1] = 1.0  # one of them follows from the others: probabilities add to 1
            solved = np.linalg.solve(equations, np.eye(states)[-1])
            return np.asarray(np.maximum(solved, 0) / np.maximum(solved, 0).sum())
        now = np.full(states, 1 / states)
        for _ in range(min(100_000, _PRODUCTS // self.table.size)):
            joint = (now[:, None] * self.table).reshape(self.vocab, -1)
            after = (now + joint.sum(0)) / 2  # the oldest is forgotten; lazily, against cycles
            if np.abs(after - now).sum() < 1e-13:
                return np.asarray(after)
            now = after
        raise ConfigError(
            "the chain mixes too slowly for its stationary distribution to be found; "
            "raise concentration",
            ("concentration",),
        )

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return a sample of the stationary chain, (length,)."""
        cumulative = self.table.cumsum(1)
        state = int(generator.choice(len(self.stationary), p=self.stationary))
        uniform, out = generator.random(length), np.empty(length, np.int64)
        high = self.vocab ** (self.order - 1)
        for t in range(length):
            symbol = min(
                int(np.searchsorted(cumulative[state], uniform[t], "right")), self.vocab - 1
            )
            out[t] = symbol
            state = (state % high) * self.vocab + symbol
        return out

    def floor(self, windows: Symbols) -> Nats:
        """Return the exact loss; before `order` symbols are seen, from the stationary chain."""
        nats = np.empty((len(windows), windows.shape[1] - 1))
        for t in range(1, windows.shape[1]):
            seen = windows[:, max(0, t - self.order) : t]
            chances = self._after(seen)
            nats[:, t - 1] = -np.log(chances[np.arange(len(windows)), windows[:, t]])
        return nats

    def _after(self, seen: Symbols) -> Nats:
        """Return the distribution of the next symbol after `seen`, (N, vocab)."""
        length = seen.shape[1]
        index = seen @ self.vocab ** np.arange(length - 1, -1, -1)
        if length == self.order:
            return np.asarray(self.table[index])
        # Averaged over all histories that end in the symbols seen.
        joint = self.stationary[:, None] * self.table
        ends = joint.reshape(-1, self.vocab**length, self.vocab).sum(0)
        return np.asarray(ends[index] / ends[index].sum(1, keepdims=True))


@dataclass(frozen=True)
class HiddenMarkov(OfVocabulary):
    """Symbols are emitted by hidden states that follow a chain of their own."""

    vocab: int = 64
    states: int = 16
    concentration: float = 0.05
    table_seed: int = 0
    name: ClassVar[str] = "hmm"

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range."""
        within(2, SYMBOLS, vocab=self.vocab)
        within(2, _STATES, states=self.states)
        if self.states * self.vocab > _TABLE:
            raise ConfigError(
                f"states {self.states} times vocab {self.vocab} is more than "
                f"{_TABLE:,} probabilities",
                ("states",),
            )
        at_least(0, table_seed=self.table_seed)
        _positive(self.concentration)

    @cached_property
    def chain(self) -> Markov:
        """The hidden chain."""
        return Markov(self.states, 1, self.concentration, self.table_seed)

    @cached_property
    def emission(self) -> Nats:
        """The probability of each symbol in each state, (states, vocab)."""
        return _rows(self.states, self.vocab, self.concentration, self.table_seed + 1)

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return the symbols that a sample of the hidden chain emits, (length,)."""
        hidden = self.chain.sample(generator, length)
        cumulative, uniform = self.emission.cumsum(1), generator.random(length)
        symbols = np.empty(length, np.int64)
        # State by state: a row of the table for every token of a long stretch would be gigabytes.
        order = hidden.argsort(kind="stable")
        starts = np.searchsorted(hidden[order], np.arange(1, self.states))
        for state, places in enumerate(np.split(order, starts)):
            symbols[places] = np.searchsorted(cumulative[state], uniform[places])
        return np.minimum(symbols, self.vocab - 1)

    def floor(self, windows: Symbols) -> Nats:
        """Return the exact loss by the forward filter, from the stationary distribution."""
        nats = np.empty((len(windows), windows.shape[1] - 1))
        belief = np.tile(self.chain.stationary, (len(windows), 1))
        for t in range(windows.shape[1]):
            joint = belief * self.emission[:, windows[:, t]].T
            chance = joint.sum(1, keepdims=True)
            if t:
                nats[:, t - 1] = -np.log(chance[:, 0])
            belief = (joint / chance) @ self.chain.table
        return nats


def _positive(concentration: float) -> None:
    if not concentration > 0:
        raise ConfigError(f"concentration {concentration:g} must be above 0", ("concentration",))


def _rows(rows: int, columns: int, concentration: float, seed: int) -> Nats:
    """Draw distributions over `columns`, one a row.

    A Dirichlet of small concentration underflows to exact zeros, whose logarithm a chance event
    would need: every symbol keeps a millionth.
    """
    generator = np.random.default_rng(seed)
    drawn = generator.dirichlet(np.full(columns, concentration), rows) + 1e-6
    return np.asarray(drawn / drawn.sum(1, keepdims=True))
