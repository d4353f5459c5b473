"""Counts and durations of a run in words."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_CAUSE = 300  # characters
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def counts_line(counts: Mapping[str, int]) -> str:
    """List the number of trials by outcome or status, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ranked) or "no trials"


def length_text(steps: int, tokens: float | None) -> str:
    """Length of each trial: its tokens if the sweep file sets them, else its steps."""
    return f"{steps} steps" if tokens is None else f"{tokens:,.0f} tokens"


def format_seconds(seconds: float) -> str:
    """Format a duration as M:SS, or H:MM:SS from one hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outcomes_text(outcomes: Mapping[str, int], num_over: int, num_trials: int) -> str:
    """List trials by outcome, with the number of ended trials unless all have ended."""
    text = counts_line(outcomes) if outcomes else "none is over"
    return text if num_over >= num_trials else f"{num_over} of {num_trials} over: {text}"


def age_text(seconds: float) -> str:
    """Format an age in its largest unit, such as 3 h."""
    unit, length = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    return f"{max(0, int(seconds // length))} {unit}"


def last_line(error: str) -> str:
    """The last line of an error, which names the cause."""
    return error.strip().splitlines()[-1]


def cause_of(error: str) -> str:
    """The last line of a worker's error, cut to a length that can be shown."""
    return last_line(error)[:_LONGEST_CAUSE]
