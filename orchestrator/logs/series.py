"""The lines of a text that form one series: one kind of line prints the training loss.

Lines of an evaluation get a prefix to their names, and so do lines of another kind that print the same names. Of
several processes, the lines of the first are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.logs.columns import COUNTER, EPOCH, STEP_NAMES, may_be_loss
from orchestrator.logs.lines import (
    Pair,
    Rows,
    counters,
    in_usual_order,
    json_numbers,
    named_counters,
    text_of,
    text_pairs,
)
from orchestrator.logs.shapes import MAX_SHAPES, Form, Shape, may_have_shape, shapes_of

EVALUATION = "eval"  # prefix of names in a line of an evaluation
_WORDS = r"test(?:ing)?|val|valid|validat(?:ion|ing|ed?)|eval|evaluat(?:ion|ing|ed?)|held[- ]?out"
_EVALUATION_WORD = re.compile(_WORDS, re.IGNORECASE)
# The first word of a line, after times, levels of a logger and brackets; and the words directly before a loss.
_HEAD = re.compile(
    r"^(?:[\s|:>*=#-]|\[[^\]]{0,80}\]|\d[\d:.,/TZ+-]*|(?:info|debug|warning|error)\b)*+"
    rf"(?:{_WORDS})\b(?![/_.=-]\w)",
    re.IGNORECASE,
)
_DIRECTLY = re.compile(
    rf"(?<![\w/.\-])(?:{_WORDS})(?: set)?[\s:=(]*(?:(?:avg|average|mean|total)\.?[\s:]*)?$", re.IGNORECASE
)
_FIELD = re.compile(r"[|,;\t]| - ")
_RANK = re.compile(r"(?:^\W{0,3}|\[)rank[\s:=_]{0,2}(\d+)(?!\d*[\w.])", re.IGNORECASE)
_RANK_WITHIN = 160  # characters
# The id of a process before a line that has a step or a counter of its own.
_PROCESS = re.compile(r"\W{0,3}(\d{3,8})\W{0,2}[\t ]\W{0,2}(?=[A-Za-z])")
_MAX_DOUBTED = 10  # lines that another process may have printed; then the number before them is no id
# Words before a loss that say nothing about the kind of a line: levels of a logger, and parts of times.
_IGNORED = {
    "info", "warning", "debug", "error", "am", "pm", "utc", "gmt", "t", "z", "s", "ms", "sec", "secs", "second",
    "seconds", "min", "mins", "minute", "minutes", "h", "hour", "hours", "day", "days", "rank", "eta", "mon", "tue",
    "wed", "thu", "fri", "sat", "sun", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov",
    "dec", "it", "kit", "mit", "b", "kb", "mb", "gb", "kib", "mib", "gib", "k", "m", "g", "nan", "inf", "none",
}  # fmt: skip
_PACE = re.compile(r"\d[mu]?s/[a-z]+")
_NUM_WORDS = 6
_MIN_SHARED = 2  # equal names that make two lines with the same first word one kind
_MAX_FORMS = 50
_MIN_LINES = 3  # before the first kind has so many lines, a kind with more lines replaces it
# Keys of a JSON object that say to which split it belongs.
_SPLITS = frozenset(("split", "mode", "phase", "stage", "set", "subset", "dataset", "type", "kind", "event"))
_SUMMARY = "wandb:"  # which closes a run with its last and its best values
_MIN_DOUBLED = 8  # characters of a line that a second logger prints once more, with or without a prefix
_MAX_LABEL = 80  # characters
_SWITCH_AFTER = 50  # lines of another kind in a row mean that the training now prints like that
# So many lines of another kind, also as a share of the first kind, make the training loss ambiguous.
_AMBIGUOUS_LINES, _AMBIGUOUS_SHARE = 10, 1 / 3


@dataclass
class _Processes:
    """Ids before the lines of processes that print the same steps: they alternate, as no time or epoch does.

    Where lines have an epoch, another id at a step of an epoch that the first has passed is a process at once. Two
    processes that write at once may leave two lines without a break between them, which count for neither.
    """

    first: str | None = None
    last_step: float = -math.inf  # of the first process
    last_epoch: float = -math.inf
    num_doubted: int = 0
    is_sure: bool = False

    def is_unbroken(self, text: str) -> bool:
        """Whether a second line, of any process, begins within ``text``: then there are several."""
        match = _PROCESS.match(text)
        if match is None:
            return False
        self.first = self.first or match[1]
        word = re.match(r"[A-Za-z]+", text[match.end() :])
        begins = text[match.end(1) : match.end()] + (word[0] if word else "")
        found = re.search(rf"\d{{3}}{re.escape(begins)}", text[match.end() :])
        self.is_sure = self.is_sure or found is not None
        return found is not None

    def is_another(self, text: str, step: float, epoch: float) -> bool:
        """Whether a process other than the first one printed a line at ``step``, or is likely to have done so."""
        match = _PROCESS.match(text)
        if match is None or self.num_doubted > _MAX_DOUBTED:
            return False
        self.first = self.first or match[1]
        if match[1] == self.first:
            self.last_step, self.last_epoch = step, epoch
            self.is_sure = self.is_sure or self.num_doubted > 0
        elif epoch < math.inf and (epoch, step) <= (self.last_epoch, self.last_step):
            self.is_sure = True
        elif not self.is_sure and (self.num_doubted or step <= self.last_step):
            self.num_doubted += 1
        return match[1] != self.first and (self.is_sure or 0 < self.num_doubted <= _MAX_DOUBTED)


@dataclass
class _Kind:
    """Lines of one kind: equal words before the loss, similar names, or words and names that include the others'."""

    words: set[tuple[str, ...]] = field(default_factory=set)
    names: set[frozenset[str]] = field(default_factory=set)
    num_lines: int = 0
    has_steps: bool = False

    def fits(self, words: tuple[str, ...], names: frozenset[str]) -> bool:
        if words in self.words:
            return True
        begins_alike = any(known[:1] == words[:1] for known in self.words)
        if begins_alike and names in self.names and len(names - {COUNTER, EPOCH}) >= _MIN_SHARED:
            return True
        of_line = set(words)
        return any(of_line <= set(known) or set(known) <= of_line for known in self.words if known and of_line) and any(
            names <= known or known <= names for known in self.names
        )

    def add(self, words: tuple[str, ...], names: frozenset[str]) -> None:
        self.num_lines += 1
        if len(self.words) < _MAX_FORMS and len(self.names) < _MAX_FORMS:
            self.words.add(words)
            self.names.add(names)

    def join(self, other: _Kind) -> None:
        self.words |= other.words
        self.names |= other.names
        self.num_lines += other.num_lines

    @property
    def label(self) -> str:
        """The words of the kind as a name."""
        return "_".join(next(iter(self.words), ()))[:_MAX_LABEL] or "other"

    @property
    def is_training(self) -> bool:
        return any(word.startswith("train") for words in self.words for word in words)


class SeriesOfText:
    """Turns lines of text into rows, in order; names get a prefix in lines outside of the training series."""

    def __init__(self) -> None:
        # The kinds of lines by their first loss; the first kind keeps its names.
        self._kinds: dict[str, list[_Kind]] = {}
        self._rank: str | None = None
        self._processes = _Processes()
        self._last = ""  # line with a loss
        self._shapes: dict[bytes, Shape] = {}  # of lines that were read
        self._forms: dict[Form, Form] = {}  # so that equal ones are the same
        self._form_of_first: Form | None = None  # of the last line with a loss, if it is of the first kind
        self._num_in_a_row = 0  # lines of other kinds since the last line of the first kind
        self.num_left_out = 0  # lines with a loss that have another kind or rank
        self.is_of_objects = False  # JSON objects have losses, so that messages in others have none of the series

    def row(self, text: str) -> Mapping[str, float]:
        """Return names and numbers of one line, empty if the line does not count."""
        if text.startswith(_SUMMARY):
            return {}
        read = read_line(in_usual_order(text))
        return read.row if read.form is None else self._counted(read.text, read.row, read.form)

    def row_of_line(self, line: bytes) -> Mapping[str, float]:
        """Return the same as ``row`` for bytes, without a search in lines that differ in their digits alone."""
        (shape,) = shapes_of([line])
        known = self._shapes.get(shape)
        if known is None:
            text = text_of(line)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
                self._forms.clear()
            if (found := _shape(line, text)) is not None:
                form = found.form and self._forms.setdefault(found.form, found.form)
                self._shapes[shape] = replace(found, form=form)
            return self.row(text)
        numbers = known.numbers(line)
        if numbers is None:
            return self.row(text_of(line))
        row = dict(zip(known.names, numbers, strict=True))
        return row if known.form is None else self._counted(line.decode(), row, known.form)

    def rows_alike(self, lines: Sequence[bytes], shapes: Sequence[bytes], at: int) -> Rows | None:
        """Return the rows of the lines from ``at`` whose form is that of the last line of the first kind, if any have.

        They count as it did. ``shapes`` are those of the lines.
        """
        form, before, last = self._form_of_first, None, self._last
        values: list[list[float]] = []
        if form is None or not form.is_of_one_process:
            return None
        for i in range(at, len(lines)):
            line = lines[i]
            if shapes[i] != before:
                known = self._shapes.get(shapes[i])
                if known is None or known.form is not form:
                    break
                if _is_doubled(lines[i - 1].decode().strip() if values else last, line.decode().strip()):
                    break
                before, numbers_of = shapes[i], known.numbers
            if (numbers := numbers_of(line)) is None:
                break
            values.append(numbers)
        if not values:
            return None
        self._last = lines[at + len(values) - 1].decode().strip()
        self._kinds[form.loss][0].num_lines += len(values)
        return Rows(form.columns, values)

    def _counted(self, text: str, row: Mapping[str, float], form: Form) -> Mapping[str, float]:
        """Return the row of a line with a loss, as its place in the series asks."""
        last, self._last = self._last, text.strip()
        self._form_of_first = None
        if _is_doubled(last, self._last):
            return {}
        if not form.is_of_one_process and self._is_of_another(text, row):
            self.num_left_out += 1
            return {}
        if form.is_evaluation:
            return _prefixed(row, EVALUATION)
        if form.loss not in self._kinds and len(self._kinds) >= _MAX_FORMS:
            return row  # no log has so many losses
        kind, kinds = self._kind_of(form), self._kinds[form.loss]
        kind.has_steps = kind.has_steps or form.has_step
        self._num_in_a_row = 0 if kind is kinds[0] else self._num_in_a_row + 1
        if self._num_in_a_row >= _SWITCH_AFTER:
            kinds[0].join(kind)
            self._kinds[form.loss] = [other for other in kinds if other is not kind]
            self._num_in_a_row = 0
            return row
        if kind is kinds[0]:
            self._form_of_first = form
            return row
        self.num_left_out += 1
        return _prefixed(row, kind.label)

    def question(self, loss: str) -> str | None:
        """Return a question if two kinds of lines have the ``loss`` and either may be the training's, or None."""
        kinds = self._kinds.get(loss, [])
        for kind in kinds[1:]:
            first = kinds[0]
            is_clear = (first.is_training and not kind.is_training) or (first.has_steps and not kind.has_steps)
            if not is_clear and kind.num_lines >= max(_AMBIGUOUS_LINES, _AMBIGUOUS_SHARE * first.num_lines):
                other = f"{kind.label}/{loss}"
                return (
                    f"two kinds of lines have a loss, {loss!r} in {first.num_lines} and {other!r} in {kind.num_lines}"
                )
        return None

    def _is_of_another_rank(self, text: str) -> bool:
        match = _RANK.search(text[:_RANK_WITHIN])
        if match is None:
            return False
        self._rank = self._rank or match[1]
        return int(match[1]) != int(self._rank)

    def _is_of_another(self, text: str, row: Mapping[str, float]) -> bool:
        """Whether another process printed the line."""
        step = next((row[name] for name in STEP_NAMES if name in row), None)
        is_another = step is not None and self._processes.is_another(text, step, row.get(EPOCH, math.inf))
        return is_another or self._is_of_another_rank(text) or self._processes.is_unbroken(text)

    def _kind_of(self, form: Form) -> _Kind:
        words, names = form.words, form.names
        kinds = self._kinds.get(form.loss)
        if kinds is None:
            kinds = self._kinds[form.loss] = [_Kind({words}, {names})]
        kind = next((kind for kind in kinds if kind.fits(words, names)), None)
        if kind is None:
            kind = _Kind()
            if len(kinds) < _MAX_FORMS:
                kinds.append(kind)
        kind.add(words, names)
        first = kinds[0]
        is_rare = first.num_lines < _MIN_LINES and kind.num_lines > first.num_lines
        if kind is not first and (is_rare or (kind.is_training and not first.is_training)) and kind in kinds:
            kinds.remove(kind)
            kinds.insert(0, kind)
        return kind


def row_of_object(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Return names and numbers of a JSON object; names of an evaluation get a prefix."""
    row = json_numbers(values)
    splits = () if _SPLITS.isdisjoint(values) else map(values.get, _SPLITS)
    if any(isinstance(split, str) and _EVALUATION_WORD.fullmatch(split) for split in splits):
        return _prefixed(row, EVALUATION)
    return row


class _Read(NamedTuple):
    """A line, its numbers, and its form if it has a loss."""

    text: str
    row: dict[str, float]
    form: Form | None


def read_line(text: str) -> _Read:
    """Return a line with its numbers, and its form if it has a loss."""
    pairs = list(text_pairs(text))
    row = _numbered(text, pairs)
    loss = next((pair for pair in pairs if may_be_loss(pair.name, None)), None)
    if loss is None:
        return _Read(text, row, None)
    before = re.findall(r"[a-z]+(?:_[a-z]+)*", _PACE.sub("", text[: loss.start].lower()))
    words = tuple([word for word in before if word not in _IGNORED][-_NUM_WORDS:])
    has_step = any(name in row for name in STEP_NAMES)
    kind = (loss.name, words, tuple(row), frozenset(row))
    form = Form(*kind, _is_evaluation(text, loss), has_step, not _names_process(text))
    return _Read(text, row, form)


def _names_process(text: str) -> bool:
    return _PROCESS.match(text) is not None or _RANK.search(text[:_RANK_WITHIN]) is not None


def _shape(line: bytes, text: str) -> Shape | None:
    """Return the shape of a line, or None if the places of its numbers follow from more than that.

    A line of the same shape has the same characters except for other digits, which only counters compare; ids of
    processes are compared later.
    """
    if not may_have_shape(line) or in_usual_order(text) != text or text.startswith(_SUMMARY):
        return None
    pairs = list(text_pairs(text))
    if any("," in text[slice(*pair.span)] for pair in pairs):
        return None
    places = {name: (slice(*pair.span), pair.factor) for name, pair in _named(pairs).items()}
    read, checks = read_line(text), []
    for counter, names in named_counters(text, _start_of_loss(text, pairs)):
        checks.append((slice(*counter.span(1)), slice(*counter.span(2))))
        for name, group in names:
            place = slice(*counter.span(group)), 1.0
            places[name] = place if name == COUNTER else places.get(name, place)
    factors = tuple(factor for _, factor in places.values())
    if tuple(places) != tuple(read.row):  # a counter of this line is none
        return None
    scaled = factors if set(factors) - {1.0} else ()
    return Shape(tuple(places), tuple(place for place, _ in places.values()), scaled, tuple(checks), read.form)


def _is_doubled(last: str, this: str) -> bool:
    """Whether a second logger printed ``this`` line once more, with or without a prefix."""
    return last != this and len(last) >= _MIN_DOUBLED and (last.endswith(this) or this.endswith(last))


def _named(pairs: list[Pair]) -> dict[str, Pair]:
    """Return the first number of each name, and the epoch."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        # llm.c begins its lines with s:STEP.
        found.setdefault("step" if pair.name == "s" and pair.start == 0 else pair.name, pair)
        if pair.name.endswith(f"_{EPOCH}"):
            found.setdefault(EPOCH, pair)
    return found


def _numbered(text: str, pairs: list[Pair]) -> dict[str, float]:
    """Return the first number of each name, the epoch, and the last counter such as 10/300."""
    row = {name: pair.value for name, pair in _named(pairs).items()}
    for name, value in counters(text, _start_of_loss(text, pairs)):
        if name == EPOCH:
            row.setdefault(EPOCH, value)
        elif name == COUNTER:
            row[COUNTER] = value
        else:
            row.setdefault(name, value)
    return row


def _start_of_loss(text: str, pairs: list[Pair]) -> int:
    return next((pair.start for pair in pairs if may_be_loss(pair.name, None)), len(text))


def _is_evaluation(text: str, loss: Pair) -> bool:
    """Whether the first word of the line, or the one directly before the loss, names an evaluation.

    Such a word elsewhere does not count: `step 3 | val acc 0.5 | loss 2.3` is a line of the training.
    """
    before = text[: loss.start]
    field = _FIELD.split(before)[-1]
    return _HEAD.match(before) is not None or _DIRECTLY.search(field) is not None


def _prefixed(row: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Prefix the names of a row, including its step, which later lines would take for theirs; drop its epoch."""
    return {f"{prefix}/{name}": value for name, value in row.items() if name != EPOCH}
