"""Lines of a log: split from bytes as they arrive, and the names and numbers in a line, a cell or a JSON object."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.columns import COUNTER, EPOCH, STEP_NAMES, plain_name

MAX_LAST_LINES = 30
MAX_LINE_BYTES = 1024**2  # longer lines are truncated
MAX_NAME = 250  # characters of a metric's name, as in MLflow
_MAX_LAST_BYTES = 8000  # of each of the last lines, including colour codes
_MAX_TEXT = 4000  # characters searched in a line
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_NUMBER = r"[-+]?(?:\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_WORD = r"(?!(?:nan|inf|infinity|info|debug|warning)\b)[A-Za-z_][\w/.\-]{0,249}+"
# What wraps a number that was printed as a tensor or an array: tensor(2.3, ...), np.float64(2.3), [2.3].
_WRAPPED = r"(?:(?:\w{1,12}\.)?(?:tensor|[a-z]{0,12}array|[a-z]{0,6}float\d{0,3})\(\s*+|\[\s*+){0,2}"
# A name of up to three words, maybe a colon, equals or number sign, and a number, maybe with a unit, or both in quotes.
_PAIR = re.compile(
    rf"(?<![\w.])({_WORD}(?: {_WORD}){{0,2}})(?=[\"'\s(:=\[])[\"']?\s*+(?:\([^)\d:=]*+\))?+\s*+[:=#]?\s*+[\"']?"
    rf"{_WRAPPED}({_NUMBER})(?!\d|\.?#)(?=([A-Za-z%]{{0,3}})(?![\w.]\w))",
    re.IGNORECASE,
)
# A loss at a step, `loss at step 10: 3.2` or `loss after 10 steps = 3.2`: its name, the step and its value.
_AT = re.compile(
    r"([\w/.\-]*loss) (?:at|after) (?:(?:step|iteration|iter|batch|update) #?(\d+)|(\d+) (?:steps|iterations|updates))"
    rf"\s*+(?:[:=]|is)\s*+(?={_NUMBER}(?![\w.]))",
    re.IGNORECASE,
)
# A loss behind its value, ` 12 800.1 ms run, 6.91 loss,`: the step that the line begins with, and the value.
_BEHIND = re.compile(rf"^\s*+(\d{{1,15}}) (?=.*? ({_NUMBER}) loss\b)", re.IGNORECASE)
_OVER = re.compile(r"(?<=loss) over (?:the )?last \d+(?: [a-z]+)?(?=\s*+[:=])", re.IGNORECASE)  # a part of the name
# The progress of a loop, 10/300; not a date, a time of day after a date, or a ratio of decimals.
_COUNTER = re.compile(r"(?<![\w./:-])(\d{1,15}) ?/ {0,12}(\d{1,15})(?![\w./]| ?\d+:\d)")
_NAME_BEFORE = re.compile(r"([A-Za-z][\w/]*)[\s(\[:=]*$")
_PROGRESS = ("progress", "done", "completed", "finished", "training", "train")  # words before a counter of a loop
_NAME_WITHIN = 40  # characters before a counter
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}  # directly behind a number, as in 1.2K
_DECIMALS = re.compile(r",(\d+)(?![\d,.])")  # of a language with decimal commas; three of them would be thousands
_NUMBER_ALONE = re.compile(_NUMBER, re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Row = Mapping[str, float]


class Rows(NamedTuple):
    """Several rows with the same names."""

    names: tuple[str, ...]
    values: list[list[float]]  # of each row

    def each(self) -> Iterator[Row]:
        """Yield them one by one."""
        return (dict(zip(self.names, values, strict=True)) for values in self.values)


def compiled(pattern: str, key: str, remedy: str, place: str = "") -> re.Pattern[str]:
    """Compile a regular expression of the user. Raises InputError with its ``place``, ``key`` and the ``remedy``."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(Problem(place, key, f"is not a valid regular expression: {error}", remedy)) from None


# --- from bytes to lines ---------------------------------------------------------------------------


class Reader(ABC):
    """Turns lines into rows. ``num_odd`` counts lines that do not fit a strict format."""

    num_odd = 0

    @abstractmethod
    def rows(self, lines: Sequence[bytes]) -> Iterator[Row]:
        """Yield the rows of nonempty lines."""

    def parts(self, lines: Sequence[bytes]) -> Iterator[Row | Rows]:
        """Yield the same, several rows with the same names together where that is faster."""
        yield from self.rows(lines)

    def finish(self) -> Iterable[Row]:
        """Return the rows of lines that were held back."""
        return ()

    def num_left_out(self) -> int:
        """Return the number of lines with a loss that are not part of the training series."""
        return 0

    def question(self, loss: str) -> str | None:
        """Return what the user must be asked about the lines so far with the column ``loss``, or None."""
        return None


class Lines:
    """Splits incoming bytes at newlines, and at what returns progress bars to their start; passes lines to a reader.

    Lines are truncated to ``max_bytes``, which no line of a log reaches.
    """

    def __init__(self, reader: Reader, max_bytes: int = MAX_LINE_BYTES) -> None:
        self.num_lines = 0
        self.last: deque[bytes] = deque(maxlen=MAX_LAST_LINES)
        self._reader = reader
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def rows(self, content: bytes) -> Iterable[Row]:
        """Return the rows of the lines that end in ``content``."""
        return self._reader.rows(self._lines_of(content))

    def parts(self, content: bytes) -> Iterable[Row | Rows]:
        """Return the same, several rows with the same names together where that is faster."""
        return self._reader.parts(self._lines_of(content))

    def _lines_of(self, content: bytes) -> list[bytes]:
        lines = content.replace(b"\r", b"\n").replace(b"\b", b"\n").split(b"\n")
        if len(lines) > 1:
            lines[0] = bytes(self._rest + lines[0])
            self._rest.clear()
        self._rest += lines.pop()[: self._max_bytes - len(self._rest)]
        lines = [line[: self._max_bytes] for line in lines if line]
        if lines and not self.num_lines:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        self.num_lines += len(lines)
        self.last.extend(line[:_MAX_LAST_BYTES] for line in lines[-MAX_LAST_LINES:])
        return lines

    def finish(self) -> Iterator[Row]:
        """Yield the rows of the unterminated last line, and of lines that the reader held back."""
        yield from self.rows(b"\n")
        yield from self._reader.finish()


def without_colours(text: str) -> str:
    """Remove terminal colour codes from ``text``."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def text_of(line: bytes) -> str:
    """Decode a line, and remove colour codes."""
    return without_colours(line.decode(errors="replace"))


def texts_of(lines: Sequence[bytes]) -> list[str]:
    """Decode lines together, which is faster, and remove colour codes."""
    return text_of(b"\n".join(lines)).split("\n") if lines else []


def in_usual_order(text: str) -> str:
    """Write the step of a loss that is `at step 10`, or a loss before its name; remove over how many it is a mean."""
    text = _OVER.sub("", text) if " over " in text else text
    text = _BEHIND.sub(r"step \1 loss \2 | ", text) if " loss, " in text else text
    return _AT.sub(r"step \2\3 \1: ", text) if " at " in text or " after " in text else text


# --- names and numbers -----------------------------------------------------------------------------


class Pair(NamedTuple):
    """A name in its plain form, the number after it, where the name begins, where the number is, and its unit."""

    name: str
    value: float
    start: int
    span: tuple[int, int]
    factor: float  # of the unit, which is in the value


def text_pairs(line: str) -> Iterator[Pair]:
    """Yield names with the numbers that follow them. A percentage is no step."""
    for match in _PAIR.finditer(line[:_MAX_TEXT]):
        name, number, unit = plain_name(match[1]), match[2].replace(",", ""), match[3]
        is_step, (start, end) = name in STEP_NAMES, match.span(2)
        if unit and is_step and unit[0] == "%":
            continue
        if not is_step and number.isdecimal() and "loss" in name and (decimals := _DECIMALS.match(line, match.end(2))):
            number, end = f"{number}.{decimals[1]}", decimals.end()
        factor = 1.0 if is_step else _UNITS.get(unit, 1.0)
        yield Pair(name, float(number) * factor, match.start(), (start, end), factor)


def counters(line: str, before: int) -> Iterator[tuple[str, float]]:
    """Yield counters such as 10/300 under the name of the step or the epoch before the counter, or as COUNTER.

    They begin before the index ``before``; after it they are in square brackets, or in front of the brackets of a
    progress bar. A counter with another name counts something else: `correct: 12/64`.
    """
    for counter, names in named_counters(line, before):
        if float(counter[1]) <= float(counter[2]):
            yield from ((name, float(counter[group])) for name, group in names)


def named_counters(line: str, before: int) -> Iterator[tuple[re.Match[str], tuple[tuple[str, int], ...]]]:
    """Yield what may be a counter, and the names of its two numbers by their groups; it is none if the first is larger.

    All of this follows from the characters between the digits.
    """
    for match in _COUNTER.finditer(line[:_MAX_TEXT]):
        is_enclosed = line[: match.start()].rstrip().endswith("[") or line[match.end() :].startswith(" [")
        if match.start() > before and not is_enclosed:
            continue
        name = _NAME_BEFORE.search(line[max(0, match.start() - _NAME_WITHIN) : match.start()])
        names = plain_name(name[1]).split("/") if name else []
        if len(names) == 2 and names[0] == EPOCH and names[1] in STEP_NAMES:  # Epoch/Step: 3/120
            yield match, ((EPOCH, 1), (names[1], 2))
        elif names and names[-1].split("_")[-1] in (EPOCH, "epochs"):
            yield match, ((EPOCH, 1),)
        elif not names or names[-1] in (*STEP_NAMES, *_PROGRESS):
            yield match, ((names[-1] if names and names[-1] in STEP_NAMES else COUNTER, 1),)


def number_of(cell: str) -> float | None:
    """Return the number that fills ``cell``, possibly quoted, or None."""
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        text = cell.strip().strip("\"'")
        return float(text.replace(",", "")) if _NUMBER_ALONE.fullmatch(text) else None


def object_in(text: str) -> dict | None:
    """Return the JSON object that fills a line, or None."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return names and numbers of a JSON object; a slash joins nested names; the first of two duplicates counts."""
    row: dict[str, float] = {}
    _add_numbers(row, values, "")
    return row


def _add_numbers(row: dict[str, float], values: Mapping[str, Any], prefix: str) -> None:
    for key, value in values.items():
        if len(prefix) + len(key) > MAX_NAME:
            continue
        name, kind = prefix + key, type(value)
        number = None
        if kind is float:
            number = value
        elif kind is dict:
            _add_numbers(row, value, f"{name}/")
        elif kind is int:
            number = _float(value)
        elif kind is str:
            number = number_of(value)
        if number is not None:
            row.setdefault(name, number)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # a JSON integer of any length
        return math.inf if value > 0 else -math.inf
