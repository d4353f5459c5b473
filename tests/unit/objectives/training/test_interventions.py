"""Members that change in mid-run, beside plain loops over one run with an optimizer of torch."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand_cases import SIZE, Hand, by_hand, with_interventions
from curve_cases import assert_resumes, assert_same, curves, joined, of_member, trained_as_alone
from pack_cases import trainer_of
from tiers import one_of

from objectives.base import FunctionFitConfig, GptConfig, QuadraticConfig, RowSpec, TrainingConfig, data_seed, data_step
from objectives.interventions import in_force
from objectives.optimizers.facts import OPTIMIZERS
from objectives.training.members import Changes
from objectives.training.packed import PackedTrainer

STEPS = 40

# What one entry may do, at step 12 of 40: ramps are in progress at the steps around which the tests stop.
KINDS: dict[str, list[dict[str, Any]]] = {
    "lr": [{"at": 12, "set": {"lr": "x0.5"}}],
    "ramp": [{"at": 12, "set": {"lr": "x0.25", "beta1": 0.5}, "over": 8}],
    "there and back": [{"at": 12, "set": {"lr": "x4"}, "over": 4, "lasts": 9}],
    "layers": [{"at": 12, "set": {"lr": 0.003}, "over": 9}, {"at": 16, "set": {"lr": "x2", "eps": 1e-3}, "over": 4}],
    "clip": [{"at": 12, "set": {"clip": 1e-3}}, {"at": 14, "set": {"clip": "x3"}, "lasts": 9}],
    "zclip": [{"at": 12, "set": {"zclip": 0.2}, "lasts": 9}, {"at": 30, "set": {"zclip": 2.0}}],
    "adagc": [{"at": 12, "set": {"adagc": 1.05}}],
    "decay": [{"at": 12, "set": {"weight_decay": 0.5}, "over": 6}],
    "moments": [{"at": 12, "reset": "moments"}],
    "first moment": [{"at": 12, "reset": "first_moment"}],
    "second moment": [{"at": 12, "reset": "second_moment"}],
    "rescale": [{"at": 12, "rescale": 4.0}],
    "skip": [{"at": 12, "skip": 3}, {"at": 17, "skip": 1}],
    "data": [{"at": 12, "data": 2}],
    "other data for a while": [{"at": 12, "data": "other", "lasts": 12}],
    "the same data": [{"at": 12, "data": "same", "lasts": 12}],
    "freeze": [{"at": 12, "freeze": "output"}],
    "freeze and stop": [{"at": 12, "freeze": "input", "moments": "stop", "lasts": 12}],
    "decay of a group": [{"at": 12, "weight_decay": 0.5, "group": "input"}],
    "norm": [{"at": 12, "norm": "hold", "group": "output", "lasts": 12}, {"at": 16, "norm": "hold"}],
    "sgd_like": [{"at": 12, "optimizer": "sgd_like", "lasts": 9}, {"at": 30, "optimizer": "sgd_like"}],
    "all at once": [
        {"at": 12, "set": {"lr": "x0.1", "beta2": 0.9}, "over": 5, "reset": "moments", "skip": 2, "data": 1},
        {"at": 0, "set": {"clip": 0.5}},
    ],
}


def config(interventions: Sequence[Mapping[str, Any]] = (), **changes: Any) -> FunctionFitConfig:
    defaults = {"steps": STEPS, "lr": 1e-2, "width": 16, "batch_size": 8, "warmup": 5, "schedule": "cosine"}
    defaults |= {"zclip_warmup": 2, "adagc_warmup": 2}
    return FunctionFitConfig(**{**defaults, **changes, "interventions": tuple(interventions)})


def pack(configs: Sequence[TrainingConfig], seeds: Sequence[int]) -> PackedTrainer:
    return trainer_of("function_fit", configs, seeds)


# Who is in the pack, where it stops and what it forks from.


ALL_KINDS = [config(), *map(config, KINDS.values())]


def test_a_member_of_a_pack_trains_as_it_would_alone() -> None:
    trained_as_alone(pack, ALL_KINDS, [k % 2 for k in range(len(ALL_KINDS))], STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_intervention_changes_training_from_its_step_on(kind: str) -> None:
    left, right = curves(pack([config()], [0]), STEPS), curves(pack([config(KINDS[kind])], [0]), STEPS)
    first = min(entry["at"] for entry in KINDS[kind])
    differs = (left["update_norm"] != right["update_norm"])[:, 0].nonzero()[:, 0]
    assert differs[0] >= first
    assert differs[0] <= first + 8
    assert len(differs) > 15


@pytest.mark.parametrize("stop", one_of(4, [0, 11, 12, 13, 15, 16, 20, 21, 22, 39]))
def test_a_pack_goes_on_from_a_checkpoint_to_the_bit(stop: int, tmp_path: Path) -> None:
    assert_resumes(pack, ALL_KINDS, [0] * len(ALL_KINDS), stop, STEPS, tmp_path)


@pytest.mark.parametrize("fork", one_of(3, [0, 5, 12]))
def test_a_fork_equals_the_run_that_had_the_interventions_from_the_start(fork: int) -> None:
    later = [config(entries) for kind, entries in KINDS.items() if kind != "all at once"]
    trainer = pack([config()], [1])
    before = curves(trainer, fork)
    trainer.arrange([RowSpec(config(), 1, 0), *(RowSpec(one, 1, 0) for one in later)])
    after = curves(trainer, STEPS - fork)
    for k, one in enumerate([config(), *later]):
        own = of_member(after, k)
        assert_same(joined(of_member(before, 0), own), curves(pack([one], [1]), STEPS))


def test_members_that_come_and_go_leave_the_interventions_of_the_others_alone() -> None:
    """The pack is rearranged before, at and within the ramps."""
    one, other = config(KINDS["there and back"]), config(KINDS["all at once"])
    trainer, found = pack([config(), one, other], [0, 1, 2]), []
    found.append(of_member(curves(trainer, 12), 1))
    trainer.arrange([RowSpec(other, 2, 2), RowSpec(one, 1, 1), RowSpec(one, 5, None)])
    found.append(of_member(curves(trainer, 2), 1))
    trainer.arrange([RowSpec(one, 1, 1), RowSpec(one, 5, 2)])
    found.append(of_member(curves(trainer, 26), 0))
    assert_same(joined(*found), curves(pack([one], [1]), STEPS))


def test_a_pack_without_interventions_reads_no_number_again() -> None:
    changes = Changes([config(), config()], [0, 3])
    nobody: Any = None
    assert [changes.before_step(step, nobody, []) for step in range(STEPS)] == [{}] * STEPS


def test_only_the_steps_of_a_change_read_numbers_again() -> None:
    one, read = config(KINDS["there and back"]), []
    trainer = pack([config(), one], [0, 0])
    renew = trainer.optimizer.renew
    trainer.optimizer.renew = lambda rows, configs: (read.append((trainer.num_steps, rows)), renew(rows, configs))
    curves(trainer, STEPS)
    changed = [step for entry in one.interventions for span in entry.spans() for step in span if step < one.steps]
    assert read == [(step, [1]) for step in sorted({0, *changed})]


# The same changes, written by hand.


def _lr(step: int, optimizer: Any, weight: Any) -> None:
    if step == 10:
        optimizer.param_groups[0]["lr"] *= 0.5


def _numbers(step: int, optimizer: Any, weight: Any) -> None:
    group = optimizer.param_groups[0]
    if step == 10:
        group.update(betas=(0.5, 0.9), eps=1e-3, weight_decay=0.2)
    if step == 20:
        group.update(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)


def _ramp(step: int, optimizer: Any, weight: Any) -> None:
    if 10 <= step <= 14:
        optimizer.param_groups[0]["lr"] = 0.01 + (step - 9) / 5 * (0.002 - 0.01)


def _clip(step: int, optimizer: Any, weight: Any) -> None:
    if 10 <= step < 20:
        torch.nn.utils.clip_grad_norm_([weight], 0.3)


def _moments(step: int, optimizer: Any, weight: Any) -> None:
    if step == 10:
        optimizer.state.clear()


def _first(step: int, optimizer: Any, weight: Any) -> None:
    if step == 10:
        optimizer.state[weight]["exp_avg"].zero_()


def _second(step: int, optimizer: Any, weight: Any) -> None:
    if step == 10:
        optimizer.state[weight]["exp_avg_sq"].zero_()


def _rescale(step: int, optimizer: Any, weight: Any) -> None:
    if step == 10:
        optimizer.state[weight]["exp_avg_sq"].mul_(4.0)


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        ({"set": {"lr": "x0.5"}}, _lr),
        ({"set": {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.2}, "lasts": 10}, _numbers),
        ({"set": {"lr": 0.002}, "over": 4}, _ramp),
        ({"set": {"clip": 0.3}, "lasts": 10}, _clip),
        ({"reset": "moments"}, _moments),
        ({"reset": "first_moment"}, _first),
        ({"reset": "second_moment"}, _second),
        ({"rescale": 4.0}, _rescale),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_intervention_is_the_same_change_by_hand_in_torch(entry: Mapping[str, Any], change: Hand) -> None:
    own = TrainingConfig(steps=STEPS, lr=0.01, weight_decay=0.1, interventions=({"at": 10, **entry},))
    grads = torch.randn(STEPS, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = by_hand(own, grads, change)
    torch.testing.assert_close(with_interventions(own, grads), expected, rtol=1e-11, atol=1e-13)
    unchanged = by_hand(own, grads, lambda *_: None)
    assert not torch.allclose(unchanged[10], expected[10], rtol=1e-6, atol=0)


# States.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_moments_that_an_optimizer_says_it_has_are_states_of_its_rule(name: str) -> None:
    trainer = pack([config(optimizer=name)], [0])
    facts = OPTIMIZERS[name]
    states = {*trainer.optimizer.rule.state_sizes()}
    # In 8 bits a weight has one of two kinds of state, and Adafactor one kind for vectors and one for matrices.
    partial = name in ("adam8bit", "adafactor")
    for moments in (facts.first_moments, facts.second_moments):
        assert not moments or (states & {*moments} if partial else {*moments} <= states)
    undeclared = [state for state in states if "moment" in state] if not partial else []
    assert {*undeclared} <= {*facts.first_moments, *facts.second_moments}


@pytest.mark.parametrize("start", ["zero", "first_gradient", "random", "data"])
def test_after_a_reset_of_moments_the_optimizer_is_as_new(start: str) -> None:
    """But for the schedule, which goes on: here it is constant."""
    own = config([{"at": 12, "reset": "moments"}], warmup=0, schedule="constant", second_moment_start=start)
    # The new one begins with the parameters and the data of the other.
    ahead = config([{"at": 0, "skip": 12}], warmup=0, schedule="constant", second_moment_start=start)
    trainer, new = pack([own], [3]), pack([ahead], [3])
    curves(trainer, 12)
    new.load_state_dict(new.state_dict() | {"params": trainer.state_dict()["params"]})
    assert_same(curves(new, 10), curves(trainer, 10))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if OPTIMIZERS[name].second_moments])
def test_a_second_moment_four_times_as_large_makes_shorter_steps(name: str) -> None:
    settings = {"optimizer": name, "warmup": 0, "schedule": "constant", "lr": 1e-3}
    left = curves(pack([config(**settings)], [0]), 25)["update_norm"]
    right = curves(pack([config([{"at": 22, "rescale": 4.0}], **settings)], [0]), 25)["update_norm"]
    assert torch.equal(left[:22], right[:22])
    if name in ("adamw", "radam", "adabelief", "stableadamw", "spam", "adam8bit"):
        assert 0.4 < (right[22] / left[22]).item() < 0.75
    else:
        assert right[22] <= left[22]


# Data.


def test_skipped_batches_are_left_out_and_another_stream_has_other_batches() -> None:
    own = QuadraticConfig(steps=30, noise=1.0, interventions=({"at": 4, "skip": 3}, {"at": 8, "data": 2}))
    trainer = trainer_of("quadratic", [own], [5])
    seen = []
    for _ in range(12):
        trainer.step()
        seen += [(seed, step - 1) for seed, step in trainer.cohorts()]
    other = data_seed(own, 5, 8)
    assert [step for _, step in seen] == [0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14]
    assert [seed for seed, _ in seen] == [5] * 8 + [other] * 4
    assert other not in (5, data_seed(own.model_copy(update={"interventions": (own.interventions[1],)}), 6, 8))
    assert [data_step(own, step, 0) for step in range(12)] == [step for _, step in seen]


def test_the_numbers_in_force_at_the_end_of_a_ramp_are_those_that_were_written() -> None:
    own = config(KINDS["there and back"])
    assert [in_force(own, step).lr for step in (11, 16, 20, 25, 39)] == [0.01, 0.04, 0.04, 0.01, 0.01]
    assert [round(in_force(own, step).lr, 12) for step in (12, 13, 21, 22)] == [0.016, 0.022, 0.034, 0.028]


# Layer groups, and optimizers of a library.


def test_factors_of_layer_groups_change_in_mid_run_for_their_member_alone() -> None:
    """Also where no member had any before, and back to none."""
    small = {"steps": 20, "width": 8, "heads": 2, "context": 8, "batch_size": 2, "depth": 1, "lr": 1e-2}
    entries = [
        ({"at": 6, "set": {"embedding_lr": 0.0, "head_lr": "x0.5"}, "lasts": 6},),
        ({"at": 6, "set": {"embedding_grad": 0.1}, "over": 3},),
        (),
    ]
    configs = [GptConfig(**small, interventions=each) for each in entries]
    trainer = trainer_of("gpt", configs, [0, 0, 0])
    for step in range(20):
        before = trainer.weights["embedding"].detach().clone()
        trainer.step()
        is_still = [torch.equal(*pair) for pair in zip(before, trainer.weights["embedding"], strict=True)]
        assert is_still == [6 <= step < 12, False, False]
    trained_as_alone(partial(trainer_of, "gpt"), configs, [0, 0, 0], 20)


@pytest.mark.parametrize("stop", one_of(4, [9, 10, 12, 25]))
def test_an_optimizer_of_a_library_takes_numbers_and_a_new_start_and_resumes(stop: int, tmp_path: Path) -> None:
    entries = ({"at": 10, "set": {"lr": "x0.5", "beta1": 0.5, "eps": 1e-3}, "over": 4}, {"at": 20, "reset": "moments"})
    own = config(entries, optimizer="torch.optim.AdamW", warmup=0, schedule="constant")
    same = config(entries, warmup=0, schedule="constant")
    found, expected = curves(pack([own], [0]), STEPS), curves(pack([same], [0]), STEPS)
    for name in ("loss", "update_norm", "lr"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-8, atol=1e-12)
    assert_resumes(pack, [own], [0], stop, STEPS, tmp_path)
