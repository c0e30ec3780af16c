"""Synthetic sources with an exact entropy rate, each of which tests a skill.

`floor` is, for every token of a window, the loss of a predictor that knows the source and sees the
window so far: no model is better except by chance. A model's loss minus this floor on the same
tokens is its excess loss. `answers` are the symbols that follow for sure from a window: a model
that has the skill predicts them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_ablate.errors import ConfigError

Symbols = NDArray[np.int64]
Nats = NDArray[np.float64]

#: The largest alphabet: streams write a symbol as a letter, and there are not many more in a row.
SYMBOLS = 1 << 15
_KEYS = 1 << 12  # each reset draws all values again
_LAG = 1_000_000  # far longer than any context


class Source(Protocol):
    """Stationary process over `alphabet` symbols, some of which a window determines."""

    @property
    def alphabet(self) -> int:
        """The number of symbols."""
        ...

    @property
    def chance(self) -> float:
        """Chance accuracy on determined symbols."""
        ...

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Draw a stretch of the stream, (length,)."""
        ...

    def floor(self, windows: Symbols) -> Nats:
        """Compute the exact loss of the best predictor, (N, T - 1) for windows (N, T)."""
        ...

    def answers(self, windows: Symbols) -> Symbols:
        """Find the determined symbols in windows (N, T), (N, T - 1); -1 elsewhere."""
        ...


def at_least(least: int, **counts: int) -> None:
    """Raise ConfigError for an option that is too small."""
    for name, value in counts.items():
        if value < least:
            raise ConfigError(f"{name} {value!s:.60}: must be {least} or more", (name,))


def within(least: int, most: int, **counts: int) -> None:
    """Raise ConfigError for an option outside of a range.

    Without an upper bound a typo of some zeros would exhaust memory, or run for hours.
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
    """Each symbol is the one `lag` before it, or with probability `noise` any of `vocab`."""

    vocab: int = 64
    lag: int = 3
    noise: float = 0.1
    name: ClassVar[str] = "lag-copy"

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range."""
        within(2, SYMBOLS, vocab=self.vocab)
        within(1, _LAG, lag=self.lag)
        share(noise=self.noise)

    @property
    def alphabet(self) -> int:
        """The vocabulary."""
        return self.vocab

    @property
    def chance(self) -> float:
        """Accuracy of a random symbol of the vocabulary."""
        return 1 / self.vocab

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return a stretch of the stream; its first `lag` symbols are uniform."""
        symbols = generator.integers(0, self.vocab, length)
        copied = generator.random(length) >= self.noise
        copied[: self.lag] = False
        # A symbol is that of the last draw on its own residue class modulo the lag.
        index = np.where(copied, -1, np.arange(length))
        for offset in range(min(self.lag, length)):
            index[offset :: self.lag] = np.maximum.accumulate(index[offset :: self.lag])
        return np.asarray(symbols[index], np.int64)

    def floor(self, windows: Symbols) -> Nats:
        """Return log vocab while the copied symbol lies before the window, then the exact loss."""
        same = 1 - self.noise + self.noise / self.vocab
        other = self.noise / self.vocab
        nats = np.full((len(windows), windows.shape[1] - 1), math.log(self.vocab))
        if windows.shape[1] > self.lag:
            hit = windows[:, self.lag :] == windows[:, : -self.lag]
            with np.errstate(divide="ignore"):
                nats[:, self.lag - 1 :] = -np.log(np.where(hit, same, other))
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return the symbol to be copied; -1 while it lies before the window."""
        targets = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        if windows.shape[1] > self.lag:
            targets[:, self.lag - 1 :] = windows[:, : -self.lag]
        return targets


@dataclass(frozen=True)
class Recall:
    """Keys and their values, which hold until a reset draws all anew (Arora et al. 2023).

    A stationary form of multi-query associative recall (arXiv:2312.04927). The
    symbols are `keys` keys, then `values` values, then the reset.
    """

    keys: int = 8
    values: int = 8
    reset: float = 0.05
    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range."""
        within(1, _KEYS, keys=self.keys)
        within(2, SYMBOLS - 1 - self.keys, values=self.values)  # the alphabet has both
        share(reset=self.reset)

    @property
    def alphabet(self) -> int:
        """Keys, values and the reset."""
        return self.keys + self.values + 1

    @property
    def chance(self) -> float:
        """Accuracy of a random value."""
        return 1 / self.values

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return a stretch of the stream, from a reset on."""
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
        """Return 0 for a value shown in the window since the last reset; else the exact loss."""
        nats = np.empty((len(windows), windows.shape[1] - 1))
        for row, window in enumerate(windows.tolist()):
            known_keys: set[int] = set()
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before < self.keys:  # a key: its value comes
                    nats[row, t - 1] = 0.0 if before in known_keys else math.log(self.values)
                    known_keys.add(before)
                elif before < self.alphabet - 1:  # a value: a reset or a key comes
                    is_reset = now == self.alphabet - 1
                    chance = self.reset if is_reset else (1 - self.reset) / self.keys
                    nats[row, t - 1] = -math.log(chance)
                else:  # a reset: a key comes
                    known_keys = set()
                    nats[row, t - 1] = math.log(self.keys)
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return the value of a key that had one since the last reset in the window; else -1."""
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
    """Each symbol has one that follows it, until a reset draws all anew (Olsson et al. 2022).

    What followed a symbol before follows it again: the task of induction heads
    (arXiv:2209.11895), with maps that no weight can hold. A jump goes on at any symbol. The symbols
    are `vocab` ordinary ones, then the jump, then the reset.
    """

    vocab: int = 16
    jump: float = 0.1
    reset: float = 0.02
    name: ClassVar[str] = "induction"

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range."""
        within(2, SYMBOLS - 2, vocab=self.vocab)
        share(jump=self.jump, reset=self.reset)
        if self.jump + self.reset >= 1:
            message = f"jump {self.jump:g} and reset {self.reset:g}: must add to less than 1"
            raise ConfigError(message, ("jump",))

    @property
    def alphabet(self) -> int:
        """The ordinary symbols, the jump and the reset."""
        return self.vocab + 2

    @property
    def chance(self) -> float:
        """Accuracy of a random ordinary symbol."""
        return 1 / self.vocab

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return a stretch of the stream, from a reset on."""
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
        """Return the exact loss: what followed since the last reset in the window is known."""
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
        """Return what follows a symbol, where it followed it before; else -1."""
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
