"""Lines that match a regular expression of the user, whose groups are the columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import MetricsConfig, find_name
from orchestrator.logs.lines import Reader, Row, compiled, number_of, text_of


class Pattern(Reader):
    """Reads lines that match a regular expression, whose groups are the columns."""

    _MAX_BYTES = 64 * 1024  # searched in a line: an expression may be slow

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for line in lines:
            match = self._pattern.search(text_of(line[: self._MAX_BYTES]))
            groups = match.groupdict() if match else {}
            numbers = {name: number_of(text) for name, text in groups.items() if text is not None}
            if row := {name: value for name, value in numbers.items() if value is not None}:
                yield row


def compiled_pattern(metrics: MetricsConfig) -> re.Pattern[str]:
    """Compile the pattern of ``metrics``. Raises InputError if it is invalid, or has no group for the loss."""
    remedy = r"write e.g. 'step (?P<step>\d+) loss (?P<loss>\S+)'"
    pattern = compiled(metrics.pattern or "", "metrics.pattern", remedy)
    wanted = metrics.loss or "loss"
    if find_name(pattern.groupindex, wanted) is None:
        raise InputError(Problem("", "metrics.pattern", f"has no group called {wanted}", remedy))
    return pattern
