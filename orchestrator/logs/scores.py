"""The score of a run among its lines, found by a regular expression of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import ScoreConfig
from orchestrator.logs.lines import Reader, Row, compiled, number_of, text_of

FOUND = "score (by its pattern)"  # the name of a value that the expression found
_MAX_BYTES = 64 * 1024  # searched in a line: an expression may be slow


def compiled_score(score: ScoreConfig) -> re.Pattern[str]:
    """Compile the pattern of ``score``. Raises InputError if it is invalid, or has no group."""
    remedy = r"write e.g. 'accuracy: (\S+)'"
    pattern = compiled(score.pattern or "", "metrics.score.pattern", remedy)
    if not pattern.groups:
        raise InputError(Problem("", "metrics.score.pattern", "has no group for the value", remedy))
    return pattern


class WithScore(Reader):
    """Yields the rows of another reader, and before the rows of a line one with its score, if it has any."""

    def __init__(self, reader: Reader, pattern: re.Pattern[str]) -> None:
        self._reader, self._pattern = reader, pattern

    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""
        for line in lines:
            match = self._pattern.search(text_of(line[:_MAX_BYTES]))
            value = number_of(match[1]) if match is not None and match[1] is not None else None
            if value is not None:
                yield {FOUND: value}
            yield from self._reader.rows([line])

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        return self._reader.finish()

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return self._reader.num_left_out()

    def question(self, loss: str) -> str | None:
        """Return what the user must be asked about the lines so far with the column ``loss``, or None."""
        return self._reader.question(loss)
