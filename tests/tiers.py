"""Which of many alike cases run by default, and which only among the slow tests."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], by_default: Callable[[Any], bool]) -> list[Any]:
    """All cases; those that are not ``by_default`` are slow tests. A case that is a tuple is several arguments."""
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=[] if by_default(case) else [pytest.mark.slow]))
    return found
