"""Levels of tests that follow each other over the whole life of a ledger.

A test has a number, in the order in which tests began, and a time at which it was decided, in the
same count: test `t` knows the decisions at times below `t`. A test that has begun and is not
decided counts as not accepted, so that tests may overlap (Zrnic, Ramdas & Jordan 2018,
arXiv:1812.05068).
"""

import math
from collections.abc import Sequence

#: Largest one-sided level of gate one and of gate two.
MAX_LEVELS = 0.025, 0.05


def weights(most: int) -> list[float]:
    """Compute the share of the error of each of at most `most` tests; they sum to 1.

    They fall as log(n) / (n exp(sqrt(log n))) (Javanmard & Montanari 2018, eq. 31). Over all whole
    numbers three tenths of the sum lie in the first thousand: a stated maximum gains the rest.
    """
    falling = [
        math.log(max(n, 2)) / (n * math.exp(math.sqrt(math.log(n)))) for n in range(1, most + 1)
    ]
    total = sum(falling)
    return [term / total for term in falling]


def lord(
    test: int, accepted: Sequence[int], shares: Sequence[float], error: float, wealth: float
) -> float:
    """Compute the level of a test by LORD++: the false discovery rate stays below `error`.

    `accepted` are the times at which tests were accepted; each pays for later ones, by `shares`.
    `wealth`, below `error`, may be spent before the first. The theorem needs independent p values
    that are uniform or larger under the null: fresh baseline runs for each test (Ramdas, Yang,
    Wainwright & Jordan 2017, arXiv:1710.00499).
    """
    since = [test - at for at in accepted if at < test]
    earned = error * sum(shares[tests - 1] for tests in since)
    # The first acceptance pays only what was not there to spend before it.
    first = shares[max(since) - 1] if since else 0.0
    return wealth * (shares[test - 1] - first) + earned


def family_wise(test: int, shares: Sequence[float], error: float) -> float:
    """Compute the level of a test so that any false acceptance, ever, has a chance below `error`.

    The levels of all tests sum to `error`, whatever their dependence (Foster & Stine 2008).
    """
    return error * shares[test - 1]


def split_level(level: float) -> tuple[float, float]:
    """Compute the one-sided levels of gate one and gate two, whose product is at most `level`.

    The gates have other seeds and another text, so a change that helps on neither passes both with
    at most the product. Each gate has the root of the level, at most `MAX_LEVELS`.

    >>> split_level(1e-4)
    (0.01, 0.01)
    """
    root = math.sqrt(level)
    return min(root, MAX_LEVELS[0]), min(root, MAX_LEVELS[1])
