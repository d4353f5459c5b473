"""Remedies that would change nothing in a trial are told from those that do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnosis_cases import row_of
from forked_cases import SWEEP
from pack_cases import SMALL
from remedy_cases import LOWER, SKIP, find_remedies
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES, ExecutionPlan, Rounding
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.forking import (
    accepted_forks,
    acting_forks,
    check_forkable,
    checkpoint_steps,
    fork_sweep,
    replicates_of,
    unknown_steps,
    why_idle,
)
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.remedy import Fork, Remedy, fork_of
from orchestrator.causes.remedies.request import RemedyRequest, parse_remedies
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.machine import Measurement, save_measurements

QUADRATIC, FIT, GPT = (OBJECTIVES[name] for name in ("quadratic", "function_fit", "gpt"))


def trial_of(objective: Any = QUADRATIC, **fields: Any) -> TrialResult:
    config = objective.config_class.model_validate({"steps": 100, **fields}, strict=False)
    return replace(row_of("diverged", 50, objective=objective.name), config=config.model_dump(mode="json"))


def why(text: str, step: int = 50, objective: Any = QUADRATIC, **fields: Any) -> str | None:
    (remedy,) = parse_remedies([text])
    return why_idle(objective, trial_of(objective, **fields), Fork(remedy, step, 0))


def test_a_value_that_is_there_already_changes_nothing() -> None:
    assert why("lr=0.3", lr=0.3) == "lr is already 0.3"
    assert why("lr=x1", lr=0.3) == "lr is already 0.3"
    assert why("clip=none") == "clip is already none"
    assert why("clip=1", clip=None) is None
    assert why("lr=0.2", lr=0.3) is None
    assert why("lr=0.3+clip=1", lr=0.3) is None, "one of two acts"


def test_values_are_those_in_force_at_the_fork() -> None:
    halved = {"lr": 0.4, "interventions": [{"at": 20, "set": {"lr": "x0.5"}}]}
    assert why("lr=0.2", 50, **halved) == "lr is already 0.2"
    assert why("lr=0.2", 10, **halved) is None
    for_a_time = {"lr": 0.4, "interventions": [{"at": 20, "set": {"lr": "x0.5"}, "lasts": 40}]}
    assert why("lr=0.2", 50, **for_a_time) is None, "the trial itself goes back"


@pytest.mark.parametrize("text", ["reset=moments", "reset=second_moment", "rescale=4"])
def test_there_is_nothing_to_reset_before_the_first_step(text: str) -> None:
    assert why(text, 0) == "the optimizer has no state before its first step"
    assert why(text, 1) is None


def test_skipped_batches_act_where_steps_differ() -> None:
    same = "every step sees the same data"
    assert why("skip=5") == same
    assert why("skip=5", noise=0.1) is None
    assert why("skip=5", objective=FIT, batch_size=None) == same
    assert why("skip=5", objective=FIT, batch_size=4) is None
    assert why("skip=5", objective=GPT) is None


def test_a_remedy_that_acts_from_no_step_is_refused_by_name_and_one_that_does_later_is_kept_there() -> None:
    (reset,) = parse_remedies(["reset=moments"])
    forks = [Fork(remedy, step, 0) for step in (0, 50) for remedy in (LOWER, reset)]
    kept = acting_forks(QUADRATIC, trial_of(), forks, refuses=True)
    assert [(fork.remedy.name, fork.step) for fork in kept] == [("lr x0.5", 0), ("lr x0.5", 50), ("reset moments", 50)]
    assert acting_forks(QUADRATIC, trial_of(), forks) == kept
    with pytest.raises(InputError, match="skip 5: would change nothing: every step sees the same data") as refused:
        acting_forks(QUADRATIC, trial_of(), [*forks, Fork(SKIP, 50, 0)], refuses=True)
    assert "remedy:" in str(refused.value)


def test_other_data_alone_is_no_remedy_that_could_be_idle() -> None:
    assert why_idle(QUADRATIC, trial_of(), Fork(Remedy(), 5, 1)) is None


# --- Forks are trained with the kernels of the trial that they repeat, whatever is fastest for their number ---


# Two trials fill no wide pack; a dozen forks fill one.
SPEEDS = [
    Measurement(1, 100.0, 1),
    Measurement(4, 200.0, 1),
    Measurement(16, 900.0, 1),
    Measurement(32, 900.0, 1),
    Measurement(64, 900.0, 1),
]
NIGHT_HEAD = "name: night\nobjective: gpt\nsteps: 25\n"
NIGHT = """
axes: {lr: {values: [0.001, 30.0]}}
fixed: {width: 16, heads: 2, context: 16, batch_size: 2, depth: 1, warmup: 5}
tracking: {enabled: false}
"""


def remember_speeds(sweep: Sweep) -> None:
    objective = OBJECTIVES["gpt"]
    config = objective.config_class.model_validate(sweep.trials[0].config, strict=False)
    save_measurements(objective, config, "cpu", 1, SPEEDS)


def test_the_control_of_a_trial_from_a_narrow_pack_repeats_it_in_a_wide_one(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    sweep = replace(sweep_of(NIGHT, NIGHT_HEAD), roundings={"": Rounding(kernels="onednn")})
    remember_speeds(sweep)
    train(sweep)
    found = find_remedies(tmp_path / "night", None, {}, RemedyRequest(("lr=x0.5,x0.1",), ("0",), 4, pairs=False))
    forks = forks_folder(tmp_path / "night", found.trial.trial_id)
    with LedgerReader(tmp_path / "night" / LEDGER) as ledger, LedgerReader(forks / LEDGER) as trained:
        assert found.control is not None
        of_trial, of_control = ledger.environment(found.trial.trial_id), trained.environment(found.control.trial_id)
    expected = Rounding(kernels="onednn")
    assert Rounding.of_facts(of_trial) == expected
    assert Rounding.of_facts(of_control) == expected
    assert of_trial["way"].startswith("1 at a time")
    assert of_control["way"].startswith("16 at a time")
    assert found.control_repeats is True


def test_a_rounding_is_read_back_as_it_was_recorded() -> None:
    plans = [
        ExecutionPlan(7),
        ExecutionPlan(7, True),
        ExecutionPlan(7, True, "onednn"),
        ExecutionPlan(1, kernels="onednn"),
        ExecutionPlan(1),
        ExecutionPlan(1, True),
    ]
    for plan in plans:
        assert Rounding.of_facts(plan.rounding.facts) == plan.rounding
        assert plan.rounding.plan(plan.width) == plan
    assert ExecutionPlan(1).rounding == ExecutionPlan(7).rounding
    assert ExecutionPlan(1, True).rounding.plan(16) == ExecutionPlan(1, True), (
        "what is compiled for one row rounds differently"
    )
    assert Rounding.of_facts({}) is None, "a ledger of before"
    assert Rounding.of_facts({"kernels": "other", "compiled": "true"}) is None


# --- A larger batch as a remedy: of a run that trains on some of the micro-batches that are drawn ---


BATCHES_HEAD = "name: batches\nobjective: gpt\nsteps: 60\n"
BODY = "axes: {{lr: {{values: [0.01, 3.0]}}}}\nfixed: {}\ntracking: {{enabled: false}}\n"
FIXED = {**SMALL["gpt"], "norm": None, "init": "fan_in", "batch_size": 8, "accumulate": 4}


@pytest.fixture
def lost(train: Callable, tmp_path: Path) -> Callable[..., Path]:
    """The folder of a sweep with a run that is lost, and that trains on so many micro-batches."""

    def made(**changes: float) -> Path:
        train(sweep_of(BODY.format(json.dumps({**FIXED, **changes})), BATCHES_HEAD))
        return tmp_path / "batches"

    return made


def test_twice_the_batch_is_tried_where_there_is_more_of_it(lost: Callable[..., Path]) -> None:
    folder = lost(micro_batches=2)
    found = find_remedies(folder, None, {}, RemedyRequest(at=("0",), replicates=1, pairs=False))
    assert found.control_repeats is True
    (twice,) = (one for one in found.tallies if one.remedy.name == "micro_batches x2")
    assert twice.tried == 1
    # The same change written as a number has the same result.
    asked = RemedyRequest(("micro_batches=4",), ("0",), 1, pairs=False)
    (written_out,) = (one for one in find_remedies(folder, None, {}, asked).tallies if one.remedy.entries)
    assert found.control is not None
    assert written_out.final_loss == twice.final_loss != found.control.final_loss
    assert twice.final_loss is not None


@pytest.mark.slow
def test_a_run_on_the_whole_batch_has_no_more_of_it(lost: Callable[..., Path]) -> None:
    folder = lost()
    found = find_remedies(folder, None, {}, RemedyRequest(at=("0",), replicates=1, pairs=False))
    assert not any("micro_batches" in one.remedy.name for one in found.tallies)
    with pytest.raises(InputError, match="factor on micro_batches, which is null"):
        find_remedies(folder, None, {}, RemedyRequest(("micro_batches=x2",), ("0",), 1))


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


def test_forks_of_an_elastic_trial_have_the_largest_number_of_processes_each(tmp_path: Path) -> None:
    text = SWEEP.replace('"--seed={seed}"', '"--seed={seed}", "--parts={accumulation}"')
    row = frozen(tmp_path, f"{text}batch: {{global: 8, micro: 2}}\nresources: {{workers: {{min: 1, max: 2}}}}\n")
    sweep = fork_sweep(tmp_path, row, [Fork(HALF, 30, 0)], target=tmp_path / "no", steps=[36])
    packs = make_packs(sweep, sweep.trials, 1)
    assert {(pack.launch.workers, pack.launch.sizes) for pack in packs} == {(2, ())}
    assert {(trial.config["workers"], trial.config["accumulation"]) for trial in sweep.trials} == {(2, 2)}


def test_only_remedies_that_a_resumed_trainer_can_take_are_tried_by_default(tmp_path: Path) -> None:
    row = frozen(tmp_path)
    usual = [HALF, Remedy(({"at": 0, "skip": 5},)), Remedy(({"at": 0, "set": {"beta2": 0.9}},))]
    assert accepted_forks(tmp_path, row, [Fork(one, 0, 0) for one in usual]) == [Fork(HALF, 0, 0)]
    with pytest.raises(
        InputError, match="--try: skip 5: a custom trainer can be resumed with other values, but cannot"
    ):
        accepted_forks(tmp_path, row, [Fork(usual[1], 0, 0)], refuses=True)


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
