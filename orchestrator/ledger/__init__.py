"""The ledger: the truth about a sweep, in one SQLite file with one writer."""
