"""The loop that plans, leases, launches and records, and what a run resumes from."""
