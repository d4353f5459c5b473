"""Errors that are shown to the user, and the exit code of each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXIT_OK = 0
EXIT_BAD_INPUT = 2
EXIT_SOME_FAILED = 3
EXIT_STORAGE = 4
EXIT_ALARM = 5  # what the user asked to end with: an alarm of `watch`, an outcome of `replay`
EXIT_INTERRUPTED = 130
_MAX_SHOWN = 1000


class SweepError(Exception):
    """An error with a message for the user; the command line shows it without a traceback."""

    exit_code = EXIT_SOME_FAILED


class StorageError(SweepError):
    """Results cannot be read or written."""

    exit_code = EXIT_STORAGE


class ExecutorError(SweepError):
    """The executor as a whole has failed: Ray, or the process that talks to it."""

    exit_code = EXIT_STORAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of the input: where it is, which key, what is wrong, what to do."""

    where: str
    key: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.where, _brief(self.key), _brief(self.message)) if part)
        return f"{head}\n    remedy: {_brief(self.remedy)}" if self.remedy else head


def _brief(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 103]}...{text[-100:]}"


class InputError(SweepError):
    """The user's input is rejected; holds every problem found."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: Sequence[Problem | str] = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def printable(text: str) -> str:
    """``text`` without terminal control characters."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """``text`` without control characters and line breaks."""
    return printable(text).replace("\n", r"\n")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt word, empty when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""
