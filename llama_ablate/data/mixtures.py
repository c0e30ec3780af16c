"""Training batches of several corpora, each row of one of them, drawn by their shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.tokens import Tokens

#: Batch `k` of a seed, (size, context + 1): of a seed, k, a size and a context.
Batches = Callable[[int, int, int, int], NDArray[np.int64]]


@dataclass(frozen=True)
class TextMixture:
    """Windows of several tokens, each with its share of the rows, and how many of its first tokens.

    A row is the same row of a source's own batch. So one source with a share of 1 has its batches,
    and of two mixtures the rows are equal for which both have drawn the same source.
    """

    parts: Sequence[tuple[Tokens, float, int]]

    def batch(self, seed: int, k: int, size: int, context: int) -> NDArray[np.int64]:
        """Return batch `k` of a seed, (size, context + 1); it depends on nothing else.

        Raises DamagedError where the tokens have changed since they were opened.
        """
        generator = np.random.Generator(np.random.Philox(key=[seed, k], counter=[0, 0, 0, 1]))
        ends = np.cumsum([share for _, share, _ in self.parts])
        drawn = np.searchsorted(ends[:-1], generator.random(size), "right")
        own = [tokens.batch(seed, k, size, context, first) for tokens, _, first in self.parts]
        return np.stack(own)[drawn, np.arange(size)]
