"""Rules of control: a member with them trains as one with the same interventions written by hand, to the bit."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curve_cases import assert_resumes, assert_same, curves, joined, of_member, trained_as_alone
from pack_cases import SMALL, trainer_of
from tiers import thinned

from objectives.base import OBJECTIVES, FunctionFitConfig, GptConfig, RowSpec, TrainingConfig
from objectives.optimizers.facts import OPTIMIZERS
from objectives.training.controller import Controller
from objectives.training.packed import PackedTrainer
from orchestrator.worker.members import first_difference

Rules = Sequence[Mapping[str, Any]]
STEPS = 60
HALVE: Mapping[str, Any] = {"do": {"lr": "x0.5"}, "every": 3, "at_most": 3, "cool_down": 5}

# With these each signal fires at some of 60 steps of the run below, and each action is done.
KINDS: dict[str, Rules] = {
    "step": [{**HALVE, "on": "step", "above": 9, "over": 7}],
    "loss": [{**HALVE, "on": "loss", "above": 0.3, "lasts": 9}],
    "grad norm": [{**HALVE, "on": "grad_norm", "above": 0.4, "over": 4, "lasts": 9}],
    "curvature": [{**HALVE, "on": "curvature", "above": 0.008, "readings": 2}],
    "along gradient": [{**HALVE, "on": "curvature_along_gradient", "above": 0.006}],
    "v lag": [{**HALVE, "on": "v_lag", "above": 0.05, "do": {"beta2": 0.9, "eps": "x10"}}],
    "quantile": [{"on": "grad_norm", "above": 0.1, "do": {"clip_to_quantile": 0.3}, "every": 7, "at_most": 3}],
    "graded": [
        {**HALVE, "on": "step", "above": 11, "do": [{"skip": 2}, {"reset": "second_moment"}, {"rescale": 4.0}]},
    ],
    "zclip": [{**HALVE, "on": "step", "above": 20, "do": {"zclip": 0.5, "weight_decay": 0.5}, "lasts": 8}],
    "mean": [
        {**HALVE, "on": "step", "above": 13, "do": [{"mean": 3, "apart": 4}, {"mean": 2, "apart": 4, "lr": "x0.5"}]},
    ],
    "two rules": [
        {**HALVE, "on": "curvature", "above": 0.006, "every": 4, "at_most": 2},
        {**HALVE, "on": "step", "above": 0, "do": {"reset": "moments"}, "after": 24, "at_most": 1},
        {**HALVE, "on": "curvature_along_gradient", "above": 0.005, "every": 2, "at_most": 2, "over": 2},
    ],
}  # fmt: skip


def config(rules: Rules = (), **changes: Any) -> FunctionFitConfig:
    settings = {"steps": STEPS, "lr": 2e-2, "width": 16, "batch_size": 8, "warmup": 5, "schedule": "cosine"}
    settings |= {"zclip_warmup": 2}
    return FunctionFitConfig(**{**settings, **changes, "control": tuple(rules)})


def pack(configs: Sequence[TrainingConfig], seeds: Sequence[int], objective: str = "function_fit") -> PackedTrainer:
    trainer = trainer_of(objective, configs, seeds)
    assert isinstance(trainer, PackedTrainer)
    return trainer


def by_hand(own: TrainingConfig, fired: Sequence[Mapping[str, Any]]) -> TrainingConfig:
    """``own`` without rules, with what they did among its interventions: as a sweep file would give it."""
    written = [*(entry.model_dump() for entry in own.interventions), *(one["did"] for one in fired)]
    return type(own).model_validate({**own.model_dump(), "control": [], "interventions": written}, strict=False)


@cache
def without_rules() -> dict[str, torch.Tensor]:
    return curves(pack([config()], [1]), STEPS)


# By hand, alone, resumed, forked.


# One kind of each form; all of them are in the packs below.
@pytest.mark.parametrize("kind", thinned(KINDS, lambda kind: kind in ("grad norm", "graded", "mean", "two rules")))
def test_training_with_rules_is_training_with_the_same_interventions_written_by_hand(kind: str) -> None:
    own = config(KINDS[kind])
    trainer = pack([own], [1])
    found = curves(trainer, STEPS)
    fired = trainer.fired(0)
    assert fired, "nothing fired, so nothing is compared"
    assert_same(found, curves(pack([by_hand(own, fired)], [1]), STEPS))
    plain = without_rules()
    first = fired[0]["did"]["at"]
    assert torch.equal(found["update_norm"][:first], plain["update_norm"][:first])
    assert not torch.equal(found["update_norm"], plain["update_norm"])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_on_every_objective_rules_do_what_the_interventions_by_hand_do(objective: str) -> None:
    rules = (
        {"on": "grad_norm", "above": 0.5, "do": [{"lr": "x0.5"}, {"skip": 1}], "every": 5, "at_most": 2, "over": 3},
        {"on": "curvature_along_gradient", "above": 0.0, "do": {"weight_decay": 0.1}, "every": 6},
    )
    settings = {**SMALL[objective], "steps": 30, "lr": 1e-2}
    own = OBJECTIVES[objective].config_class(**settings, control=rules)
    trainer = pack([own, own], [0, 3], objective)
    found = curves(trainer, 30)
    for k, seed in enumerate((0, 3)):
        assert {one["rule"] for one in trainer.fired(k)} == {1, 2}
        hand = pack([by_hand(own, trainer.fired(k))], [seed], objective)
        assert_same(of_member(found, k), curves(hand, 30))


def test_a_member_with_own_interventions_has_them_beside_what_its_rules_do() -> None:
    entries = ({"at": 20, "set": {"lr": "x0.1"}, "over": 5, "lasts": 20}, {"at": 34, "data": 1})
    own = config(KINDS["step"], interventions=entries)
    trainer = pack([own], [1])
    found = curves(trainer, STEPS)
    assert [one["did"]["at"] for one in trainer.fired(0)] == [13, 19, 25]
    assert_same(found, curves(pack([by_hand(own, trainer.fired(0))], [1]), STEPS))


def test_a_member_that_rolls_back_keeps_what_its_rules_did() -> None:
    blow = ({"at": 30, "set": {"lr": 1e300}, "lasts": 1},)
    own = config([{**KINDS["step"][0], "after": 26}], rollback=2, rollback_every=5, interventions=blow)
    trainer = pack([own], [0])
    found = curves(trainer, STEPS)
    assert found["rolled_back"].nonzero()[:, 0].tolist() == [31]
    assert [one["step"] for one in trainer.fired(0)] == [26, 32, 38]
    assert_same(found, curves(pack([by_hand(own, trainer.fired(0))], [0]), STEPS))


def test_a_mean_has_the_states_that_a_rollback_left() -> None:
    blow = ({"at": 30, "set": {"lr": 1e300}, "lasts": 1},)
    mean = {"on": "step", "above": 0, "after": 36, "do": {"mean": 4, "apart": 3}}
    own = config([mean], rollback=2, rollback_every=5, interventions=blow)
    trainer = pack([own], [0])
    found = curves(trainer, STEPS)
    assert found["rolled_back"].nonzero()[:, 0].tolist() == [31]
    assert [one["did"] for one in trainer.fired(0)] == [{"at": 37, "mean": 4, "apart": 3, "until": 33}]
    assert_same(found, curves(pack([by_hand(own, trainer.fired(0))], [0]), STEPS))


def test_a_rule_returns_to_the_mean_of_states_that_are_old_enough_to_be_known_as_good() -> None:
    states = []
    trainer = pack([config([{"on": "step", "above": 0, "after": 30, "do": {"mean": 3, "apart": 5}}])], [0])
    for _ in range(31):
        states.append(trainer.state_dict()["params"][0])
        trainer.step()
    (fired,) = trainer.fired(0)
    assert fired["did"] == {"at": 31, "mean": 3, "apart": 5, "until": 25}
    trainer._begin_step()
    expected = (states[15] + states[20] + states[25]) / 3
    torch.testing.assert_close(trainer.state_dict()["params"][0], expected, rtol=0, atol=1e-15)


def test_a_rule_with_a_mean_waits_until_there_are_two_states() -> None:
    trainer = pack([config([{"on": "step", "above": 0, "every": 1, "at_most": 9, "do": {"mean": 5}}])], [0])
    curves(trainer, 45)
    ends = [(one["did"]["at"], one["did"]["mean"], one["did"]["until"]) for one in trainer.fired(0)]
    assert ends == [(at, 2, 20) for at in range(30, 39)]


def test_members_part_before_the_first_state_that_a_rule_may_need() -> None:
    late = {"on": "step", "above": 0, "after": 40, "do": {"mean": 3, "apart": 5}}
    configs = [config(), config([late]), config([{"on": "step", "above": 0, "after": 44, "do": {"skip": 1}}])]
    assert first_difference(configs) == 25
    shared = pack([configs[1]], [0])
    before = curves(shared, 25)
    shared.arrange([RowSpec(own, 0, 0) for own in configs])
    after = curves(shared, STEPS - 25)
    for k, own in enumerate(configs):
        assert_same(joined(of_member(before, 0), of_member(after, k)), curves(pack([own], [0]), STEPS))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([{"apart": 5}], "give it mean too"),
        ([{"mean": 3, "apart": 5}, {"mean": 3}], "5 and 10 steps apart: choose one distance"),
        ([{"mean": 1}], "greater than or equal to 2"),
        ([{"mean": 3, "until": 20}], "no such field"),
    ],
)
def test_a_mean_of_a_rule_that_has_no_meaning_is_refused(changes: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config([{"on": "step", "above": 0, "at_most": 2, "do": changes}])


ALL_KINDS = [config(), *map(config, KINDS.values())]


def test_a_member_of_a_pack_trains_and_fires_as_it_would_alone() -> None:
    trained_as_alone(pack, ALL_KINDS, [k % 2 for k in range(len(ALL_KINDS))], STEPS)


def test_in_a_pack_of_transformers_curvature_is_read_with_the_same_bits_as_alone() -> None:
    rules = ({"on": "curvature", "above": 0.0, "do": {"lr": "x0.9"}, "every": 4, "at_most": 9},)
    configs = [GptConfig(**SMALL["gpt"], steps=30, lr=lr, control=rules) for lr in (1e-3, 3e-3, 1e-2)]
    trainer = trained_as_alone(partial(trainer_of, "gpt"), configs, [0, 1, 1], 30)
    assert all(len(trainer.fired(k)) > 3 for k in range(3))


@pytest.mark.parametrize("stop", thinned([1, 13, 14, 22], lambda stop: stop == 14))
def test_a_pack_goes_on_from_a_checkpoint_to_the_bit(stop: int, tmp_path: Path) -> None:
    """Before the first reading, between readings, at a firing, in its ramp and in its cool-down."""
    assert_resumes(pack, ALL_KINDS, [0] * len(ALL_KINDS), stop, STEPS, tmp_path)


def test_members_that_come_and_go_leave_the_rules_of_the_others_alone() -> None:
    """The pack is rearranged between readings, right after a firing, and within ramps and cool-downs."""
    one, other = config(KINDS["two rules"]), config(KINDS["grad norm"])
    trainer, found = pack([config(), one, other], [0, 1, 2]), []
    found.append(of_member(curves(trainer, 9), 1))
    trainer.arrange([RowSpec(other, 2, 2), RowSpec(one, 1, 1), RowSpec(one, 5, None)])
    found.append(of_member(curves(trainer, 4), 1))
    trainer.arrange([RowSpec(one, 1, 1), RowSpec(config(), 1, None), RowSpec(one, 5, 2)])
    found.append(of_member(curves(trainer, 14), 0))
    trainer.arrange([RowSpec(one, 1, 0)])
    found.append(curves(trainer, 33))
    alone = pack([one], [1])
    assert_same(joined(*found), curves(alone, STEPS))
    assert trainer.fired(0) == alone.fired(0)


@pytest.mark.parametrize("fork", thinned([0, 5, 14], lambda fork: fork == 14))
def test_a_fork_with_other_interventions_goes_on_with_the_rules_of_the_run(fork: int) -> None:
    own = config(KINDS["two rules"])
    later = own.model_copy(update={"interventions": config(interventions=({"at": 14, "skip": 3},)).interventions})
    trainer = pack([own], [1])
    before = curves(trainer, fork)
    trainer.arrange([RowSpec(own, 1, 0), RowSpec(later, 1, 0)])
    after = curves(trainer, STEPS - fork)
    for k, one in enumerate((own, later)):
        alone, whole = pack([one], [1]), of_member(after, k)
        expected = curves(alone, STEPS)
        assert_same(joined(of_member(before, 0), whole), expected)
        assert trainer.fired(k) == alone.fired(0)


def test_telemetry_changes_nothing_of_what_rules_read_and_do() -> None:
    configs = [config(KINDS["curvature"]), config(KINDS["v lag"])]
    watched, alone = pack(configs, [0, 0]), pack(configs, [0, 0])
    rows = [watched.observed_step([0, 1], [0, 1] if step % 2 else [], 3)[0] for step in range(STEPS)]
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    assert_same(found, curves(alone, STEPS))
    assert [watched.fired(k) for k in (0, 1)] == [alone.fired(k) for k in (0, 1)]


def test_rules_that_a_member_gets_in_mid_run_read_what_is_left_of_their_steps() -> None:
    trainer = pack([config()], [1])
    curves(trainer, 14)
    trainer.arrange([RowSpec(config([{"on": "step", "above": 0, "do": {"lr": "x0.5"}, "at_most": 9}]), 1, 0)])
    curves(trainer, STEPS - 14)
    assert [one["step"] for one in trainer.fired(0)] == [20, 30, 40, 50]


# What is read.


def test_the_signals_are_what_they_are_said_to_be() -> None:
    """Beside the curve, and beside telemetry of the same steps."""
    names = ("loss", "grad_norm", "v_lag", "curvature_along_gradient", "curvature")
    rules = [{"on": on, "above": 0, "do": {"lr": "x1"}, "every": 7, "at_most": 99} for on in names]
    trainer, seen, read = pack([config(rules, batch_size=None)], [0]), [], []
    for _ in range(STEPS):
        metrics, readings = trainer.observed_step([0], [0], 4)
        seen.append({name: float(metrics[name][0]) for name in ("loss", "grad_norm", "lr")})
        read.append({name: float(value[0]) for name, value in readings.items()})
    fired = {name: {one["step"]: one["value"] for one in trainer.fired(0) if one["on"] == name} for name in names}
    assert [*fired["curvature"]] == [*range(0, STEPS - 1, 7)]
    for name in ("loss", "grad_norm"):
        assert [*fired[name]] == [*range(14, STEPS - 1, 7)], "8 values come first"
        for step, value in fired[name].items():
            past = sorted(one[name] for one in seen[:step])
            assert value == pytest.approx(seen[step][name] / past[(len(past) - 1) // 2], rel=1e-12)
    for step, value in fired["v_lag"].items():
        assert value == pytest.approx(read[step]["v_lag/all"], rel=1e-9)
    for step, value in fired["curvature_along_gradient"].items():
        assert value == pytest.approx(read[step]["lambda_grad"] * seen[step]["lr"] / 2, rel=1e-9)
    # It starts from what the last reading of the rule found, seven steps before.
    for step, value in fired["curvature"].items():
        assert value == pytest.approx(read[step]["lambda_max"] * seen[step]["lr"] / 2, rel=0.02)


def test_a_rule_that_clips_to_a_quantile_writes_that_of_the_last_norms() -> None:
    trainer = pack([config(KINDS["quantile"])], [1])
    norms = curves(trainer, STEPS)["grad_norm"][:, 0].tolist()
    assert len(trainer.fired(0)) == 3
    for one in trainer.fired(0):
        past = sorted(norms[: one["step"]])
        assert one["did"]["set"]["clip"] == past[int(np.ceil(0.3 * len(past))) - 1]


def test_of_a_long_run_the_trend_has_the_last_64_values() -> None:
    rules = ({"on": "loss", "above": 0, "do": {"lr": "x1"}, "after": 140},)
    trainer = pack([config(rules, steps=150)], [0])
    losses = curves(trainer, 150)["loss"][:, 0].tolist()
    (one,) = trainer.fired(0)
    assert one["value"] == pytest.approx(losses[140] / sorted(losses[76:140])[31], rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_offers_the_signals_that_its_rule_can_give(name: str) -> None:
    own = config(optimizer=name)
    trainer = pack([own], [0])
    curves(trainer, 3)
    optimizer, row = trainer.optimizer, torch.tensor([0])
    assert ("curvature" in own.signals) == (optimizer.divisor(row) is not None)
    assert ("v_lag" in own.signals) == (optimizer.rule.second_moment(*optimizer.of_rows(row)) is not None)


def test_the_noise_scale_of_accumulated_batches_is_a_signal() -> None:
    rule = {"on": "noise_scale", "above": 0.0, "do": {"lr": "x0.5"}, "every": 1, "after": 5}
    own = GptConfig(**{**SMALL["gpt"], "batch_size": 8}, accumulate=4, steps=40, lr=1e-3, control=(rule,))
    trainer = pack([own], [0], "gpt")
    for step in range(40):
        before = trainer.fired(0)
        trainer.step()
        noise = trainer.signals()["noise_scale"]
        if trainer.fired(0) and not before:
            assert trainer.fired(0)[0] == {
                "step": step, "rule": 1, "on": "noise_scale", "value": float(noise[0]), "above": 0.0,
                "did": {"at": step + 1, "set": {"lr": "x0.5"}},
            }  # fmt: skip
            return
    pytest.fail("the noise scale was never known")


def test_falls_of_the_loss_scale_are_counted() -> None:
    rule = {"on": "loss_scale_falls", "above": 1, "do": {"lr": "x0.5"}, "every": 1}
    settings = {**SMALL["gpt"], "precision": "float16", "loss_scale": 2.0**40, "steps": 20, "lr": 1e-3}
    trainer = pack([GptConfig(**settings, control=(rule,))], [0], "gpt")
    found = curves(trainer, 20)
    assert found["is_skipped"][:5].sum() == 5, "the scale is far too large, so that it falls at each step"
    (one,) = trainer.fired(0)
    assert (one["step"], one["value"]) == (2, 2.0), "falls before the step that is read"


# When it fires.


def steps_fired(changes: Mapping[str, Any], num_steps: int = 60) -> list[int]:
    """The steps of the readings at which a rule on the step itself fires."""
    rule = {"on": "step", "above": 20, "do": {"lr": "x0.9"}, "at_most": 100, **changes}
    own = config([rule], steps=num_steps)
    controller, step = Controller([own], [0], torch.device("cpu")), 0
    nothing: Any = None
    for step in range(num_steps):
        controller.before_step(step, nothing)
        controller.after_step(nothing, {"loss": torch.ones(1), "grad_norm": torch.ones(1)})
    return [one["step"] for one in controller.fired[0]]


def test_a_rule_fires_at_its_readings_above_the_threshold_and_not_at_the_last_step() -> None:
    assert steps_fired({"every": 10}) == [30, 40, 50]
    assert steps_fired({"every": 10, "above": 29.5}) == [30, 40, 50]
    assert steps_fired({"every": 10, "after": 5}) == [25, 35, 45, 55]
    assert steps_fired({"every": 1})[-1] == 58
    assert steps_fired({"every": 10, "after": 58}) == [58]


def test_so_many_readings_in_a_row_must_be_above() -> None:
    assert steps_fired({"every": 5, "readings": 3}) == [35, 50]


def test_a_budget_and_a_cool_down_hold_a_rule_back() -> None:
    assert steps_fired({"every": 5, "at_most": 2}) == [25, 30]
    assert steps_fired({"every": 5, "cool_down": 10}) == [25, 40, 55]
    assert steps_fired({"every": 5, "cool_down": 11}) == [25, 40, 55]
    assert steps_fired({"every": 5, "cool_down": 4}) == [25, 30, 35, 40, 45, 50, 55]
    assert steps_fired({"every": 5, "cool_down": 9, "readings": 2}) == [30, 45]


def test_with_several_changes_each_firing_does_the_next_and_the_last_repeats() -> None:
    rule = {"on": "step", "above": 0, "do": [{"skip": 2}, {"lr": "x0.5"}], "every": 10, "at_most": 4, "over": 3}
    trainer = pack([config([rule])], [0])
    curves(trainer, STEPS)
    assert [one["did"] for one in trainer.fired(0)] == [
        {"at": 11, "skip": 2}, *({"at": at, "set": {"lr": "x0.5"}, "over": 3} for at in (21, 31, 41)),
    ]  # fmt: skip


def test_after_a_calm_the_first_change_is_next_again_and_the_budget_is_not() -> None:
    rule = {"on": "step", "above": 0, "do": [{"skip": 2}, {"lr": "x0.5"}], "every": 10, "at_most": 4, "calm": 15}
    trainer = pack([config([{**rule, "cool_down": 20}])], [0])
    curves(trainer, STEPS)
    assert [one["did"] for one in trainer.fired(0)] == [{"at": 11, "skip": 2}, {"at": 41, "skip": 2}]
    trainer = pack([config([rule])], [0])
    curves(trainer, STEPS)
    assert ["skip" in one["did"] for one in trainer.fired(0)] == [True, False, False, False]


def test_the_device_is_waited_for_at_readings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = Controller._read
    monkeypatch.setattr(Controller, "_read", lambda self, *given: read.append(1) or original(self, *given))
    curves(pack([config([{**HALVE, "on": "loss", "above": 1e9, "every": 20}]), config()], [0, 0]), STEPS)
    assert len(read) == 3
    curves(pack([config()], [0]), STEPS)
    assert len(read) == 3


def test_a_masked_member_fires_nothing() -> None:
    trainer = pack([config(KINDS["step"], lr=1e300, warmup=0)], [0])
    losses = curves(trainer, STEPS)["loss"]
    assert not torch.isfinite(losses[-1]).any()
    assert trainer.fired(0) == []
