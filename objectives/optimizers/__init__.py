"""Optimizers: how gradients become steps."""
