"""Is everything as it should be? The environment, what runs, and one sweep's ledger and files."""
