"""Which of many alike cases run by default, and which only among the slow tests."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

ALL_EXAMPLES = 100  # of a property without a number of its own, in the profile "every example"
FEW = 10  # a property with fewer has as many by default


def thinned(cases: Iterable[Any], by_default: Callable[[Any], bool]) -> list[Any]:
    """All cases; those that are not ``by_default`` are slow tests. A case that is a tuple is several arguments."""
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=[] if by_default(case) else [pytest.mark.slow]))
    return found


def examples(num: int) -> int:
    """``num`` among the slow tests, where every property is tested again; by default a quarter of them."""
    share = settings().max_examples / ALL_EXAMPLES
    return max(min(num, FEW), int(num * share))


def one_of(num: int, cases: Iterable[Any]) -> list[Any]:
    """All cases; by default one of ``num``, the first included, where each takes another way to the same end."""
    every = list(cases)
    chosen = {id(case) for case in every[::num]}
    return thinned(every, lambda case: id(case) in chosen)


OTHER_TARGETS = {"slow", "services", "faults", "slurm", "soak", "trackers", "peers", "recipes", "agents"}
# Of rooms whose tests start processes or train. A new one that varies what another shows is slow.
MOST_BY_DEFAULT = {"tests/contract": 545, "tests/end_to_end": 130, "tests/faults": 200, "tests/processes": 210}


def is_default(test: pytest.Item) -> bool:
    """Whether `make test` runs it."""
    return not OTHER_TARGETS & {mark.name for mark in test.iter_markers()}
