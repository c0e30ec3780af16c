"""Levels for tests that come one after another, over the whole life of a ledger.

A test has a number, by when it began, and it is decided at a time in the same count: when test `t`
begins, those are known that were decided at a time below `t`. What has begun and is not decided
counts as not accepted, so that tests may overlap (Zrnic, Ramdas & Jordan 2018, arXiv:1812.05068).
"""

import math
from collections.abc import Sequence


def weights(most: int) -> list[float]:
    """Return how an error is shared out among so many tests that follow each other; they sum to 1.

    They fall as log(n) / (n exp(sqrt(log n))) (Javanmard & Montanari 2018, eq. 31). Over all whole
    numbers three tenths of the sum lie in the first thousand: who says beforehand how many tests
    there are at most has the rest as well.
    """
    falling = [
        math.log(max(n, 2)) / (n * math.exp(math.sqrt(math.log(n)))) for n in range(1, most + 1)
    ]
    total = sum(falling)
    return [one / total for one in falling]


def lord(
    test: int, accepted: Sequence[int], shares: Sequence[float], error: float, wealth: float
) -> float:
    """Return the level of a test at which the false discovery rate stays below `error`: LORD++.

    `accepted` are the times at which tests were accepted; each pays for later ones, by `shares`.
    `wealth`, below `error`, is what may be spent before the first. The theorem asks for p values
    that are independent, and no smaller than uniform where nothing is to be found: fresh baseline
    runs for each test (Ramdas, Yang, Wainwright & Jordan 2017, arXiv:1710.00499).
    """
    since = [test - at for at in accepted if at < test]
    earned = error * sum(shares[tests - 1] for tests in since)
    first = shares[max(since) - 1] if since else 0.0  # pays what was not there to spend before it
    return wealth * (shares[test - 1] - first) + earned


def family_wise(test: int, shares: Sequence[float], error: float) -> float:
    """Return the level of a test at which any false acceptance, ever, has a chance below `error`.

    The levels of all tests sum to `error`, whatever their dependence (Foster & Stine 2008).
    """
    return error * shares[test - 1]


def e_lond(test: int, accepted: Sequence[int], shares: Sequence[float], error: float) -> float:
    """Return the level of a test by e-value: it is accepted at an e-value of at least 1 / level.

    The false discovery rate stays below `error` under any dependence, baseline runs that tests
    share included (Xu & Ramdas 2024, arXiv:2311.06412).
    """
    return error * shares[test - 1] * (1 + sum(at < test for at in accepted))


def p_of_e(level: float) -> float:
    """Return the p value whose e-value, 1 / (2 sqrt(p)), is 1 / level (Vovk & Wang 2021).

    It is an e-value whatever the test, and far from the best one of any (arXiv:1912.06116).
    """
    return (level / 2) ** 2
