"""Remedies: what would have saved a run, found by training forks of it."""
