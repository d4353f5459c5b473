"""Curves of a pack, (T, K) each, and their comparison bit for bit."""

from __future__ import annotations

import torch

from objectives.training.packed import PackedTrainer

Curves = dict[str, torch.Tensor]


def curves(trainer: PackedTrainer, num_steps: int) -> Curves:
    """Metrics of the next steps."""
    rows = [trainer.step() for _ in range(num_steps)]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def joined(*parts: Curves) -> Curves:
    """Curves of one pack after each other, of which some may have no steps."""
    parts = tuple(part for part in parts if part)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def of_member(found: Curves, k: int) -> Curves:
    """The curves of the member ``k`` alone."""
    return {name: values[:, k : k + 1] for name, values in found.items()}


def assert_same(found: Curves, expected: Curves) -> None:
    """Bit for bit, NaN included."""
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0, equal_nan=True, msg=name)
