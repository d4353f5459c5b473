"""Which cells to try."""
