"""Sources that ask for a skill: what stands in a window tells some of its symbols for sure.

`answers` are those symbols. A model that has the skill writes them; its accuracy there is measured
beside its excess loss. Copying and recall are in `sources`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llama_ablate.data.sources.source import SYMBOLS, Nats, Symbols, share, within
from llama_ablate.errors import ConfigError

_MOST = 64  # counts: the filter has a state for each place of each count


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
        """One of the ordinary symbols."""
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
        known = self.answers(windows) >= 0
        before, now = windows[:, :-1], windows[:, 1:]
        ordinary = (before < self.vocab) & (now < self.vocab)
        nats[ordinary] -= math.log(goes_on)
        nats[known] = -math.log(goes_on)
        for symbol, chance in ((self.vocab, self.jump), (self.vocab + 1, self.reset)):
            there = (before < self.vocab) & (now == symbol)
            nats[there] = -math.log(chance) if chance else math.inf
        return nats

    def answers(self, windows: Symbols) -> Symbols:
        """Return what follows a symbol, where it followed it before; else -1."""
        found = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        for row, window in enumerate(windows.tolist()):
            after: dict[int, int] = {}
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before == self.vocab + 1:
                    after = {}
                if before < self.vocab and now < self.vocab:
                    found[row, t - 1] = after.get(before, -1)
                    after[before] = now
        return found


@dataclass(frozen=True)
class Counting:
    """A number of one symbol, then as many of the other; the number is drawn anew each time.

    The language a^n b^n, which a model must count for (Bhattamishra et al. 2020, arXiv:2009.11264).
    """

    longest: int = 16
    name: ClassVar[str] = "counting"
    alphabet: ClassVar[int] = 2
    chance: ClassVar[float] = 1 / 2  # one of the two: each is asked for as often

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes out of range."""
        within(2, _MOST, longest=self.longest)

    def sample(self, generator: np.random.Generator, length: int) -> Symbols:
        """Return a stretch of the stream, from the beginning of a count on."""
        counts = generator.integers(1, self.longest + 1, length // 2 + 1)
        pairs = np.column_stack([counts, counts]).ravel()
        return np.repeat(np.tile([0, 1], len(counts)), pairs)[:length].astype(np.int64)

    def floor(self, windows: Symbols) -> Nats:
        """Return the exact loss by the forward filter: a window may begin within a count."""
        sizes = 2 * np.arange(1, self.longest + 1)
        starts = np.cumsum(sizes) - sizes
        place = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        symbol = (place >= np.repeat(sizes // 2, sizes)).astype(np.int64)
        nats = np.empty((len(windows), windows.shape[1] - 1))
        # Every number is as likely, so every place of every number is.
        belief = np.full((len(windows), len(place)), 1 / len(place))
        for t in range(windows.shape[1]):
            joint = belief * (symbol == windows[:, t, None])
            chance = joint.sum(1, keepdims=True)
            if t:
                nats[:, t - 1] = -np.log(chance[:, 0])
            ended = (joint / chance)[:, starts + sizes - 1].sum(1)
            belief = np.roll(joint / chance, 1, axis=1)
            belief[:, starts] = ended[:, None] / self.longest
        return np.maximum(nats, 0.0)  # without the last bit above a chance of 1

    def answers(self, windows: Symbols) -> Symbols:
        """Return the last symbol of each count and the one behind it; else -1.

        Who never stops has the one, who always stops the other. Of counts whose beginning the
        window shows.
        """
        found = np.full((len(windows), windows.shape[1] - 1), -1, np.int64)
        for row, window in enumerate(windows.tolist()):
            first = second = -1  # how many of each so far; -1 before a count begins
            for t in range(1, len(window)):
                before, now = window[t - 1], window[t]
                if before == 1 and second >= 0 and first - second <= 1:
                    found[row, t - 1] = 0 if second == first else 1
                if (before, now) == (1, 0):
                    first, second = 1, 0
                elif first >= 0:
                    first, second = first + (now == 0), second + (now == 1)
        return found
