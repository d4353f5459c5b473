"""Lines that differ in their digits alone: where their numbers are is found once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ZEROS = bytes.maketrans(b"123456789", b"000000000")  # makes lines equal that differ in their digits alone
_PLAIN = re.compile(rb"[\t -z|}~]{1,1000}")  # without JSON
MAX_SHAPES = 2000  # that are remembered


class Form(NamedTuple):
    """What the words of a line with a loss say, whatever its numbers: the name of the loss, and the kind of line."""

    loss: str
    words: tuple[str, ...]
    columns: tuple[str, ...]
    names: frozenset[str]  # of the columns
    is_evaluation: bool
    has_step: bool
    is_of_one_process: bool  # so that no number can say that another process printed it


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the numbers are in lines of a shape, by their names, and the form of the lines if they have a loss.

    ``factors`` are of units behind the numbers, empty without any. The first number of each of the ``counters``, such
    as 10/300, is at most the second one, else it is not a counter.
    """

    names: tuple[str, ...]
    places: tuple[slice, ...]
    factors: tuple[float, ...]
    counters: tuple[tuple[slice, slice], ...]
    form: Form | None

    def numbers(self, line: bytes) -> list[float] | None:
        """Return the numbers of a line of this shape; None if what should be a counter is none."""
        for first, last in self.counters:
            if float(line[first]) > float(line[last]):
                return None
        if self.factors:
            return [float(line[place]) * factor for place, factor in zip(self.places, self.factors, strict=True)]
        return [float(line[place]) for place in self.places]


def shapes_of(lines: Sequence[bytes]) -> list[bytes]:
    """Return the shape of each line, which has 0 in place of each digit."""
    return b"\n".join(lines).translate(ZEROS).split(b"\n") if lines else []


def may_have_shape(line: bytes) -> bool:
    """Whether each character of a line is a byte, and none begins a JSON object."""
    return _PLAIN.fullmatch(line) is not None
