"""Configurations that list one setting a line, as YAML does, which may have a loss or a step among their names.

They are told from a log that prints one number a line by what recurs: in a log losses, steps and the names among them
come again with other numbers; a configuration comes again, if at all, with the same values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchestrator.logs.columns import EPOCH, STEP_NAMES, may_be_loss, plain_name
from orchestrator.logs.lines import in_usual_order, number_of, object_in, text_of
from orchestrator.logs.series import read_line, row_of_object

_MAX_BYTES = 1000  # of a line with one setting
_MAX_HELD = 5000  # lines
_MIN_NAMES = 3  # of a configuration
_RECURRING = 0.5  # share of the names that recur in a log
# What launchers and loggers write before the lines of each process: [rank0]:, [default0]:, 0:, [1,0]<stdout>:, a time.
_PROCESS = re.compile(
    r"\s*(?:(?:\d{4}[-/]\d\d[-/]\d\d|\d\d:\d\d:\d\d)[\d:.,TZ+ -]*|\[\d{4}-\d\d-\d\d[^\]]{0,30}\]|"
    r"\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?|\[[a-z]+[ :_]?\d+\]:?|rank[ :_=]?\d+\b ?:?|\d+:(?=\s)|"
    r"\(\w[^()]* ?pid=\d+[^()]*\)|\[?(?:INFO|DEBUG)\]?\s*:?)(?:\s*[-|](?=\s))?",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"\s*(?:[-*] +)?[\"']?([A-Za-z_][\w./-]*)[\"']?(?:\s*[:=]\s*|\s+(?=[-+.\d]))"
    r"([^\s,=:]\S*|\[.*\]|\{.*\}|\(.*\)|\".*\"|'.*')?\s*,?\s*"
)
_COUNTING = {EPOCH, *STEP_NAMES}


class _Setting(NamedTuple):
    key: str  # the line without its value
    name: str
    value: str


def without_process(text: str) -> str:
    """Remove what the launcher and the logger of a process wrote before a line."""
    while (match := _PROCESS.match(text)) is not None:
        text = text[match.end() :]
    return text


class ListedSettings:
    """Leaves listed settings out of the lines of a log. Lines are held back while they may be settings."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._given = {plain_name(name) for name in given}
        self._held: list[bytes] = []  # from the first line with one setting on
        self._listed: dict[str, _Setting] = {}  # by their keys, in the order of the list
        self._ends: dict[str, int] = {}  # after their last lines among the held ones
        self._changed: set[str] = set()  # losses and steps of the list that came again with another value
        self._again: set[str] = set()  # keys of the list since the first of them
        self._forms: set[frozenset[str]] = set()  # names in longer lines with a loss
        self._is_over = self._is_within = False
        self._first = b""  # in its first line
        self.num_left_out = 0  # of them that name a loss

    def without(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Return the lines of the log among those that were held back and ``lines``."""
        if self._is_over and not self._listed:
            return lines
        return [kept for line in lines for kept in self._after(line)]

    def finish(self) -> Sequence[bytes]:
        """Return the lines that were held back until the end."""
        return self._release(bool(self._forms) and not self._changed)

    def _after(self, line: bytes) -> Sequence[bytes]:
        """Return the lines to read once ``line`` has come."""
        if self._is_over:
            return () if self._is_listed_again(line) else (line,)
        setting = _setting_in(line)
        if setting is None and not self._held:
            self._is_over = not _COUNTING.isdisjoint(self._names_beside_loss(line))
            return (line,)
        self._held.append(line)
        are_settings = self._see_form(line) if setting is None else self._see_setting(setting)
        if are_settings is None and len(self._held) > _MAX_HELD:
            are_settings = False
        return () if are_settings is None else self._release(are_settings)

    def _see_form(self, line: bytes) -> bool | None:
        """Return whether settings were listed before a longer line, or None if that is not known yet."""
        names = self._names_beside_loss(line)
        if names and names in self._forms:
            return not self._changed
        self._forms |= {names} if names else set()
        return None

    def _see_setting(self, setting: _Setting) -> bool | None:
        """Return whether settings were listed before a line with one, or None if that is not known yet."""
        key, known = setting.key, self._listed.get(setting.key)
        is_second = key in self._changed
        if not self._changed and not self._forms and known in (None, setting):
            self._listed[key] = setting
            self._ends[key] = len(self._held)
        elif known is not None and known != setting and self._tells(setting) and number_of(setting.value) is not None:
            self._changed.add(key)
        if not self._changed or known is None:
            return None
        self._again.add(key)
        recurs = len(self._again) >= _RECURRING * len(self._listed)
        return not recurs if recurs or is_second else None

    def _release(self, are_settings: bool) -> Sequence[bytes]:
        """Return the held lines, without ``settings``."""
        held, self._held, self._is_over = self._held, [], True
        while are_settings and self._listed and (last := next(reversed(self._listed))) in self._again:
            del self._listed[last]  # the first line of the log
        if len(self._listed) < _MIN_NAMES or not any(map(self._tells, self._listed.values())):
            are_settings = False
        if not are_settings:
            self._listed = {}
            return held
        self._first = next(iter(self._listed)).encode()
        end = max(map(self._ends.__getitem__, self._listed))
        return [*(line for line in held[:end] if not self._is_left_out(_setting_in(line))), *held[end:]]

    def _is_listed_again(self, line: bytes) -> bool:
        """Whether ``line`` is a setting of a run that follows in the same log, from the first one on."""
        if not self._listed or not (self._is_within or self._first in line):
            return False
        setting = _setting_in(line)
        if setting is None:  # a heading within the list has no number
            self._is_within = self._is_within and re.search(rb"\d", line) is None
            return False
        is_first = setting.key == next(iter(self._listed)) and setting.key not in self._again
        self._is_within = setting.key in self._listed and (self._is_within or is_first)
        return self._is_within and self._is_left_out(setting)

    def _is_left_out(self, setting: _Setting | None) -> bool:
        if setting is None or setting.key not in self._listed:
            return False
        self.num_left_out += self._is_loss(setting.name)
        return True

    def _tells(self, setting: _Setting) -> bool:
        """Whether a log prints another value each time."""
        return plain_name(setting.name) in _COUNTING or self._is_loss(setting.name)

    def _is_loss(self, name: str) -> bool:
        return may_be_loss(name, None) or plain_name(name) in self._given

    def _names_beside_loss(self, line: bytes) -> frozenset[str]:
        """Return the names in a longer line if one is a loss."""
        if b"loss" not in line.lower() and not self._given:
            return frozenset()
        text = text_of(line[:_MAX_BYTES])
        values = object_in(text)
        row = read_line(in_usual_order(text)).row if values is None else row_of_object(values)
        return frozenset(map(plain_name, row)) if any(map(self._is_loss, row)) else frozenset()


def _setting_in(line: bytes) -> _Setting | None:
    """Return the setting on a line that has nothing else, or None."""
    if len(line) > _MAX_BYTES:
        return None
    text = without_process(text_of(line)).strip()
    match = _SETTING.fullmatch(text)
    return None if match is None or match[2] is None else _Setting(text[: match.start(2)], match[1], match[2])
