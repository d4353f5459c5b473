"""Small packs that several tests build on."""

from __future__ import annotations

from collections.abc import Sequence

from objectives.base import OBJECTIVES, Place, Trainer, TrainingConfig, Way


def trainer_of(
    objective: str, configs: Sequence[TrainingConfig], seeds: Sequence[int], way: Way | None = None
) -> Trainer:
    """An eager pack on the CPU unless ``way`` says otherwise."""
    return OBJECTIVES[objective].start(configs, seeds, "cpu", way or Way(len(configs)))


def keep(trainer: Trainer, index: Sequence[int]) -> None:
    """Let all members but those at ``index`` go."""
    trainer.arrange([Place(trainer.configs[i], trainer.seeds[i], i) for i in index])


def everyone(trainer: Trainer) -> list[int]:
    """All rows."""
    return list(range(trainer.num_members))
