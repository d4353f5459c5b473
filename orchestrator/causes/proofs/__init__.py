"""Causes proved by forks: what is tried, how it is trained, and what it proves."""
