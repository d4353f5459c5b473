"""AdamW (Loshchilov & Hutter, arXiv 1711.05101)."""

from __future__ import annotations

from objectives.optimizers.facts.optimizer import Optimizer, always

ADAMW = Optimizer(
    "adamw",
    "objectives.optimizers.rules.adamw:AdamW",
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=always,
    v_follows_from_norms=True,
)
