"""Trains one pack, or one trial of a custom trainer, and sends reports."""
