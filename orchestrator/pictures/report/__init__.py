"""The report of a sweep: one page that loads nothing."""
