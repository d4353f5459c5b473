"""Remedies that would change nothing in a trial are told from those that do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from diagnosis_cases import row_of
from remedy_cases import LOWER, SKIP

from objectives.base import OBJECTIVES
from orchestrator.base.errors import InputError
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.acting import acting, idle_because, refuse_idle
from orchestrator.causes.remedies.asking import remedies_of
from orchestrator.causes.remedies.remedy import Fork, Remedy

QUADRATIC, FIT, GPT = (OBJECTIVES[name] for name in ("quadratic", "function_fit", "gpt"))


def trial_of(objective: Any = QUADRATIC, **fields: Any) -> TrialResult:
    config = objective.config_class.model_validate({"steps": 100, **fields}, strict=False)
    return replace(row_of("diverged", 50, objective=objective.name), config=config.model_dump(mode="json"))


def why(text: str, step: int = 50, objective: Any = QUADRATIC, **fields: Any) -> str | None:
    (remedy,) = remedies_of([text])
    return idle_because(objective, trial_of(objective, **fields), Fork(remedy, step, 0))


def test_a_value_that_is_there_already_changes_nothing() -> None:
    assert why("lr=0.3", lr=0.3) == "lr is 0.3 already"
    assert why("lr=x1", lr=0.3) == "lr is 0.3 already"
    assert why("clip=none") == "clip is none already"
    assert why("clip=1", clip=None) is None
    assert why("lr=0.2", lr=0.3) is None
    assert why("lr=0.3+clip=1", lr=0.3) is None, "one of two acts"


def test_values_are_those_in_force_at_the_fork() -> None:
    halved = {"lr": 0.4, "interventions": [{"at": 20, "set": {"lr": "x0.5"}}]}
    assert why("lr=0.2", 50, **halved) == "lr is 0.2 already"
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
    (reset,) = remedies_of(["reset=moments"])
    forks = [Fork(remedy, step, 0) for step in (0, 50) for remedy in (LOWER, reset)]
    kept = refuse_idle(QUADRATIC, trial_of(), forks)
    assert [(fork.remedy.name, fork.step) for fork in kept] == [("lr x0.5", 0), ("lr x0.5", 50), ("reset moments", 50)]
    assert acting(QUADRATIC, trial_of(), forks) == kept
    with pytest.raises(InputError, match="skip 5: would change nothing: every step sees the same data") as refused:
        refuse_idle(QUADRATIC, trial_of(), [*forks, Fork(SKIP, 50, 0)])
    assert "remedy:" in str(refused.value)


def test_other_data_alone_is_no_remedy_that_could_be_idle() -> None:
    assert idle_because(QUADRATIC, trial_of(), Fork(Remedy(), 5, 1)) is None
