"""Lines that differ in their digits alone: where their numbers are is found once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
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
    """Where the numbers are in lines of a shape, by their names, and the form of the lines if they have a loss."""

    names: tuple[str, ...]
    places: tuple[slice, ...]
    form: Form | None

    def numbers(self, line: bytes) -> list[float]:
        """Return the numbers of a line of this shape."""
        return [float(line[place]) for place in self.places]


def shapes_of(lines: Sequence[bytes]) -> list[bytes]:
    """Return the shape of each line, which has 0 in place of each digit."""
    return b"\n".join(lines).translate(_ZEROS).split(b"\n") if lines else []


def may_have_shape(line: bytes) -> bool:
    """Whether each character of a line is a byte, and none begins a JSON object."""
    return _PLAIN.fullmatch(line) is not None


def is_as_written(number: str, value: float) -> bool:
    """Whether ``value`` has no unit and no comma."""
    return "," not in number and repr(float(number)) == repr(value)
