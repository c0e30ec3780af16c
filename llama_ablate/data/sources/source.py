"""Synthetic random sources with a known entropy rate, each testing one skill of a model.

`floor` is the loss, at each token of a window, of a predictor that knows the source and sees the
earlier tokens of the window: no model is better except by chance. A model's loss minus this floor
on the same tokens is its excess loss. `answers` are the next symbols that a window determines: a
model that has the skill predicts them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_ablate.errors import ConfigError

Symbols = NDArray[np.int64]
Nats = NDArray[np.float64]

#: The largest alphabet: each symbol is written as a letter, and Unicode has no much longer run of
#: letters.
SYMBOLS = 1 << 15
_KEYS = 1 << 12  # most keys: each reset draws all values again
_LAG = 1_000_000  # largest lag: far longer than any context


class Source(Protocol):
    """Stationary random process over integer symbols, with exactly known entropy.

    Some symbols are determined by the symbols before them in a window; `answers` returns them.
    """

    @property
    def alphabet(self) -> int:
        """Number of different symbols."""
        ...

    @property
    def chance(self) -> float:
        """Chance accuracy on determined symbols, which a random guess reaches."""
        ...

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw consecutive symbols, (length,)."""
        ...

    def floor(self, windows: Symbols) -> Nats:
        """Compute the lowest possible loss in nats, (N, T - 1) for windows (N, T)."""
        ...

    def answers(self, windows: Symbols) -> Symbols:
        """Return the determined next symbols, (N, T - 1) for windows (N, T); -1 elsewhere."""
        ...


def at_least(least: int, **counts: int) -> None:
    """Raise ConfigError for an option below `least`."""
    for name, value in counts.items():
        if value < least:
            raise ConfigError(f"{name} {value!s:.60}: must be {least} or more", (name,))


def within(least: int, most: int, **counts: int) -> None:
    """Raise ConfigError for an option outside of the range from `least` to `most`.

    Without an upper bound, a typo that adds some zeros would exhaust memory or run for hours.
    """
    at_least(least, **counts)
    for name, value in counts.items():
        if value > most:
            raise ConfigError(f"{name} {value!s:.60}: must be {most:,} or less", (name,))


def share(**shares: float) -> None:
    """Raise ConfigError for an option that is not between 0 and 1."""
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} {value:g}: must be from 0 to 1", (name,))


@dataclass(frozen=True)
class LagCopy:
    """Source whose symbols repeat the symbol `lag` positions before, except for random noise.

    With probability `noise`, a symbol is drawn uniformly from all `vocab` symbols instead.
    """

    vocab: int = 64
    lag: int = 3
    noise: float = 0.1
    name: ClassVar[str] = "lag-copy"

    def __post_init__(self) -> None:
        """Raise ConfigError for options out of range."""
        within(2, SYMBOLS, vocab=self.vocab)
        within(1, _LAG, lag=self.lag)
        share(noise=self.noise)

    @property
    def alphabet(self) -> int:
        """Number of symbols, `vocab`."""
        return self.vocab

    @property
    def chance(self) -> float:
        """Chance accuracy of a guess among all symbols."""
        return 1 / self.vocab

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw consecutive symbols, (length,); the first `lag` of them are uniform."""
        symbols = generator.integers(0, self.vocab, length)
        copied = generator.random(length) >= self.noise
        copied[: self.lag] = False
        # A copied symbol equals the last symbol drawn at the same position modulo the lag.
        index = np.where(copied, -1, np.arange(length))
        for offset in range(min(self.lag, length)):
            index[offset :: self.lag] = np.maximum.accumulate(index[offset :: self.lag])
        return np.asarray(symbols[index], np.int64)

    def floor(self, windows: Symbols) -> Nats:
        """Return the lowest possible loss in nats, (N, T - 1) for windows (N, T).

        The loss is log(vocab) as long as the copied symbol lies before the window.
        """
        same = 1 - self.noise + self.noise / self.vocab
        other = self.noise / self.vocab
        nats = np.full((len(windows), windows.shape[1] - 1), math.log(self.vocab))
        if windows.shape[1] > self.lag:
            hit = windows[:, self.lag :] == windows[:, : -self.lag]
            with np.errstate(divide="ignore"):
                nats[:, self.lag - 1 :] = -np.log(np.where(hit, same, other))
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return the symbols to copy, (N, T - 1); -1 for copies from before the window."""
        targets = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        if windows.shape[1] > self.lag:
            targets[:, self.lag - 1 :] = windows[:, : -self.lag]
        return targets


@dataclass(frozen=True)
class Recall:
    """Random keys, each followed by the key's value; a reset redraws values (Arora et al. 2023).

    This is a stationary form of multi-query associative recall (arXiv:2312.04927). A reset symbol
    means that the values of all keys are drawn again. The symbols are `keys` keys, then `values`
    values, then the reset.
    """

    keys: int = 8
    values: int = 8
    reset: float = 0.05
    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        """Raise ConfigError for options out of range."""
        within(1, _KEYS, keys=self.keys)
        within(2, SYMBOLS - 1 - self.keys, values=self.values)  # keys and values share the alphabet
        share(reset=self.reset)

    @property
    def alphabet(self) -> int:
        """Number of symbols: keys, values and the reset."""
        return self.keys + self.values + 1

    @property
    def chance(self) -> float:
        """Chance accuracy of a guess among the values."""
        return 1 / self.values

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw consecutive symbols, (length,), as they continue after a reset."""
        out: list[int] = []
        assigned = generator.integers(0, self.values, self.keys)
        while len(out) < length:
            if generator.random() < self.reset:
                out.append(self.alphabet - 1)
                assigned = generator.integers(0, self.values, self.keys)
            key = int(generator.integers(0, self.keys))
            out += [key, self.keys + int(assigned[key])]
        return np.array(out[:length], np.int64)

    def floor(self, windows: Symbols) -> Nats:
        """Return the lowest possible loss in nats, (N, T - 1) for windows (N, T).

        The loss is 0 for the value of a key that has occurred since the window's last reset.
        """
        nats = np.empty((len(windows), windows.shape[1] - 1))
        for row, window in enumerate(windows.tolist()):
            known_keys: set[int] = set()
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before < self.keys:  # after a key: its value
                    nats[row, t - 1] = 0.0 if before in known_keys else math.log(self.values)
                    known_keys.add(before)
                elif before < self.alphabet - 1:  # after a value: a reset or a key
                    is_reset = now == self.alphabet - 1
                    chance = self.reset if is_reset else (1 - self.reset) / self.keys
                    nats[row, t - 1] = -math.log(chance)
                else:  # after a reset: a key
                    known_keys = set()
                    nats[row, t - 1] = math.log(self.keys)
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return values of keys shown earlier in the window, (N, T - 1); else -1.

        Only keys since the last reset count.
        """
        targets = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        for row, window in enumerate(windows.tolist()):
            assigned: dict[int, int] = {}
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before == self.alphabet - 1:
                    assigned = {}
                elif before < self.keys:
                    targets[row, t - 1] = assigned.get(before, -1)
                    assigned[before] = now
        return targets


@dataclass(frozen=True)
class Induction:
    """Random chain with one successor per symbol; a reset redraws successors (Olsson et al. 2022).

    After a symbol comes the same successor as at the symbol's earlier occurrences since the last
    reset: the task of induction heads (arXiv:2209.11895). Weights cannot store the successors,
    since each reset draws all successors again. After a jump, the chain continues with a random
    symbol. The symbols are `vocab` ordinary symbols, then the jump, then the reset.
    """

    vocab: int = 16
    jump: float = 0.1
    reset: float = 0.02
    name: ClassVar[str] = "induction"

    def __post_init__(self) -> None:
        """Raise ConfigError for options out of range."""
        within(2, SYMBOLS - 2, vocab=self.vocab)
        share(jump=self.jump, reset=self.reset)
        if self.jump + self.reset >= 1:
            message = f"jump {self.jump:g} and reset {self.reset:g}: must add to less than 1"
            raise ConfigError(message, ("jump",))

    @property
    def alphabet(self) -> int:
        """Number of symbols: the ordinary symbols, the jump and the reset."""
        return self.vocab + 2

    @property
    def chance(self) -> float:
        """Chance accuracy of a guess among the ordinary symbols."""
        return 1 / self.vocab

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw consecutive symbols, (length,), that begin with a reset."""
        uniform = generator.random(length + 1).tolist()
        anywhere = generator.integers(0, self.vocab, length + 1).tolist()
        out: list[int] = [self.vocab + 1]
        after: list[int] = []
        for chance, any_symbol in zip(uniform, anywhere, strict=True):
            now = out[-1]
            if now == self.vocab + 1:
                after = generator.integers(0, self.vocab, self.vocab).tolist()
            if now >= self.vocab:
                out.append(any_symbol)
            elif chance < self.jump:
                out.append(self.vocab)
            elif chance < self.jump + self.reset:
                out.append(self.vocab + 1)
            else:
                out.append(after[now])
        return np.array(out[:length], np.int64)

    def floor(self, windows: Symbols) -> Nats:
        """Return the lowest possible loss in nats, (N, T - 1) for windows (N, T).

        A successor is known if it has occurred since the window's last reset.
        """
        nats = np.full((len(windows), windows.shape[1] - 1), math.log(self.vocab))
        goes_on = 1 - self.jump - self.reset
        is_known = self.answers(windows) >= 0
        before, now = windows[:, :-1], windows[:, 1:]
        ordinary = (before < self.vocab) & (now < self.vocab)
        nats[ordinary] -= math.log(goes_on)
        nats[is_known] = -math.log(goes_on)
        for symbol, chance in ((self.vocab, self.jump), (self.vocab + 1, self.reset)):
            there = (before < self.vocab) & (now == symbol)
            nats[there] = -math.log(chance) if chance else math.inf
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return successors shown earlier in the window, (N, T - 1); else -1.

        Only symbols since the last reset count.
        """
        targets = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        for row, window in enumerate(windows.tolist()):
            after: dict[int, int] = {}
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before == self.vocab + 1:
                    after = {}
                if before < self.vocab and now < self.vocab:
                    targets[row, t - 1] = after.get(before, -1)
                    after[before] = now
        return targets
