"""Significance levels of the successive tests of a ledger (online multiple testing).

Tests are numbered in the order in which they began. The time of a decision is the number of tests
that had begun by then, and the level of test `t` depends on the decisions at times below `t`. A
test that is not decided counts as not accepted, so that tests may overlap (Zrnic, Ramdas & Jordan
2018, arXiv:1812.05068).
"""

import math
from collections.abc import Sequence

#: Largest one-sided level of gate one and of gate two.
MAX_LEVELS = 0.025, 0.05


def weights(most: int) -> list[float]:
    """Compute the error shares of `most` successive tests, with a sum of 1.

    The shares fall as log(n) / (n exp(sqrt(log n))) (Javanmard & Montanari 2018, eq. 31). In an
    infinite sequence, the first thousand tests would have only three tenths of the sum; with a
    stated maximum, the tests up to the maximum have all of it.
    """
    falling = [
        math.log(max(n, 2)) / (n * math.exp(math.sqrt(math.log(n)))) for n in range(1, most + 1)
    ]
    total = sum(falling)
    return [term / total for term in falling]


def lord(
    test: int, accepted: Sequence[int], shares: Sequence[float], error: float, wealth: float
) -> float:
    """Compute the level of a test by LORD++, which bounds the false discovery rate.

    The false discovery rate stays below `error`. `accepted` holds the times at which tests were
    accepted; each acceptance adds error for later tests, distributed by `shares`. `wealth`, below
    `error`, is the error available before the first acceptance. The theorem needs independent p
    values that are uniform or larger under the null hypothesis, and therefore fresh baseline runs
    for each test (Ramdas, Yang, Wainwright & Jordan 2017, arXiv:1710.00499).
    """
    since = [test - at for at in accepted if at < test]
    earned = error * sum(shares[tests - 1] for tests in since)
    # The first acceptance adds only `error - wealth`: `wealth` was available before.
    first = shares[max(since) - 1] if since else 0.0
    return wealth * (shares[test - 1] - first) + earned


def family_wise(test: int, shares: Sequence[float], error: float) -> float:
    """Compute the level of a test that bounds the family-wise error by `error`.

    The levels of all tests sum to `error`. The probability of any false acceptance is therefore at
    most `error`, for any dependence between the tests (Foster & Stine 2008).
    """
    return error * shares[test - 1]


def split_level(level: float) -> tuple[float, float]:
    """Split a level into the one-sided levels of gate one and gate two.

    The product of the two gates' levels is at most `level`. The gates have different seeds and
    texts, so a change that helps at neither gate passes both gates with a probability of at most
    the product. Each gate has the square root of the level, at most its value in `MAX_LEVELS`.

    >>> split_level(1e-4)
    (0.01, 0.01)
    """
    root = math.sqrt(level)
    return min(root, MAX_LEVELS[0]), min(root, MAX_LEVELS[1])
