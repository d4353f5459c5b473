"""Counts and durations of a run in words."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_CAUSE = 300  # characters


def counts_line(counts: Mapping[str, int]) -> str:
    """The number of trials with each outcome or status, the most frequent first."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ranked) or "no trials"


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, with hours when there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def last_line(error: str) -> str:
    """The last line of an error, which says what it was."""
    return error.strip().splitlines()[-1]


def cause_of(error: str) -> str:
    """The last line of what a worker said went wrong, of a length that can be shown."""
    return last_line(error)[:_LONGEST_CAUSE]
