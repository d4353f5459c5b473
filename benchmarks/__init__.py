"""Benchmarks of sweep against the alternatives of a user; not part of the package."""
