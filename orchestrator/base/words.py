"""The words that answers and messages share: plurals, lists, columns of text, intervals, counts and durations."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

WIDTH = 80  # characters of a line that is printed
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def plural(num: float, noun: str, several: str = "") -> str:
    """``noun`` for one of something; otherwise ``several``, by default ``noun`` with an s."""
    return noun if num == 1 else several or f"{noun}s"


def count(num: int, noun: str, several: str = "") -> str:
    """A number with its noun: ``1 cell``, ``2,048 cells``."""
    return f"{num:,} {plural(num, noun, several)}"


def joined(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in a sentence: ``lr, beta1 and beta2``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def listed(words: Sequence[str], most: int) -> str:
    """The first ``most`` words with commas, and how many more there are: ``0.1, 0.2 and 3 more``."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def shortened(lines: Sequence[str], most: int, remedy: str = "") -> list[str]:
    """The first ``most`` lines, then one that says how many more there are, and where with ``remedy``."""
    more = f"  ... and {len(lines) - most} more{f': {remedy}' if remedy else ''}"
    return [*lines[:most], *([more] if len(lines) > most else [])]


def columns(rows: Sequence[Sequence[str]], gap: int = 2, indent: int = 0) -> list[str]:
    """Rows of equal length as lines of padded columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ((word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)
    return [(" " * indent + (" " * gap).join(row)).rstrip() for row in padded]


def wrapped(text: str, indent: int = 0, width: int = WIDTH) -> list[str]:
    """``text`` in lines of at most ``width`` characters; all but the first are indented."""
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def counts_line(counts: Mapping[str, int]) -> str:
    """The number of trials by outcome or status, the most frequent first: ``10 stable, 2 diverged``."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ranked) or "no trials"


def outcomes_text(outcomes: Mapping[str, int], num_over: int, num_trials: int) -> str:
    """Trials by outcome, with the number of ended trials unless all have ended."""
    text = counts_line(outcomes) if outcomes else "none is over"
    return text if num_over >= num_trials else f"{num_over} of {num_trials} over: {text}"


def length_text(steps: int, tokens: float | None) -> str:
    """The length of each trial: its tokens if the sweep file sets them, else its steps."""
    return f"{steps} {plural(steps, 'step')}" if tokens is None else f"{tokens:,.0f} tokens"


def format_seconds(seconds: float) -> str:
    """A duration as M:SS, or H:MM:SS from one hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def age_text(seconds: float) -> str:
    """An age in its largest unit: ``3 h``."""
    unit, length = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    return f"{max(0, int(seconds // length))} {unit}"
