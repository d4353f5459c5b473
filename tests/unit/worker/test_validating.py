"""Validations during training: who shares a pack, how often it is updated and whether it dies change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from pack_cases import SMALL, STOPPING, assert_the_same, curve, pack_with, results

from orchestrator.base.packs import Pack, Report
from orchestrator.worker import run as worker
from orchestrator.worker.packed_run import Pace

EACH_LOOK = Pace(report_s=0.0)
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


def whole(reports: Sequence[Report]) -> tuple[dict, dict]:
    assert not [report.error for report in reports if report.error]
    found = results(reports)
    losses = {t: np.stack([curve(reports, t, column) for column in ("step", "loss", "grad_norm")]) for t in found}
    return found, losses | {f"{t} validated": held_out(reports, t) for t in found}


@pytest.mark.parametrize("objective", VALIDATED)
def test_validating_has_no_effect_on_training(objective: str) -> None:
    plain = whole(list(worker.run_pack(validated_pack(objective, None))))
    found = whole(list(worker.run_pack(validated_pack(objective))))
    for trial_id, expected in plain[0].items():
        np.testing.assert_array_equal(found[1][trial_id], plain[1][trial_id])
        own = ("best_validation_loss", "best_validation_step", "overfit_step", "reason")
        same = replace(found[0][trial_id], **{name: getattr(expected, name) for name in own})
        assert same == expected
        assert plain[1][f"{trial_id} validated"].shape == (2, 0), "by default there is no curve"


@pytest.mark.parametrize("objective", VALIDATED)
def test_a_member_is_validated_after_every_so_many_of_its_steps_and_after_its_last_one(objective: str) -> None:
    found, curves = whole(list(worker.run_pack(replace(validated_pack(objective), width=2))))
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
@pytest.mark.parametrize("patience", [None, 1])
def test_who_shares_a_pack_and_how_often_it_is_looked_at_changes_no_validation(
    objective: str, patience: int | None
) -> None:
    pack = validated_pack(objective, validation_patience=patience)
    alone = [replace(pack, members=(member,), width=1) for member in pack.members]
    parts = [whole(list(worker.run_pack(one))) for one in alone]
    expected = ({k: v for one, _ in parts for k, v in one.items()}, {k: v for _, one in parts for k, v in one.items()})
    for width, update_steps in ((5, 10), (3, 1), (2, 40)):
        found = whole(list(worker.run_pack(replace(pack, width=width), pace=Pace(update_steps=update_steps))))
        assert_the_same(found, expected)


@pytest.mark.parametrize("num_reports", [1, 3, 6])
@pytest.mark.parametrize("checkpoint_steps", [5, 6])
def test_a_pack_that_dies_goes_on_with_its_validations_bit_for_bit(num_reports: int, checkpoint_steps: int) -> None:
    pack = replace(validated_pack("function_fit", validation_patience=2), checkpoint_steps=checkpoint_steps, width=3)
    undisturbed = whole(list(worker.run_pack(pack, pace=EACH_LOOK)))
    seen, last = [], None
    for report in worker.run_pack(pack, pace=EACH_LOOK):
        seen.append(report)
        last = report.checkpoint or last
        if len(seen) >= num_reports and last is not None:
            break
    assert last is not None
    done = {finished.trial_id for report in seen for finished in report.finished}
    after = list(worker.run_pack(replace(pack, resume=last, skip=frozenset(done)), pace=EACH_LOOK))
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
