"""The loop that proposes trials, packs, dispatches, records and resumes."""
