"""Which trials of custom trainers can be forked, what is refused, and which trials a question consists of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_cases import row_of
from forked_cases import SWEEP

from orchestrator.base.errors import InputError
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.forking import (
    accepted_forks,
    check_forkable,
    check_forks,
    checkpoint_steps,
    fork_sweep,
    replicates_of,
    unknown_steps,
)
from orchestrator.causes.remedies.remedy import Fork, Remedy, fork_of
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

HALF = Remedy(({"at": 0, "set": {"lr": "x0.5"}},))


def frozen(folder: Path, text: str = SWEEP) -> TrialResult:
    """The results folder of a sweep, and its trial at the larger learning rate."""
    folder.mkdir(exist_ok=True)
    sweep = build_sweep(parse_document(text, "mine.yaml"))
    (folder / "sweep.yaml").write_text(sweep.text)
    trial = sweep.trials[-1]
    row = row_of("diverged", 56, objective=sweep.objective.name, cell=dict(trial.cell), steps=100)
    return replace(row, config=json.loads(json.dumps(dict(trial.config))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('  resume: {checkpoint: "{folder}/ckpt.json", arguments: [--resume]}\n', ""), "does not say how it resumes"),
        (("{folder}/ckpt", "/scratch/{trial}/ckpt"), "not in the trial's own folder"),
    ],
)
def test_what_cannot_be_forked_is_refused_with_the_key_of_the_sweep_file(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    row = frozen(tmp_path, SWEEP.replace(*change))
    with pytest.raises(InputError, match=words) as refused:
        check_forkable(tmp_path, row)
    assert "sweep.yaml: objective.resume" in str(refused.value)
    assert "remedy:" in str(refused.value)


def test_runs_that_were_trained_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trained elsewhere"):
        check_forkable(tmp_path, row_of("diverged", 5, objective="imported"))


def test_the_control_has_the_values_of_the_trial_and_the_steps_that_forks_start_at(tmp_path: Path) -> None:
    row = frozen(tmp_path)
    sweep = fork_sweep(tmp_path, row, [Fork(HALF, 30, 0), Fork(Remedy(), 30, 0)], target=tmp_path / "no", steps=[36])
    control, half, alone = sweep.trials
    assert {**row.config, "interventions": [], "checkpoints_for": [36]} == dict(control.config)
    assert {**row.config, "interventions": [{"at": 30, "set": {"lr": "x0.5"}}]} == dict(half.config)
    assert {**row.config, "interventions": [{"at": 30}]} == dict(alone.config)
    assert fork_of(half.config["interventions"]) == Fork(HALF, 30, 0)
    assert fork_of(alone.config["interventions"]) == Fork(Remedy(), 30, 0)
    assert fork_of(control.config["interventions"]) is None
    assert len({trial.trial_id for trial in sweep.trials}) == 3


def test_only_remedies_that_a_resumed_trainer_can_take_are_tried_by_default(tmp_path: Path) -> None:
    row = frozen(tmp_path)
    usual = [HALF, Remedy(({"at": 0, "skip": 5},)), Remedy(({"at": 0, "set": {"beta2": 0.9}},))]
    assert accepted_forks(tmp_path, row, [Fork(one, 0, 0) for one in usual]) == [Fork(HALF, 0, 0)]
    with pytest.raises(
        InputError, match="--try: skip 5: a custom trainer can be resumed with other values, but cannot"
    ):
        check_forks(tmp_path, row, [Fork(usual[1], 0, 0)])


def test_replicates_need_a_placeholder_for_the_data(tmp_path: Path) -> None:
    row = frozen(tmp_path)
    assert replicates_of(row, 3) == 1
    assert replicates_of(replace(row, config={**row.config, "data_seed": 1}), 3) == 3
    assert replicates_of(row_of("diverged", 5), 3) == 3


def test_a_step_starts_at_the_nearest_checkpoint_and_the_start_needs_none(tmp_path: Path) -> None:
    row = frozen(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "steps.json").write_text('{"steps": {"36": 30, "38": 30, "5": null}, "problem": null}')
    assert unknown_steps(tmp_path, [0, 5, 36, 77]) == [77]
    assert checkpoint_steps(tmp_path, [0, 36, 38], row) == [0, 30]
    assert checkpoint_steps(tmp_path, [5, 36], row) == [30]
    with pytest.raises(InputError, match="no checkpoint at or before step 5"):
        checkpoint_steps(tmp_path, [5], row)
