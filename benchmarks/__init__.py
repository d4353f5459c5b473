"""Measurements of sweep beside what a user would pick instead; not part of the package."""
