"""The report of a sweep: one HTML page that loads nothing."""
