"""Steps that the kernel takes at once are the steps one by one, to the bit."""

import argparse

import pytest
import torch
from gpt_cases import KNOBS, SEEDS
from pack_cases import trainer_of

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.models.gpt import GptTrainer
from objectives.optimizers.packed_optimizer import PackedOptimizer

SHAPE = {"steps": 60, "width": 20, "heads": 2, "context": 24, "batch_size": 3, "depth": 2}
METRICS = ("loss", "grad_norm", "update_norm", "lr")


def pack_of(text, *of_members: dict, **shared) -> GptTrainer:
    configs = [GptConfig(text=text, **(SHAPE | {"warmup": 5} | shared | own)) for own in of_members]
    seeds = [SEEDS[k % len(SEEDS)] for k in range(len(configs))]
    return trainer_of("gpt", configs, seeds, ExecutionPlan(len(configs), kernels="native"))


def columns(metrics) -> dict[str, torch.Tensor]:
    return {name: torch.stack([step[name] for step in metrics]) for name in METRICS}


def assert_alike(at_once: GptTrainer, one_by_one: GptTrainer, found, expected) -> None:
    found, expected = columns(found), columns(expected)
    for name in METRICS:
        assert torch.equal(found[name].nan_to_num(7.0), expected[name].nan_to_num(7.0)), name
    for name, value in one_by_one.optimizer.live().items():
        assert torch.equal(at_once.optimizer.live()[name], value), name
    assert torch.equal(at_once._params_Kn, one_by_one._params_Kn)
    assert torch.equal(at_once.optimizer.lr_K, one_by_one.optimizer.lr_K)


CASES = {
    "knobs": KNOBS,
    "clipping and decay": [{"clip": 0.1, "weight_decay": 0.1}, {"clip": None}, {"clip": 1.0, "weight_decay": 0.0}],
    "other data": [{"corrupted": 0.3}, {"burst_at": 7, "burst_length": 3}, {"shift_at": 9}, {"shift_at": 30}],
    "a lost member": [{"lr": 1e-3}, {"lr": 1e30}, {"lr": 1e-3, "clip": None}],
    "a change in mid-run": [{"interventions": ({"at": 12, "set": {"lr": 0.01}},)}, {}],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["decoupled", "independent"])
def test_steps_at_once_are_steps_one_by_one(text, name, kind) -> None:
    shared = {"schedule": "cosine", "weight_decay_kind": kind}
    shared |= {"shift_text": (argparse.__file__,)} if name == "other data" else {}
    at_once, one_by_one = (pack_of(text, *CASES[name], **shared) for _ in range(2))
    assert at_once.optimizer.can_step_ahead
    # 35 steps need a second draw of positions in the middle.
    found = [metrics for count in (1, 35, 7) for metrics in at_once.steps_ahead(count)]
    assert_alike(at_once, one_by_one, found, [one_by_one.step() for _ in range(43)])


def test_readings_and_new_members_in_between_change_nothing(text) -> None:
    at_once, one_by_one = (pack_of(text, {"lr": 1e-3}, {"lr": 3e-3}, {"lr": 1e-2}) for _ in range(2))
    found = at_once.steps_ahead(3)
    found.append(at_once.observed_step([0, 2], [], 1)[0])
    assert_alike(at_once, one_by_one, found, [one_by_one.step() for _ in range(4)])
    for trainer in (at_once, one_by_one):
        rows = [RowSpec(trainer.configs[2], trainer.seeds[2], 2), RowSpec(trainer.configs[0], 5, None)]
        trainer.arrange(rows)
    found = at_once.steps_ahead(9)
    assert_alike(at_once, one_by_one, found, [one_by_one.step() for _ in range(9)])


@pytest.mark.parametrize("name", CASES)
def test_a_whole_step_of_the_kernel_is_the_step_in_parts(text, name) -> None:
    shared = {"shift_text": (argparse.__file__,)} if name == "other data" else {}
    whole, in_parts = (pack_of(text, *CASES[name], **shared) for _ in range(2))
    in_parts.optimizer.__class__ = PackedOptimizer
    assert_alike(whole, in_parts, whole.steps_ahead(15), [in_parts.step() for _ in range(15)])
    (found, observed), (expected, of_parts) = (trainer.observed_step([0, 1], [], 1) for trainer in (whole, in_parts))
    assert_alike(whole, in_parts, [found], [expected])
    for name, value in of_parts.items():
        assert torch.equal(observed[name].nan_to_num(7.0), value.nan_to_num(7.0)), name


def test_the_number_of_threads_changes_nothing(text) -> None:
    threads, packs = torch.get_num_threads(), [pack_of(text, *KNOBS) for _ in range(2)]
    expected = packs[0].steps_ahead(6)
    try:
        torch.set_num_threads(3)
        assert_alike(packs[1], packs[0], packs[1].steps_ahead(6), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "fields",
    [
        {"adagc": 1.1},
        {"zclip": 2.5},
        {"head_lr": 0.5},
        {"weight_decay_kind": "coupled", "weight_decay": 0.1},
        {"second_moment_start": "data"},
        {"rollback": 3},
        {"control": ({"on": "v_lag", "above": 0.05, "do": {"lr": "x0.5"}, "every": 2},)},
        {"accumulate": 3},
        {"optimizer": "lion"},
    ],
    ids=str,
)
def test_what_the_kernel_lacks_is_done_step_by_step(text, fields) -> None:
    at_once, one_by_one = (pack_of(text, fields | {"lr": 1e-3}, {"lr": 1e-2}, **fields) for _ in range(2))
    assert_alike(at_once, one_by_one, at_once.steps_ahead(4), [one_by_one.step() for _ in range(4)])
