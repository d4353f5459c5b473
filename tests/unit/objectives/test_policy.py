"""Rules in a training loop of one's own fire as those of a pack do, and their actions follow from the step alone."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from objectives.base import FunctionFitConfig
from objectives.control import Rule
from objectives.policy import Action, Policy
from objectives.training.controller import Controller

STEPS = 120
RULES: Sequence[Mapping[str, Any]] = (
    {"on": "loss", "above": 1.3, "do": [{"skip": 2}, {"lr": "x0.5"}], "every": 3, "at_most": 9, "calm": 12},
    {"on": "grad_norm", "above": 1.2, "readings": 2, "do": {"lr": "x0.8"}, "every": 2, "at_most": 5, "cool_down": 7},
    {"on": "grad_norm", "above": 1.5, "do": {"clip_to_quantile": 0.5}, "every": 5, "at_most": 3, "after": 4},
    {"on": "step", "above": 50, "do": {"lr": "x0.9"}, "every": 30, "over": 4},
)


def policy(*rules: Mapping[str, Any], steps: int | None = None) -> Policy:
    return Policy([Rule.model_validate(rule) for rule in rules], steps)


def actions(own: Policy, losses: Sequence[float], norms: Sequence[float] | None = None) -> list[Action]:
    found = []
    for step, loss in enumerate(losses):
        own.take(step, loss, None if norms is None else norms[step])
        found.append(own.action(step))
    return found


def noisy(seed: int) -> tuple[list[float], list[float]]:
    draw = np.random.default_rng(seed)
    losses, norms = draw.lognormal(0, 0.4, STEPS), draw.lognormal(0, 0.5, STEPS)
    losses[[40, 77]], norms[[41, 90]] = np.nan, np.inf
    return losses.tolist(), norms.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_rules_fire_in_a_loop_where_they_fire_in_a_pack(seed: int) -> None:
    losses, norms = noisy(seed)
    own = policy(*RULES, steps=STEPS - 1)  # a pack reads up to the last step but one
    actions(own, losses, norms)
    config = FunctionFitConfig(steps=STEPS, control=tuple(RULES))
    controller, nothing = Controller([config], [0], torch.device("cpu")), None
    for step in range(STEPS):
        controller.before_step(step, nothing)
        signals = {"loss": losses[step], "grad_norm": norms[step]}
        controller.after_step(
            nothing, {name: torch.tensor([value], dtype=torch.float64) for name, value in signals.items()}
        )
    in_pack = [{**one, "did": {**one["did"], "at": one["step"]}} for one in controller.fired[0]]
    assert len(in_pack) > 8
    assert own.fired == in_pack


def test_a_factor_comes_by_a_ramp_goes_back_and_multiplies_others() -> None:
    step_5 = {"on": "step", "above": 4, "every": 5, "do": {"lr": "x0.5"}, "over": 3, "lasts": 8}
    found = actions(policy(step_5), [1.0] * 25)
    assert [round(action.factor, 4) for action in found[4:10]] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert [round(action.factor, 4) for action in found[12:18]] == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]
    two = policy({**step_5, "at_most": 2, "over": 0, "lasts": None})
    assert [action.factor for action in actions(two, [1.0] * 12)][4::5] == [1.0, 0.5]
    assert two.action(11).factor == 0.25


def test_an_action_says_what_is_new_and_what_is_in_force() -> None:
    own = policy(
        {"on": "grad_norm", "above": 3, "every": 1, "do": [{"skip": 2}, {"lr": "x0.5", "clip": 0.7}], "at_most": 2}
    )
    norms = [1.0] * 10 + [8.0, 1.0, 1.0, 9.0, 1.0]
    found = actions(own, [1.0] * len(norms), norms)
    assert [action.kind for action in found[9:]] == ["none", "skip", "skip", "none", "change", "none"]
    assert [(action.factor, action.clip, action.skip) for action in found[12:]] == [
        (1.0, None, False), (0.5, 0.7, False), (0.5, 0.7, False),
    ]  # fmt: skip
    assert found[10].reason == "grad_norm 8 > 3"
    assert found[10].words == "skip 2 at 10 (grad_norm 8 > 3 at step 10)"
    assert found[11].words == found[11].reason == ""
    assert not any(found)


def test_the_loss_that_is_not_finite_goes_back_then_stops() -> None:
    own = policy({"on": "not_finite", "above": 0, "every": 1, "do": [{"back": 10}, {"stop": True}], "at_most": 2})
    losses = [1.0] * 20 + [math.nan, 1.0, math.inf, 1.0]
    found = actions(own, losses)
    assert (found[20].kind, found[20].rollback_to, found[20].skip) == ("rollback", 10, True)
    assert found[20].words == "back 10 at 20 (not_finite 1 > 0 at step 20)"
    assert [action.kind for action in found[21:]] == ["none", "stop", "stop"]
    assert [bool(action) for action in found[20:]] == [False, False, True, True]


def test_nothing_fires_without_a_checkpoint_to_go_back_to() -> None:
    rule = {"on": "not_finite", "above": 0, "every": 1, "do": {"back": 10}, "at_most": 5}
    early = policy(rule)
    assert not any(action.kind == "rollback" for action in actions(early, [1.0] * 5 + [math.nan]))
    own = policy(rule)
    assert own.take(12, math.nan, newest=lambda step: None) == []
    (fired,) = own.take(13, math.nan, newest=lambda step: step - 3)
    assert fired["did"] == {"at": 13, "back": 13}
    assert own.action(13).rollback_to == 0


def test_the_signals_of_telemetry_are_read_as_long_as_they_are_fresh() -> None:
    own = policy(
        {"on": "curvature", "above": 1, "every": 5, "do": {"lr": "x0.5"}, "at_most": 9},
        {"on": "v_lag", "above": 4, "every": 5, "do": {"skip": 1}, "at_most": 9},
    )
    assert own.asks_telemetry == ["curvature", "v_lag"]
    for step in range(30):
        own.take(step, 1.0)
        if step == 8:
            own.read(step, {"lambda_max": 30.0, "curvature_threshold": 20.0, "v_lag/all": 1.0})
        if step == 17:
            own.read(step, {"v_lag/all": 5.0})
    assert [(one["step"], one["on"], one["value"]) for one in own.fired] == [(10, "curvature", 1.5), (20, "v_lag", 5.0)]


@pytest.mark.parametrize("cut", [30, 41, 77, 90])
def test_a_run_that_resumes_goes_on_as_if_it_had_not_stopped(cut: int) -> None:
    losses, norms = noisy(1)
    whole = policy(*RULES)
    wanted = actions(whole, losses, norms)
    first, second = policy(*RULES), policy(*RULES)
    for step in range(cut):
        first.take(step, losses[step], norms[step])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found = []
    for step in range(cut, STEPS):
        second.take(step, losses[step], norms[step])
        found.append(second.action(step))
    assert found == wanted[cut:]
    assert second.fired == whole.fired
    assert [second.action(step) for step in range(cut)] == wanted[:cut]


def test_steps_that_are_repeated_count_without_firing_anew() -> None:
    losses, norms = noisy(2)
    whole = policy(*RULES)
    wanted = actions(whole, losses, norms)
    again = policy(*RULES)
    for step in range(60):
        own = [one for one in whole.fired if one["step"] == step]
        again.take(step, losses[step], norms[step], known=own)
    for step in range(60, STEPS):
        again.take(step, losses[step], norms[step])
    assert [again.action(step) for step in range(STEPS)] == wanted


def test_a_loop_that_reports_now_and_then_is_read_at_its_next_report() -> None:
    own = policy({"on": "step", "above": 0, "every": 4, "do": {"lr": "x0.5"}, "at_most": 9})
    for step in range(0, 40, 10):
        own.take(step, 1.0)
    assert [one["step"] for one in own.fired] == [10, 20, 30]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"do": {"lr": 0.1}}, "lr must be a factor such as x0.5"),
        ({"do": {"beta2": 0.9}}, "it cannot set beta2: there is no such field; these can change: lr, clip"),
        ({"do": {"reset": "moments"}}, "reset acts on the optimizers of built-in objectives only"),
        ({"do": {"rescale": 4.0}}, "rescale acts on"),
        ({"do": {"lr_by_gain": True}}, "lr_by_gain needs the gain"),
        ({"do": {"clip": "x0.5"}}, "a factor on clip, which is null"),
        ({"on": "noise_scale"}, "a training loop of your own does not have this signal; choose from step, loss"),
        ({"after": 200}, "first reads step 200, which is too late: steps = 100"),
    ],
)
def test_what_cannot_act_in_a_loop_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="control rule 1") as refused:
        policy({"on": "loss", "above": 2, "do": {"lr": "x0.5"}, **rule}, steps=100)
    assert words in str(refused.value)


def test_the_state_of_other_rules_is_refused() -> None:
    with pytest.raises(ValueError, match="of 4 rules, and there are 1"):
        policy(RULES[0]).load_state_dict(policy(*RULES).state_dict())
