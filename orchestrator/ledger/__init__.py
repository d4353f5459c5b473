"""The truth about a sweep: one SQLite file with one writer."""
