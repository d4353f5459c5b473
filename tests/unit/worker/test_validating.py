"""Validations and slow members: who shares a pack, how often it is updated and whether it dies change nothing."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from pack_cases import (
    REPORT_EACH_UPDATE,
    SMALL,
    STOPPING,
    assert_the_same,
    pack_with,
    results,
    until_death,
    whole,
)
from tiers import thinned

from orchestrator.base.packs import Pack, Report, RungThreshold
from orchestrator.detection.config import SlowConfig
from orchestrator.worker import run as worker
from orchestrator.worker.packed_run import Pace

VALIDATED = ("gpt", "function_fit")
LRS = (1e-3, 1e-2, 1e300, 3e-3, 3e-2)


def validated_pack(objective: str, every: int | None = 6, **stopping) -> Pack:
    pack = pack_with(objective, [{"lr": lr} for lr in LRS], len(LRS), [0, 0, 1, 1, 2])
    return replace(pack, validate_every=every, stopping=STOPPING.model_copy(update=stopping).model_dump())


def held_out(reports: Sequence[Report], trial_id: str) -> np.ndarray:
    """Steps and losses of its validations, (2, N)."""
    tables = [report.telemetry[trial_id] for report in reports if trial_id in report.telemetry]
    columns = [np.stack([table["step"], table["validation_loss"]]) for table in tables if "validation_loss" in table]
    found = np.concatenate(columns, axis=1) if columns else np.zeros((2, 0))
    return found[:, np.isfinite(found[1])]


def validated(reports: Sequence[Report]) -> tuple[dict, dict]:
    found, curves = whole(reports, ("step", "loss", "grad_norm"))
    return found, curves | {f"{t} validated": held_out(reports, t) for t in found}


@pytest.mark.parametrize("objective", VALIDATED)
def test_validating_has_no_effect_on_training(objective: str) -> None:
    plain = validated(list(worker.run_pack(validated_pack(objective, None))))
    found = validated(list(worker.run_pack(validated_pack(objective))))
    for trial_id, expected in plain[0].items():
        np.testing.assert_array_equal(found[1][trial_id], plain[1][trial_id])
        own = ("best_validation_loss", "best_validation_step", "overfit_step", "reason")
        same = replace(found[0][trial_id], **{name: getattr(expected, name) for name in own})
        assert same == expected
        assert plain[1][f"{trial_id} validated"].shape == (2, 0), "by default there is no curve"


@pytest.mark.parametrize("objective", VALIDATED)
def test_a_member_is_validated_after_every_so_many_of_its_steps_and_after_its_last_one(objective: str) -> None:
    found, curves = validated(list(worker.run_pack(replace(validated_pack(objective), width=2))))
    for trial_id, finished in found.items():
        steps, losses = curves[f"{trial_id} validated"]
        if finished.outcome == "diverged":
            assert all(step < finished.steps_done for step in steps)
            continue
        assert steps.tolist() == [5, 11, 17, 23, 29, 35, 39]
        assert losses[-1] == np.float32(finished.validation_loss or 0.0)
        assert losses.min() == np.float32(finished.best_validation_loss or 0.0)
        assert finished.best_validation_step == steps[losses.argmin()]


@pytest.mark.parametrize("objective", VALIDATED)
@pytest.mark.parametrize("patience", thinned([None, 1], lambda patience: patience == 1))
def test_who_shares_a_pack_and_how_often_it_is_looked_at_changes_no_validation(
    objective: str, patience: int | None
) -> None:
    pack = validated_pack(objective, validation_patience=patience)
    alone = [replace(pack, members=(member,), width=1) for member in pack.members]
    parts = [validated(list(worker.run_pack(one))) for one in alone]
    expected = ({k: v for one, _ in parts for k, v in one.items()}, {k: v for _, one in parts for k, v in one.items()})
    for width, update_steps in ((5, 10), (3, 1), (2, 40)):
        found = validated(list(worker.run_pack(replace(pack, width=width), pace=Pace(update_steps=update_steps))))
        assert_the_same(found, expected)


@pytest.mark.parametrize(
    ("num_reports", "checkpoint_steps"),
    thinned(itertools.product((1, 3, 6), (5, 6)), lambda case: case in ((1, 6), (3, 5))),
)
def test_a_pack_that_dies_goes_on_with_its_validations_bit_for_bit(num_reports: int, checkpoint_steps: int) -> None:
    pack = replace(validated_pack("function_fit", validation_patience=2), checkpoint_steps=checkpoint_steps, width=3)
    undisturbed = validated(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE)))
    seen, last, done = until_death(pack, num_reports)
    after = list(worker.run_pack(replace(pack, resume=last, skip=done), pace=REPORT_EACH_UPDATE))
    assert {**results(seen), **results(after)} == undisturbed[0]
    for trial_id in pack.trial_ids:
        # As the ledger does: of a trial that goes on, what came after the checkpoint is trained again.
        end = np.inf if trial_id in done else last.ages.get(trial_id, 0)
        before = held_out(seen, trial_id)
        joined = np.concatenate([before[:, before[0] < end], held_out(after, trial_id)], axis=1)
        np.testing.assert_array_equal(joined, undisturbed[1][f"{trial_id} validated"])


def test_a_member_whose_validation_loss_rises_ends_there_as_what_its_training_losses_say() -> None:
    # With few points to fit, those in between are soon fitted worse.
    config = {"num_points": 8, "width": 64, "lr": 3e-3}
    pack = pack_with("function_fit", [config], 1, [0], steps=600)
    patient = {"validation_patience": 5}
    ran = {}
    for name, stopping in {"to its end": {}, "ended": patient, "audited": {**patient, "audit": 1.0}}.items():
        stopped = STOPPING.model_copy(update=stopping).model_dump()
        (ran[name],) = results(list(worker.run_pack(replace(pack, validate_every=10, stopping=stopped)))).values()
    whole_run, ended, audited = ran["to its end"], ran["ended"], ran["audited"]
    assert whole_run.plateau_step is None
    assert ended.plateau_step == audited.plateau_step == (ended.best_validation_step or 0) + 50
    assert ended.steps_done == (ended.plateau_step or 0) + 1 < audited.steps_done == 600
    assert ended.outcome == "stable"
    assert ended.validation_loss is not None
    assert f"; ended at step {ended.plateau_step}, where 5 validations in a row" in ended.reason
    assert audited.validation_loss == whole_run.validation_loss
    assert audited.is_audited


def test_an_objective_without_held_out_data_has_no_validations() -> None:
    assert "quadratic" in SMALL
    pack = replace(pack_with("quadratic", [{}], 1, [0]), validate_every=5)
    reports = list(worker.run_pack(pack))
    assert held_out(reports, "trial0").shape == (2, 0)
    assert results(reports)["trial0"].best_validation_loss is None


# The middle of what the members below have at these steps, so that some are above it.
THRESHOLDS = {
    "gpt": (RungThreshold(15, 5.2, 5), RungThreshold(25, 4.05, 5)),
    "function_fit": (RungThreshold(15, 1.0, 5), RungThreshold(25, 0.8, 5)),
    "quadratic": (RungThreshold(15, 0.3, 5), RungThreshold(25, 0.002, 5)),
}
SLOW_LRS = {
    "gpt": (1e-3, 3e-2, 1e-2, 1e300, 3e-3, 1e-2, 3e-1),
    "function_fit": (1e-4, 3e-2, 1e-2, 1e300, 3e-3, 1e-3, 3e-1),
    "quadratic": (0.01, 0.5, 0.1, 1e200, 0.05, 0.3, 1.0),
}


def slow_pack(objective: str, **stopping) -> Pack:
    pack = pack_with(objective, [{"lr": lr} for lr in SLOW_LRS[objective]], 7, [0, 0, 1, 2, 0, 1, 2])
    slow = {"slow": SlowConfig(method="median", startup_trials=0), **stopping}
    return replace(pack, stopping=STOPPING.model_copy(update=slow).model_dump(), rung_thresholds=THRESHOLDS[objective])


def pruned(reports: Sequence[Report]) -> tuple[dict, dict]:
    return whole(reports, ("step", "loss"))


@pytest.mark.parametrize(
    ("objective", "audit"),
    thinned(itertools.product(SLOW_LRS, (0.0, 0.5)), lambda case: (case[1] == 0.5) == (case[0] != "quadratic")),
)
def test_who_shares_a_pack_changes_nothing_about_who_is_pruned(objective: str, audit: float) -> None:
    pack = slow_pack(objective, audit=audit)
    alone = [replace(pack, members=(member,), width=1) for member in pack.members]
    expected = pruned([report for one in alone for report in worker.run_pack(one)])
    outcomes = {finished.outcome for finished in expected[0].values()}
    assert {"pruned", "diverged"} < outcomes
    for width, update_steps in ((7, 10), (3, 1), (2, 40)):
        reports = list(worker.run_pack(replace(pack, width=width), pace=Pace(update_steps=update_steps)))
        assert_the_same(pruned(reports), expected)
    for finished in expected[0].values():
        is_pruned = finished.slow_step is not None and not finished.is_audited
        assert (finished.outcome == "pruned") == is_pruned
        if is_pruned:
            assert (
                finished.steps_done == finished.slow_step + 1 in {threshold.steps for threshold in pack.rung_thresholds}
            )
            assert finished.validation_loss is None
        assert all(loss == float(loss) for loss in finished.rung_losses)


def test_a_pruned_member_leaves_its_pack_so_that_its_steps_are_saved() -> None:
    trained = [
        list(worker.run_pack(pack))[-1].member_steps
        for pack in (slow_pack("quadratic"), replace(slow_pack("quadratic"), rung_thresholds=()))
    ]
    assert trained[0] < trained[1]


@pytest.mark.parametrize("num_reports", thinned([1, 2, 4], lambda num: num == 2))
def test_a_pack_that_dies_goes_on_with_the_bars_that_it_had(num_reports: int) -> None:
    pack = replace(slow_pack("quadratic"), checkpoint_steps=5, width=4)
    undisturbed = pruned(list(worker.run_pack(pack, pace=REPORT_EACH_UPDATE)))
    seen, last, done = until_death(pack, num_reports)
    # By now other trials have ended, which would have set other thresholds.
    others = tuple(RungThreshold(threshold.steps, 0.0, 99) for threshold in pack.rung_thresholds)
    going_on = replace(pack, resume=last, skip=done, rung_thresholds=others)
    after = list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))
    assert {**results(seen), **results(after)} == undisturbed[0]
