"""Small packs that several tests build on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectives.base import OBJECTIVES, Trainer, TrainingConfig, Way
from orchestrator.detection.config import StoppingConfig
from orchestrator.messages import Finished, Member, Pack, Report, StackedPack

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
    return StackedPack("pack", steps, members, STOPPING.model_dump(), objective=objective, width=width)


def trainer_of(
    objective: str, configs: Sequence[TrainingConfig], seeds: Sequence[int], way: Way | None = None
) -> Trainer:
    """An eager pack on the CPU unless ``way`` says otherwise."""
    return OBJECTIVES[objective].start(configs, seeds, "cpu", way or Way(len(configs)))


def everyone(trainer: Trainer) -> list[int]:
    """All rows."""
    return list(range(trainer.num_members))


def assert_the_same(found: tuple[dict, dict], expected: tuple[dict, dict]) -> None:
    """Bit for bit, results as well as curves."""
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for trial_id in expected[1]:
        np.testing.assert_array_equal(found[1][trial_id], expected[1][trial_id], err_msg=trial_id)


def results(reports: Sequence[Report]) -> dict[str, Finished]:
    """The finished trials of reports, by id."""
    return {finished.trial_id: finished for report in reports for finished in report.finished}


def curve(reports: Sequence[Report], trial_id: str, column: str = "loss") -> np.ndarray:
    """A whole curve of a trial from its pieces."""
    return np.concatenate([report.traces[trial_id][column] for report in reports if trial_id in report.traces])


def cannot_compile(error: BaseException):
    """Like torch.compile on a machine where what it returns fails when it is first called."""

    def compile_(function, **options):
        def compiled(*arguments):
            raise error

        return compiled

    return compile_
