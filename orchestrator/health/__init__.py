"""Health checks: the environment, running processes, and one sweep's ledger and files."""
