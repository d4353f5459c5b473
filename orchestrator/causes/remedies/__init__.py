"""Remedies: what would have saved a run, by training its forks."""
