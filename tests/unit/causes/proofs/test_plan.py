"""Which forks are planned about a trial: one change each, from a step before the onset, with and without it."""

from collections.abc import Callable
from dataclasses import replace

import diagnosis_cases
import pytest

from objectives.base import OBJECTIVES, FunctionFitConfig, GptConfig
from orchestrator.causes.diagnosis import Diagnosis, rank
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.proofs.plan import key_of, plan_of
from orchestrator.causes.remedies.remedy import name_of


def diagnosis_of(name: str) -> Diagnosis:
    """The diagnosis of a made-up trial with one cause."""
    case: Callable[[], diagnosis_cases.Case] = getattr(diagnosis_cases, name)
    return rank(case().evidence(), "case", "made up")


FORKS = {
    "preconditioner_decay": ("optimizer sgd_like", False),
    "over_the_threshold": ("lr x", True),
    "sharpening": ("lr x", True),
    "short_memory": ("beta2 ", False),
    "epsilon_floor": ("eps ", False),
    "bad_batch": ("another batch at ", False),
    "half_precision_overflow": ("precision float64", False),
}


@pytest.mark.parametrize("name", FORKS)
def test_each_mechanism_has_a_fork_that_takes_it_away_before_the_onset(name: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.cause is not None
    assert diagnosis.cause.mechanism == name
    removal = MECHANISMS[name].removal(diagnosis.evidence, diagnosis.cause.began_step)
    words, changes_rate = FORKS[name]
    assert removal is not None
    assert (name_of(removal.entries) if removal.entries else "another batch at ").startswith(words)
    assert removal.changes_rate == changes_rate
    assert removal.step < diagnosis.evidence.until


@pytest.mark.parametrize("name", ["clipping_saturated", "norm_collapse", "half_precision_overflow"])
def test_what_acts_in_a_run_that_never_learned_is_taken_away_from_its_first_step(name: str) -> None:
    case = diagnosis_cases.calm("stalled", 0, {"clip": 1e-3, "weight_decay": 0.1, "precision": "bfloat16"})
    removal = MECHANISMS[name].removal(case.evidence(), 0)
    assert removal is not None
    assert removal.step == 0


def test_a_higher_rate_proves_too_low_a_rate_only_next_to_the_evidence() -> None:
    removal = MECHANISMS["learning_rate_too_low"].removal(diagnosis_cases.calm("stalled", 0).evidence(), 0)
    assert removal is not None
    assert removal.changes_rate


@pytest.mark.parametrize(("lower", "factor", "may_remain"), [(1.2, 0.2, False), (None, 0.1, True)])
def test_without_readings_the_calm_rate_is_below_one_that_the_sweep_shows_to_be_stable(
    lower: float | None, factor: float, may_remain: bool
) -> None:
    calm = diagnosis_cases.calm("diverged", 35, {"lr": 3.0, "warmup": 40}, steps_done=120)
    case = diagnosis_cases.risen(calm, 35, 50.0).without_telemetry().sister("diverged", lr=1.5)
    evidence = (case if lower is None else case.sister("stable", lr=lower)).evidence()
    removal = MECHANISMS["over_the_threshold"].removal(evidence, None)
    assert removal is not None
    assert removal.entries[0]["set"] == {"lr": f"x{factor:g}"}
    assert removal.may_remain == may_remain


@pytest.mark.parametrize(("own", "chosen"), [(0.5, 50.0), (None, 100.0), (0.0, 1.0)])
def test_layers_that_stand_still_get_the_learning_rate_at_which_they_move_as_the_others(
    own: float | None, chosen: float | None
) -> None:
    """A rate of the embeddings that holds the run back (arXiv 2605.21486)."""
    settings = {} if own is None else {"embedding_lr": own}
    case = diagnosis_cases.calm("diverged", 300, settings).reading(
        update_to_weight__embedding=1e-5, update_to_weight__attention=1e-3,
        update_to_weight__mlp=1e-3, update_to_weight__head=1e-3,
    )  # fmt: skip
    removal = MECHANISMS["layers_out_of_step"].removal(case.evidence(), 100)
    assert (removal and removal.entries) == (chosen and ({"at": 0, "set": {"embedding_lr": chosen}},))


def test_a_warmup_that_outlasts_the_run_is_no_fork_as_it_is_a_low_rate() -> None:
    case = diagnosis_cases.warmup_too_short()
    for beta2, is_tried in ((0.98, True), (0.999, False)):
        row = replace(case.row, config={**case.row.config, "beta2": beta2})
        removal = MECHANISMS["warmup_too_short"].removal(replace(case, row=row).evidence(), None)
        assert (removal is not None) == is_tried


def test_forks_with_and_without_a_mechanism_have_the_same_other_data() -> None:
    diagnosis = diagnosis_of("preconditioner_decay")
    trial = replace(diagnosis.trial, config={**GptConfig(steps=diagnosis.trial.steps).model_dump()})
    diagnosis = replace(diagnosis, evidence=replace(diagnosis.evidence, trial=trial))
    plan = plan_of(diagnosis, OBJECTIVES["gpt"], 3)
    own = next(each for each in plan.experiments if each.mechanism == "preconditioner_decay")
    assert own.name == FORKS["preconditioner_decay"][0]
    assert [entry for fork in own.controls for entry in fork.entries] == [
        {"at": own.removal.step, "data": number} for number in (1, 2, 3)
    ]
    assert [fork.entries[0] for fork in own.without] == [fork.entries[0] for fork in own.controls]
    assert {fork.entries[1]["optimizer"] for fork in own.without} == {"sgd_like"}


def test_a_second_moment_that_no_reading_shows_to_be_large_enough_refutes_nothing_where_it_stands_still() -> None:
    case = diagnosis_cases.preconditioner_decay()
    remove = MECHANISMS["preconditioner_decay"].removal
    removals = [remove(each.evidence(), 200) for each in (case, case.without_telemetry())]
    assert [removal.may_remain for removal in removals] == [False, True]


def test_where_all_steps_see_the_same_data_replicates_take_one_longer_step() -> None:
    diagnosis = diagnosis_of("preconditioner_decay")
    config = {**FunctionFitConfig(steps=diagnosis.trial.steps).model_dump()}
    diagnosis = replace(diagnosis, evidence=replace(diagnosis.evidence, trial=replace(diagnosis.trial, config=config)))
    plan = plan_of(diagnosis, OBJECTIVES["function_fit"], 2)
    controls = plan.experiments[0].controls
    assert [fork.entries[0]["set"] for fork in controls] == [{"lr": "x1.01"}, {"lr": "x1.02"}]
    assert {fork.entries[0]["lasts"] for fork in controls} == {1}


def test_a_fork_that_the_settings_refuse_is_not_tried() -> None:
    diagnosis = diagnosis_of("preconditioner_decay")
    config = {**GptConfig(steps=diagnosis.trial.steps, optimizer="radam").model_dump()}
    diagnosis = replace(diagnosis, evidence=replace(diagnosis.evidence, trial=replace(diagnosis.trial, config=config)))
    plan = plan_of(diagnosis, OBJECTIVES["gpt"], 2)
    assert "preconditioner_decay" in [finding.mechanism for finding in plan.untried]
    assert "preconditioner_decay" not in [each.mechanism for each in plan.experiments]


def test_only_the_router_is_open_in_a_run_whose_loss_was_calm() -> None:
    case = diagnosis_cases.calm("stable", None, {"clip": 1e-3}, collapsed_step=100)
    diagnosis = rank(case.reading(router_dead=7.0).evidence(), "case", "made up")
    assert "clipping_saturated" in [finding.mechanism for finding in diagnosis.of("supported")]
    trial = replace(diagnosis.trial, config={**GptConfig(steps=diagnosis.trial.steps, clip=1e-3).model_dump()})
    diagnosis = replace(diagnosis, evidence=replace(diagnosis.evidence, trial=trial))
    plan = plan_of(diagnosis, OBJECTIVES["gpt"], 2)
    assert plan.experiments == ()
    assert [finding.mechanism for finding in plan.untried] == ["router_collapse"]


def test_the_loads_of_a_model_are_balanced_from_the_start() -> None:
    case = diagnosis_cases.calm("stable", None, collapsed_step=100)
    removal = MECHANISMS["router_collapse"].removal(case.evidence(), 100)
    assert removal is not None
    assert (removal.step, removal.entries) == (0, ({"at": 0, "set": {"balance_weight": 1.0}},))


def test_interventions_that_mean_the_same_have_one_key() -> None:
    first, later = {"at": 3, "data": 2}, {"at": 9, "set": {"lr": "x0.50"}}
    assert key_of([first, later]) == key_of([later | {"set": {"lr": "x.5"}}, first | {"skip": 0}])
    assert key_of([first]) != key_of([first | {"data": 3}])
