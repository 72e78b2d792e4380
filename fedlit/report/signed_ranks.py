"""Wilcoxon's signed-rank test of paired differences, exact, and Holm's correction for several such tests.

    r_s   rank of |d_s| among the differences that are not 0; equal ones share the mean of their ranks
    W⁺    Σ r_s over d_s > 0
    p     share of the 2^n ways to choose signs in which W⁺ is as far from its mean n(n + 1)/4, or farther

So no p is below 2^(1 − n): with five pairs that is 0.0625, and no difference can be significant at 5 %.
Ours, because SciPy takes a second to import at every start; its exact p is the oracle of the tests.
"""

import math
from collections.abc import Sequence

ALPHA = 0.05
"""A difference is called significant if its corrected p is at most this."""
_TIE = 1e-9
"""Differences whose sizes differ by less, relative to the largest, share a rank: 0.6 − 0.5 is 0.5 − 0.4."""


def signed_rank_p(differences: Sequence[float]) -> float | None:
    """Two-sided exact p; None without a difference that is neither 0 nor infinite."""
    if not all(map(math.isfinite, differences)):
        return None
    largest = max(map(abs, differences), default=0.0)
    left = [one for one in differences if abs(one) > _TIE * largest]
    if not left:
        return None
    ranks = doubled_ranks([abs(one) for one in left], _TIE * largest)
    reached = sum(rank for rank, one in zip(ranks, left, strict=True) if one > 0)
    counts = sums_of_subsets(ranks)
    middle = sum(ranks) / 2
    as_far = sum(count for total, count in enumerate(counts) if abs(total - middle) >= abs(reached - middle))
    return as_far / 2.0 ** len(ranks)


def doubled_ranks(sizes: Sequence[float], tie: float) -> list[int]:
    """Twice the rank of each size, from 2: whole numbers, although equal sizes share the mean of their ranks."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    ranks = [0] * len(sizes)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and sizes[order[last + 1]] - sizes[order[last]] <= tie:
            last += 1
        for position in order[first : last + 1]:
            ranks[position] = (first + 1) + (last + 1)
        first = last + 1
    return ranks


def sums_of_subsets(numbers: Sequence[int]) -> list[int]:
    """In how many of the 2^n subsets the numbers sum to 0, 1, 2, …"""
    counts = [1] + [0] * sum(numbers)
    for number in numbers:
        for total in range(len(counts) - 1, number - 1, -1):
            counts[total] += counts[total - number]
    return counts


def holm(ps: Sequence[float]) -> list[float]:
    """The p of each test after Holm's correction: the k-th smallest of m times m − k + 1, never decreasing."""
    order = sorted(range(len(ps)), key=ps.__getitem__)
    corrected, highest = [0.0] * len(ps), 0.0
    for position, test in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - position) * ps[test]))
        corrected[test] = highest
    return corrected


def smallest_p(pairs: int) -> float:
    """The p of n differences of one sign: of all ways to choose signs, this one and its opposite are as far."""
    return 2.0 ** (1 - pairs)


def least_pairs(tests: int) -> int:
    """So many pairs it takes until the smallest p of this many tests is significant after Holm's correction."""
    pairs = 2
    while tests * smallest_p(pairs) > ALPHA:
        pairs += 1
    return pairs
