"""Counts and durations of a run in words."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_CAUSE = 300  # characters
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def counts_line(counts: Mapping[str, int]) -> str:
    """The number of trials with each outcome or status, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ranked) or "no trials"


def length_text(steps: int, tokens: float | None) -> str:
    """How long each trial trains: its tokens where they were given, else its steps."""
    return f"{steps} steps" if tokens is None else f"{tokens:,.0f} tokens"


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, with hours when there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outcomes_text(outcomes: Mapping[str, int], num_over: int, num_trials: int) -> str:
    """Trials by outcome, and how many of them are over where that is not all."""
    text = counts_line(outcomes) if outcomes else "none is over"
    return text if num_over >= num_trials else f"{num_over} of {num_trials} over: {text}"


def age_text(seconds: float) -> str:
    """In the largest unit of which there is one."""
    unit, length = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    return f"{max(0, int(seconds // length))} {unit}"


def last_line(error: str) -> str:
    """The last line of an error, which says what it was."""
    return error.strip().splitlines()[-1]


def cause_of(error: str) -> str:
    """The last line of what a worker said went wrong, of a length that can be shown."""
    return last_line(error)[:_LONGEST_CAUSE]
