"""Small packs that several tests build on."""

from __future__ import annotations

from collections.abc import Sequence

from objectives.base import OBJECTIVES, Trainer, TrainingConfig, Way
from orchestrator.detection import StoppingConfig
from orchestrator.reports import Member, Pack

STOPPING = StoppingConfig(patience=20).resolved(2.0, 1)
# Small enough to be quick.
SMALL = {
    "gpt": {"width": 8, "heads": 2, "context": 8, "batch_size": 2, "validation_batches": 2, "depth": 1},
    "function_fit": {"width": 8, "num_points": 20},
    "quadratic": {"noise": 0.05, "optimizer": "sgd", "beta1": 0.5},
}


def pack_with(objective: str, changes: Sequence[dict], width: int, seeds: Sequence[int], steps: int = 40) -> Pack:
    """Members that differ in ``changes``, ``width`` of them at a time."""
    config_class = OBJECTIVES[objective].config_class
    configs = [config_class(steps=steps, **(SMALL[objective] | change)).model_dump() for change in changes]
    members = tuple(Member(f"trial{i}", c, seed) for i, (c, seed) in enumerate(zip(configs, seeds, strict=True)))
    return Pack("pack", objective, steps, members, STOPPING.model_dump(), width, 0)


def trainer_of(
    objective: str, configs: Sequence[TrainingConfig], seeds: Sequence[int], way: Way | None = None
) -> Trainer:
    """An eager pack on the CPU unless ``way`` says otherwise."""
    return OBJECTIVES[objective].start(configs, seeds, "cpu", way or Way(len(configs)))


def everyone(trainer: Trainer) -> list[int]:
    """All rows."""
    return list(range(trainer.num_members))
