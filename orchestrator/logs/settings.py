"""The configuration that a script prints before it trains, which may have a loss among its settings.

It is told from the log by what follows: the lines of a log recur, and a configuration has another shape and no step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchestrator.logs.columns import EPOCH, STEP_NAMES, may_be_loss, plain_name
from orchestrator.logs.lines import in_usual_order, object_in, text_of
from orchestrator.logs.listed_settings import without_process
from orchestrator.logs.series import read_line, row_of_object
from orchestrator.logs.shapes import ZEROS

_WORDS = (b"loss", b"nll", b"entropy", b"trl")
_MAX_BYTES = 16_000  # searched in a line
_MAX_HELD = 1000  # lines after one that may be a configuration
_MIN_COMPARED = 10  # characters
_MAX_AGAIN = 16  # times that processes print a configuration in the same characters
_MAX_OTHERS = 9  # lines with a loss, each of another shape; the first that recurs is of the log
# Share of equal names in lines of one shape, and if the first has words among its numbers.
_ALIKE, _ALIKE_WITH_WORDS = 0.5, 0.75
_SAYS_SO = r"(?i:\b(?:\w+_)?(?:config(?:uration)?|settings|arguments|args|h(?:yper)?-?param(?:eter)?s)\s*[:=])"
# An object, a call such as Namespace(lr=0.1, settings that say so, or one on a line of its own.
_STRUCTURE = re.compile(
    rf"{_SAYS_SO}|" + r"\{[\"']|\b[A-Za-z]\w*\((?=\w+=)|^\s*[\"']\w+[\"']\s*:|^\s*\w+\s*[:=]\s*[^\s,]+,\s*$"
)
_SETTING = re.compile(r"(?<![\w.])(\w+)[\"']?\s*[:=]")
# A setting that is not a number.
_NOT_NUMBER = re.compile(r"\w[\"']?\s*[:=]\s*(?:[\"'\[({]|None\b|null\b|true\b|false\b)", re.IGNORECASE)
_MIN_SURE = 3  # settings that are not numbers, and as many as numbers: a configuration even if nothing follows
_STEPS = {EPOCH, *STEP_NAMES}
_ALSO_SETTINGS = {"steps", "iters", "iterations", "batch", "it", "i"}  # which count nothing in a configuration


class _Shape(NamedTuple):
    structure: str  # how an object, a call or a setting begins; empty for other lines
    has_step: bool
    has_words: bool
    names: frozenset[str]

    def recurs_in(self, other: _Shape) -> bool:
        if self[:2] != other[:2]:
            return False
        share = _ALIKE_WITH_WORDS if self.has_words else _ALIKE
        return len(self.names & other.names) >= share * len(self.names | other.names)


class Settings:
    """Leaves a configuration out of the lines of a log. Lines are held back while one may be a configuration."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._given = {plain_name(name) for name in given}
        self._words = (*_WORDS, *(name.encode() for name in self._given))
        self._first: _Shape | None = None  # of the line that may be a configuration
        self._held: list[bytes] = []  # from that line on
        self._processes: set[bytes] = set()  # before the same characters
        self._num_again = 0  # of processes that printed them before
        self._others: list[_Shape] = []  # of later lines with a loss
        self._left_out: _Shape | None = None
        self._begins = b""  # its first characters, with 0 in place of each digit
        self._is_over = False
        self.num_left_out = 0

    def without(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Return the lines of the log among those that were held back and ``lines``."""
        if self._is_over and self._left_out is None:
            return lines
        return [kept for line in lines for kept in self._after(line)]

    def finish(self) -> list[bytes]:
        """Return the lines that were held back until the end."""
        is_one = bool(self._held) and (bool(self._others) or _is_sure(text_of(self._held[0])))
        return self._release(is_one and self._first is not None and self._first.structure != "")

    def _after(self, line: bytes) -> Iterable[bytes]:
        """Return the lines to read once ``line`` has come."""
        if self._is_over:
            return () if self._is_again(line) else (line,)
        shape = self._shape_of(line)
        if self._first is None:
            self._is_over = shape is not None and shape.has_step
            if shape is None or shape.has_step:
                return (line,)
            self._first, self._held, self._processes = shape, [line], {_process_of(line)}
            return ()
        is_again = _ends_alike(line, self._held[0])
        self._held.append(line)
        self._num_again += is_again and _process_of(line) in self._processes
        self._processes |= {_process_of(line)} if is_again else set()
        if self._num_again > (_MAX_AGAIN if self._first.has_words else 0):
            return self._release(False)  # such as `loss nan`
        if shape is not None and not is_again:
            if self._first.recurs_in(shape):
                return self._release(False)
            if any(other.recurs_in(shape) for other in self._others):
                return self._release(True)
            self._others.append(shape)
        is_long = len(self._others) > _MAX_OTHERS or len(self._held) > _MAX_HELD
        return self._release(len(self._others) == 1) if is_long else ()

    def _release(self, is_settings: bool) -> list[bytes]:
        held, self._held, self._is_over = self._held, [], True
        if not is_settings:
            return held
        assert self._first is not None
        self._begins = held[0][:_MIN_COMPARED].translate(ZEROS)
        self._left_out = self._first if self._first.structure else None  # a later run prints it again
        kept = [line for line in held[1:] if not _ends_alike(line, held[0])]
        self.num_left_out += len(held) - len(kept)
        return kept

    def _is_again(self, line: bytes) -> bool:
        """Whether ``line`` is the configuration of a run that follows in the same log."""
        if line[:_MIN_COMPARED].translate(ZEROS) != self._begins:
            return False
        shape = self._shape_of(line)
        is_again = shape is not None and self._left_out is not None and shape.names == self._left_out.names
        self.num_left_out += is_again
        return is_again

    def _shape_of(self, line: bytes) -> _Shape | None:
        """Return the shape of a line with a training loss, or None for others."""
        lower = line[:_MAX_BYTES].lower()
        if not any(word in lower for word in self._words):
            return None
        text = text_of(line[:_MAX_BYTES])
        names = self._names(text)
        if names is None:
            return None
        text = without_process(text)
        begins = _STRUCTURE.search(text)
        if begins is None:
            return _Shape("", not _STEPS.isdisjoint(names), False, frozenset(names))
        has_step = not re.match(_SAYS_SO, begins[0]) and not (_STEPS - _ALSO_SETTINGS).isdisjoint(names)
        has_words = _NOT_NUMBER.search(text) is not None
        return _Shape(begins[0].strip(), has_step, has_words, frozenset(_SETTING.findall(text[begins.start() :])))

    def _names(self, text: str) -> Iterable[str] | None:
        values = object_in(text)
        if values is not None and self._has_loss(row := row_of_object(values)):
            return [plain_name(name) for name in row]
        read = read_line(in_usual_order(text))
        is_training = read.form is not None and not read.form.is_evaluation
        return read.row if is_training or not self._given.isdisjoint(read.row) else None

    def _has_loss(self, names: Iterable[str]) -> bool:
        return any(may_be_loss(name, None) or plain_name(name) in self._given for name in names)


def _is_sure(text: str) -> bool:
    """Whether a line is a configuration whatever follows: most of its settings are not numbers."""
    num_others = len(_NOT_NUMBER.findall(text))
    return num_others >= max(_MIN_SURE, len(read_line(text).row))


def _ends_alike(line: bytes, other: bytes) -> bool:
    """Whether a second logger or process printed a line again, with or without a prefix."""
    line, other = _without_process(line), _without_process(other)
    return line.endswith(other) or other.endswith(line)


def _without_process(line: bytes) -> bytes:
    return line[len(_process_of(line)) :].strip()


def _process_of(line: bytes) -> bytes:
    """Return what a process wrote before the line."""
    text = line.decode(errors="surrogateescape")
    return text[: len(text) - len(without_process(text))].encode(errors="surrogateescape")
