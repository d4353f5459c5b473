from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from objectives import quadratic
from objectives.base import OBJECTIVES
from orchestrator import worker
from orchestrator.detection import StoppingConfig
from orchestrator.reports import Member, Pack, Report

STOPPING = StoppingConfig(patience=20).resolved(2.0)


def pack_of(lrs: Sequence[float], steps: int = 200, **fields) -> Pack:
    config_class = OBJECTIVES["quadratic"].config_class
    members = tuple(
        Member(
            f"trial{i}",
            config_class(lr=lr, steps=steps, **{"optimizer": "sgd", "beta1": 0.0, **fields}).model_dump(),
            i,
        )
        for i, lr in enumerate(lrs)
    )
    return Pack("pack", "quadratic", steps, members, STOPPING.model_dump(), len(members), 0)


def results(reports: Sequence[Report]) -> dict:
    return {finished.trial_id: finished for report in reports for finished in report.finished}


def curve(reports: Sequence[Report], trial_id: str, column: str = "loss") -> np.ndarray:
    return np.concatenate([report.traces[trial_id][column] for report in reports if trial_id in report.traces])


def test_members_beyond_the_edge_diverge_and_the_others_do_not_notice() -> None:
    mixed = list(worker.run_pack(pack_of([0.5, 2.1, 1.5])))
    outcomes = {trial_id: finished.outcome for trial_id, finished in results(mixed).items()}
    assert outcomes == {"trial0": "stable", "trial1": "diverged", "trial2": "stable"}
    alone = list(worker.run_pack(replace(pack_of([0.5]), pack_id="alone")))
    np.testing.assert_array_equal(curve(mixed, "trial0"), curve(alone, "trial0"))


def test_the_curve_of_a_lost_member_ends_at_the_verdict_whenever_it_is_looked_at(monkeypatch) -> None:
    ends = []
    for steps_per_look in (1, 7, 50):
        monkeypatch.setattr(worker, "_STEPS_PER_LOOK", steps_per_look)
        reports = list(worker.run_pack(pack_of([2.1, 0.5])))
        lost = results(reports)["trial0"]
        steps = curve(reports, "trial0", "step")
        assert steps[-1] + 1 == lost.steps_done == len(steps)
        ends.append((lost.steps_done, lost.onset_step, lost.final_loss, results(reports)["trial1"].final_loss))
    assert len(set(ends)) == 1


def test_lost_members_leave_the_pack_so_that_their_time_is_saved() -> None:
    last = list(worker.run_pack(pack_of([2.1, 0.5, 2.1, 2.1])))[-1]
    assert 200 < last.member_steps < 200 + 3 * 150


def test_without_early_stop_a_lost_member_trains_to_its_end_and_is_still_diverged() -> None:
    pack = replace(pack_of([2.1]), stopping=STOPPING.model_copy(update={"early_stop": False}).model_dump())
    finished = results(list(worker.run_pack(pack)))["trial0"]
    assert (finished.outcome, finished.steps_done) == ("diverged", 200)


def test_a_non_finite_loss_is_a_result_with_the_step_and_no_number() -> None:
    finished = results(list(worker.run_pack(pack_of([1e200], steps=50))))["trial0"]
    assert finished.outcome == "diverged"
    assert "not finite" in finished.reason
    assert finished.final_loss is None
    assert finished.steps_done < 10


class BrokenTrainer(quadratic.QuadraticTrainer):
    closed = 0

    def __init__(self, failure: BaseException, *arguments) -> None:
        super().__init__(*arguments)
        self.failure = failure

    def step(self):
        if self.num_steps == 25:
            raise self.failure
        return super().step()

    def close(self) -> None:
        BrokenTrainer.closed += 1


@pytest.mark.parametrize("failure", [RuntimeError("kaput"), SystemExit(0), MemoryError()])
def test_a_trainer_that_fails_is_reported_with_its_traceback_and_closed(monkeypatch, failure) -> None:
    monkeypatch.setattr(quadratic, "start", lambda *arguments: BrokenTrainer(failure, *arguments))
    BrokenTrainer.closed = 0
    reports = list(worker.run_pack(pack_of([0.5])))
    assert reports[-1].is_last
    assert type(failure).__name__ in reports[-1].error
    assert not results(reports)
    assert len(curve(reports, "trial0")) == 20, "what was looked at before the failure is kept"
    assert BrokenTrainer.closed == 1


def test_metrics_of_tensors_and_of_plain_lists_come_to_the_host_alike() -> None:
    import torch

    rows = [{"loss": [1.0, 2.0], "lr": [0.1, 0.2]}, {"loss": [3.0, float("nan")], "lr": [0.3, 0.4]}]
    tensors = [{name: torch.tensor(value, dtype=torch.float64) for name, value in row.items()} for row in rows]
    for found in (worker.to_host(rows), worker.to_host(tensors)):
        np.testing.assert_array_equal(found["loss"], [[1.0, 2.0], [3.0, np.nan]])
        np.testing.assert_array_equal(found["lr"], [[0.1, 0.2], [0.3, 0.4]])
