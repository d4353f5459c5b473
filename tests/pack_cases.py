"""Small packs that several tests build on."""

from __future__ import annotations

from collections.abc import Sequence

from objectives.base import OBJECTIVES, Trainer, TrainingConfig, Way


def trainer_of(
    objective: str, configs: Sequence[TrainingConfig], seeds: Sequence[int], way: Way | None = None
) -> Trainer:
    """An eager pack on the CPU unless ``way`` says otherwise."""
    return OBJECTIVES[objective].start(configs, seeds, "cpu", way or Way(len(configs)))


def everyone(trainer: Trainer) -> list[int]:
    """All rows."""
    return list(range(trainer.num_members))
