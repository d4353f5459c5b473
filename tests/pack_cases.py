"""Small packs that several tests build on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from objectives.base import OBJECTIVES, ExecutionPlan, Trainer, TrainingConfig
from objectives.training.packed import PackedTrainer
from orchestrator.base.packs import Checkpoint, Member, Pack, Report, StackedPack, Trace
from orchestrator.base.trial_result import MemberResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.worker import run as worker
from orchestrator.worker.checkpoints import CheckpointWriter
from orchestrator.worker.packed_run import Pace

STOPPING = StoppingConfig(patience=20).resolved(2.0, 1)
COLUMNS = ("step", "loss", "grad_norm", "update_norm", "lr")
REPORT_EACH_UPDATE = Pace(report_s=0.0)
# Small enough to be quick.
SMALL = {
    "gpt": {"width": 8, "heads": 2, "context": 8, "batch_size": 2, "validation_batches": 2, "depth": 1},
    "function_fit": {"width": 8, "num_points": 20},
    "quadratic": {"noise": 0.05, "optimizer": "sgd", "beta1": 0.5},
    "router": {"batch_size": 8},
}


def pack_with(objective: str, changes: Sequence[dict], width: int, seeds: Sequence[int], steps: int = 40) -> Pack:
    """Members that differ in ``changes``, ``width`` of them at a time."""
    config_class = OBJECTIVES[objective].config_class
    configs = [config_class(steps=steps, **(SMALL[objective] | change)).model_dump() for change in changes]
    members = tuple(Member(f"trial{i}", c, seed) for i, (c, seed) in enumerate(zip(configs, seeds, strict=True)))
    return StackedPack("pack", steps, members, STOPPING.model_dump(), objective=objective, width=width)


def trainer_of(
    objective: str, configs: Sequence[TrainingConfig], seeds: Sequence[int], plan: ExecutionPlan | None = None
) -> Trainer:
    """An eager pack on the CPU unless ``plan`` says otherwise."""
    return OBJECTIVES[objective].start(configs, seeds, "cpu", plan or ExecutionPlan(len(configs)))


def small_pack(objective: str, changes: Sequence[Mapping[str, Any]], device: str = "cpu") -> PackedTrainer[Any]:
    """A small pack of a member with each of the changes, for 100 steps."""
    kind = OBJECTIVES[objective]
    configs = [kind.config_of({**SMALL[objective], "steps": 100, **change}) for change in changes]
    trainer = kind.start(configs, list(range(len(configs))), device, ExecutionPlan(len(configs)))
    assert isinstance(trainer, PackedTrainer)
    return trainer


def everyone(trainer: Trainer) -> list[int]:
    """All rows."""
    return list(range(trainer.num_members))


def assert_the_same(found: tuple[dict, dict], expected: tuple[dict, dict]) -> None:
    """Bit for bit, results as well as curves."""
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for trial_id in expected[1]:
        np.testing.assert_array_equal(found[1][trial_id], expected[1][trial_id], err_msg=trial_id)


def results(reports: Sequence[Report]) -> dict[str, MemberResult]:
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


def whole(reports: Sequence[Report], columns: Sequence[str] = COLUMNS) -> tuple[dict, dict]:
    """Results and whole curves of reports without an error, by trial."""
    assert not [report.error for report in reports if report.error]
    found = results(reports)
    return found, {t: np.stack([curve(reports, t, column) for column in columns]) for t in found}


def until_death(pack: Pack, num_reports: int) -> tuple[list[Report], Checkpoint, frozenset[str]]:
    """Reports of a pack that dies after some, its last checkpoint, and the trials that have ended.

    It waits for each checkpoint, which is written beside training: a short pack may be over before.
    """
    seen, last = [], None
    with patch.object(CheckpointWriter, "is_ready", property(lambda writer: writer._pending is not None)):
        for report in worker.run_pack(pack, pace=REPORT_EACH_UPDATE):
            assert report.error is None, report.error
            last = report.checkpoint or last
            seen.append(report)
            if len(seen) >= num_reports and last is not None:
                break
    assert last is not None
    return seen, last, frozenset(results(seen))


def interrupted(pack: Pack, num_reports: int) -> tuple[list[Report], Pack]:
    """A pack that dies after some reports, at least one checkpoint among them: what is left, and who goes on."""
    seen, last, done = until_death(pack, num_reports)
    ends = {trial_id: np.inf if trial_id in done else last.ages.get(trial_id, 0) for trial_id in pack.trial_ids}
    kept = [replace(report, traces={t: up_to(trace, ends[t]) for t, trace in report.traces.items()}) for report in seen]
    return kept, replace(pack, resume=last, skip=done)


def up_to(trace: Trace, end: float) -> Trace:
    return {name: values[trace["step"] < end] for name, values in trace.items()}
