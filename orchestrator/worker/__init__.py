"""Trains one pack, or one trial of a custom trainer, and reports on it."""
