"""The page of a sweep: a report that loads nothing, or served while it trains."""
