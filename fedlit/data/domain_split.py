"""One client per domain: each domain shuffled and cut in three as in tables 5 to 7 of Exp-α.

    test          ceil(test_fraction n)
    validation    ceil(val_fraction (n - test))
    training      the rest

Rounded up, 0.2 and 0.3 give every number of tables 5 (Office-Caltech10) and 6 (DomainNet), and 0.2 the tests of table 7
(Digits); rounded down, as `split.py` does it, they do not. The draws of a domain do not depend on the other domains.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.data.split import Shares


@dataclass(frozen=True)
class Cut:
    """The rows of one domain, each in one part at most."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def rows_of_each(sizes: Iterable[int]) -> list[RowNumbers]:
    """The rows of each domain, for domains of these sizes one after the other in a store."""
    ends = np.cumsum(list(sizes))
    return np.split(np.arange(ends[-1]), ends[:-1])


def cut(rows: RowNumbers, shares: Shares, generator: np.random.Generator) -> Cut:
    """Shuffle the rows of a domain and cut them by the shares of test and validation."""
    test, rest = np.split(generator.permutation(rows), [rounded_up(len(rows), shares.test)])
    val, train = np.split(rest, [rounded_up(len(rest), shares.val)])
    return Cut(train, val, test)


def rounded_up(n: int, fraction: float) -> int:
    """ceil(n * fraction), but at most n - 1."""
    # 295 * 0.2 may come out a little above 59 in floating point; the user meant 59.
    return max(0, min(math.ceil(n * fraction - 1e-9), n - 1))


def one_client_each(cuts: Mapping[str, Cut]) -> Parts:
    """One client for each domain, in this order; the domain's name is its group."""
    return Parts(
        clients=[part.train for part in cuts.values()],
        tests=[part.test for part in cuts.values()],
        vals=[part.val for part in cuts.values()],
        groups=list(cuts),
    )
