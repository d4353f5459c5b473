"""Search: which cells to try."""
