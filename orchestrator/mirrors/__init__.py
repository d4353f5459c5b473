"""Copies of the ledger in experiment trackers, and messages about a run."""
