"""Which of several points no other point beats in both numbers: the Pareto front of two numbers that are to be low."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby


def unbeaten(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the points that no other point beats, by ascending first number; equal points are all there.

    A point beats another if it is as low in both numbers and lower in one of them.
    """
    order = sorted(range(len(points)), key=lambda i: points[i])
    found, lowest = list[int](), math.inf
    for _, group in groupby(order, key=lambda i: points[i][0]):
        tied = list(group)
        second = points[tied[0]][1]
        if second < lowest or not found:
            found += [i for i in tied if points[i][1] == second]
            lowest = second
    return found
