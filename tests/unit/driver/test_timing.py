"""The time that a plan says before anything was trained: from measured structures to all, and of checked scripts."""

from pathlib import Path
from typing import Any

import pytest
from custom_cases import sweep_in
from sweep_cases import sweep_of

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.files import LEDGER
from orchestrator.driver import timing
from orchestrator.driver.packing import rounding_of
from orchestrator.driver.planning import check_kernels, check_same_axes, plan_of
from orchestrator.driver.timing import TrialTime, keep_trial_time, measure_structures, trial_time
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.machine import Measurement, save_measurements

STEPS, RATES, BATCHES = 100, [1e-3, 1e-2, 1e-1], (4, 8, 16, 32, 64, 128)


def gpt(batches: tuple[int, ...] = BATCHES, more: str = "", workers: str = "1") -> Sweep:
    body = f"axes: {{lr: {{values: {RATES}}}, batch_size: {{values: {list(batches)}}}}}\nsteps: {STEPS}\n{more}"
    resources = f"resources: {{parallel: 2, kernels: default, workers: {workers}}}"
    return sweep_of(body, f"name: sized\nobjective: gpt\n{resources}\n")


def sweep_with_gpu() -> Sweep:
    return sweep_of(
        f"axes: {{lr: {{values: {RATES}}}}}\nsteps: {STEPS}\n", "name: gpu\nobjective: gpt\nresources: {gpus: 1}\n"
    )


def measured(sweep: Sweep, seconds: dict[int, float]) -> None:
    """Put into the cache how long a step of a member takes, by its batch size; wider packs are as fast."""
    for batch, of_step in seconds.items():
        trial = next(trial for trial in sweep.trials if trial.config["batch_size"] == batch)
        config, kernels = sweep.objective.config_of(trial.config), rounding_of(sweep, trial).measured
        rows = [Measurement(width, 1 / of_step, 1000) for width in (1, 4, 16)]
        save_measurements(sweep.objective, config, "cpu", sweep.resources.cpus, rows, kernels)


def test_a_ledger_that_a_full_disk_left_empty_is_planned_as_none(tmp_path: Path) -> None:
    sweep = gpt((4,), "telemetry: {every: null, curvature: null}\n")
    (tmp_path / sweep.name).mkdir()
    (tmp_path / sweep.name / LEDGER).write_bytes(b"")
    assert plan_of(sweep, tmp_path).to_train == len(RATES)
    check_kernels(sweep, tmp_path / sweep.name)
    check_same_axes(sweep, tmp_path / sweep.name)


def test_the_time_of_measured_structures_is_the_sum_over_their_trials(tmp_path: Path) -> None:
    sweep = gpt((4, 64), "telemetry: {every: null, curvature: null}\n")
    assert plan_of(sweep, tmp_path).seconds is None
    measured(sweep, {4: 0.001, 64: 0.1})
    plan = plan_of(sweep, tmp_path)
    assert plan.seconds == pytest.approx(len(RATES) * STEPS * (0.001 + 0.1) / 2)
    assert plan.member_steps_per_second == pytest.approx(2 / (0.001 + 0.1))
    assert plan.seconds_within == 1.5
    (line,) = [line for line in PlanQuery().ask((sweep, tmp_path)).lines() if line.startswith("time:")]
    assert "within a factor of 1.5" in line


def test_structures_that_were_not_measured_follow_their_shapes_and_the_error_says_how_well(tmp_path: Path) -> None:
    sweep = gpt(more="telemetry: {every: null, curvature: null}\n")
    law = {batch: 0.001 * batch**0.8 for batch in BATCHES}
    measured(sweep, {batch: law[batch] for batch in (4, 16, 32, 128)})
    plan = plan_of(sweep, tmp_path)
    assert plan.seconds == pytest.approx(len(RATES) * STEPS * sum(law.values()) / 2, rel=0.02)
    assert plan.seconds_within == 1.5
    measured(sweep, {16: 5 * law[16]})
    assert plan_of(sweep, tmp_path).seconds_within > 2, "they lie on no line"


def test_one_measured_structure_says_little_of_others(tmp_path: Path) -> None:
    sweep = gpt()
    measured(sweep, {4: 0.001})
    assert plan_of(sweep, tmp_path).seconds_within == 3


@pytest.mark.parametrize("workers", ["2", "{min: 1, max: 2}"])
def test_what_one_process_takes_is_no_time_of_several_that_share_a_batch(tmp_path: Path, workers: str) -> None:
    measured(gpt((4, 64)), {4: 0.001, 64: 0.1})
    assert plan_of(gpt((4, 64)), tmp_path).seconds is not None
    plan = plan_of(gpt((4, 64), workers=workers), tmp_path)
    assert (plan.seconds, plan.member_steps_per_second, plan.seconds_within) == (None, None, None)


def test_what_is_measured_are_a_few_structures_from_the_smallest_to_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def calibrate(objective: Any, cpus: int, structures: Any) -> None:
        asked.append([each.config["batch_size"] for each in structures])
        measured(sweep, dict.fromkeys(asked[-1], 0.01))

    monkeypatch.setattr(timing, "calibrate", calibrate)
    sweep = gpt()
    plan_of(sweep, tmp_path)
    assert asked == [], "only a plan that is asked for measures"
    assert plan_of(sweep, tmp_path, measures=True).seconds is not None
    assert asked == [[4, 16, 32, 128]]
    plan_of(sweep, tmp_path, measures=True)
    assert len(asked) == 1, "once on a machine"
    on_gpu = sweep_with_gpu()
    measure_structures(on_gpu, on_gpu.trials)
    measure_structures(gpt((3, 5)), [])
    assert len(asked) == 1, "neither what a GPU will train, nor nothing"


def test_a_script_that_was_checked_has_a_time(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    assert isinstance(sweep.objective, CustomTrainer)
    assert trial_time(sweep.objective) is None
    keep_trial_time(sweep.objective, TrialTime(2.0, 0.5))
    plan = plan_of(sweep, tmp_path / "results")
    assert plan.seconds == pytest.approx(len(sweep.trials) * (2 + 60 * 0.5) / min(plan.workers, len(sweep.trials)))
    assert plan.seconds_within == 2
    (line,) = [line for line in PlanQuery().ask((sweep, tmp_path)).lines() if line.startswith("time:")]
    assert "`sweep check`" in line
    other = sweep_in(tmp_path, text=(tmp_path / "mine.yaml").read_text().replace("train.py", "other.py"))
    assert isinstance(other.objective, CustomTrainer)
    assert trial_time(other.objective) is None
