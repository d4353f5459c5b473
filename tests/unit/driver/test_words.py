"""Counts and durations in words."""

from __future__ import annotations

from orchestrator.driver.words import counts_line, format_seconds


def test_time_reads_as_a_clock() -> None:
    assert [format_seconds(seconds) for seconds in (0, 61, 3600 + 62)] == ["0:00", "1:01", "1:01:02"]


def test_counts_are_told_with_the_most_frequent_first() -> None:
    assert counts_line({"diverged": 2, "stable": 10}) == "10 stable, 2 diverged"
    assert counts_line({}) == "no trials"
