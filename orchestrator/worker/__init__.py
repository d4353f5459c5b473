"""Train one pack, or one trial of a custom trainer, and report on it."""
