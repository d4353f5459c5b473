"""The ground floor: axes, errors, files, processes and intervals."""

__version__ = "0.1.0"
