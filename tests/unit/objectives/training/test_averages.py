"""Averages of weights: what they are, and that they change nothing else."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from curve_cases import assert_resumes, curves
from pack_cases import SMALL, assert_the_same, everyone, interrupted, pack_with, small_pack, trainer_of, whole

from objectives.base import OBJECTIVES, ExecutionPlan, RowSpec, TrainingConfig
from objectives.entries import Intervention
from objectives.training.packed import PackedTrainer
from orchestrator.worker import run as worker

AVERAGED = {"ema": 0.9, "merge_last": 4, "merge_every": 5}


def in_float64(steps: int, **changes: Any) -> PackedTrainer[Any]:
    """A small transformer in double precision."""
    kind = OBJECTIVES["gpt"]
    config = kind.config_of({**SMALL["gpt"], "steps": steps, **changes})
    trainer = kind.start([config], [0], "cpu", ExecutionPlan(1, float64=True))
    assert isinstance(trainer, PackedTrainer)
    return trainer


def weights_of(trainer: PackedTrainer[Any]) -> torch.Tensor:
    return trainer.state_dict()["params"]


def states_of(trainer: PackedTrainer[Any], steps: int) -> torch.Tensor:
    """The weights before and after each step, (T + 1, n)."""
    states = [weights_of(trainer)[0]]
    for _ in range(steps):
        trainer.step()
        states.append(weights_of(trainer)[0])
    return torch.stack(states)


def loss_with(trainer: PackedTrainer[Any], weights_n: torch.Tensor) -> float:
    state = trainer.state_dict()
    trainer.load_state_dict({**state, "params": weights_n[None].clone()})
    return float(trainer.validate([0])[0])


SGD = {"optimizer": "sgd", "beta1": 0.0, "lr": 0.5}


@pytest.mark.parametrize("share", ["ema", "last"])
def test_a_merge_of_states_equals_a_decay_of_the_updates(share: str) -> None:
    steps, decay, last, every = 20, 0.8, 4, 3
    trainer = in_float64(steps, **SGD, ema=decay, merge_last=last, merge_every=every)
    state_Tn = states_of(trainer, steps)
    if share == "ema":
        share_T = torch.tensor([(1 - decay) * decay ** (steps - t) for t in range(1, steps + 1)], dtype=torch.float64)
        share_T /= share_T.sum()
        found = trainer.averaged_losses([0])["ema_loss"]
    else:
        kept = [step for step in range(1, steps + 1) if step % every == 0][-last:]
        share_T = torch.tensor([float(t in kept) / last for t in range(1, steps + 1)], dtype=torch.float64)
        found = trainer.averaged_losses([0])["merged_loss"]
    factor_T = share_T.flip(0).cumsum(0).flip(0)  # w_i = the sum of c_j over j >= i
    decayed_n = state_Tn[0] + (factor_T[:, None] * state_Tn.diff(dim=0)).sum(0)
    merged_n = (share_T[:, None] * state_Tn[1:]).sum(0)
    torch.testing.assert_close(decayed_n, merged_n, rtol=0, atol=1e-12)
    assert float(found[0]) == pytest.approx(loss_with(trainer, decayed_n), abs=1e-12)


def test_the_averages_of_fewer_states_than_asked_for_are_of_those_there_are() -> None:
    trainer = in_float64(20, **SGD, ema=0.9, merge_last=4, merge_every=2)
    assert torch.isnan(trainer.averaged_losses([0])["merged_loss"]).all()
    state_Tn = states_of(trainer, 5)
    found = trainer.averaged_losses([0])
    assert torch.equal(weights_of(trainer)[0], state_Tn[5]), "measuring leaves the weights as they are"
    assert float(found["merged_loss"][0]) == pytest.approx(
        loss_with(trainer, (state_Tn[2] + state_Tn[4]) / 2), abs=1e-12
    )


@pytest.mark.parametrize("objective", ["gpt", "function_fit"])
def test_averages_do_not_touch_training(objective: str) -> None:
    plain, averaged = (small_pack(objective, [changes] * 2) for changes in ({}, AVERAGED))
    for _ in range(12):
        plain.step()
        averaged.step()
    assert torch.equal(weights_of(plain), weights_of(averaged))
    assert not plain.averaged_losses([0, 1])
    assert plain.state_dict()["memory"].keys() <= averaged.state_dict()["memory"].keys()


def test_a_member_is_averaged_in_a_pack_as_alone() -> None:
    changes = [{"lr": 1e-3, **AVERAGED}, {"lr": 3e-3, **AVERAGED, "ema": None}, {"lr": 1e-2, **AVERAGED, "ema": 0.5}]
    pack = small_pack("gpt", changes)
    for _ in range(20):
        pack.step()
    found = pack.averaged_losses(everyone(pack))
    assert torch.isnan(found["ema_loss"]).tolist() == [False, True, False]
    kind = OBJECTIVES["gpt"]
    for row, change in enumerate(changes):
        config = kind.config_of({**SMALL["gpt"], "steps": 100, **change})
        alone = kind.start([config], [row], "cpu", ExecutionPlan(1))
        assert isinstance(alone, PackedTrainer)
        for _ in range(20):
            alone.step()
        for name, loss in alone.averaged_losses([0]).items():
            assert torch.equal(loss[0], found[name][row])


def test_an_interrupted_pack_has_the_same_averages() -> None:
    changes = [AVERAGED, {**AVERAGED, "ema": 0.5, "lr": 3e-3}, {**AVERAGED, "lr": 1e-2}]
    pack = replace(pack_with("gpt", changes, width=2, seeds=[0, 0, 1]), checkpoint_steps=1)
    expected = whole(list(worker.run_pack(pack)))
    assert all(result.merged_loss and result.ema_loss for result in expected[0].values())
    kept, rest = interrupted(pack, 2)
    assert_the_same(whole([*kept, *worker.run_pack(rest)]), expected)


MEAN = {"at": 12, "mean": 3, "apart": 4}


def test_a_return_to_a_mean_replaces_the_weights_and_nothing_else() -> None:
    trainer = in_float64(20, lr=1e-2, interventions=[MEAN])
    state_Tn = states_of(trainer, 12)
    before = trainer.state_dict()["optimizer"]
    trainer._begin_step()
    torch.testing.assert_close(
        weights_of(trainer)[0], (state_Tn[4] + state_Tn[8] + state_Tn[12]) / 3, rtol=0, atol=1e-15
    )
    after = trainer.state_dict()["optimizer"]
    for name, value in before["states"].items():
        assert torch.equal(value, after["states"][name])


def test_a_fork_returns_to_the_states_that_it_shared() -> None:
    config = OBJECTIVES["gpt"].config_of({**SMALL["gpt"], "steps": 40})
    fork = OBJECTIVES["gpt"].config_of({**SMALL["gpt"], "steps": 40, "interventions": [MEAN]})
    alone, pack = start(fork), start(config)
    for step in range(20):
        if step == MEAN["at"] - 8:
            pack.arrange([RowSpec(config, 0, 0), RowSpec(fork, 0, 0)])
        alone.step()
        pack.step()
    assert torch.equal(weights_of(pack)[1], weights_of(alone)[0])
    assert not torch.equal(weights_of(pack)[0], weights_of(alone)[0])


def start(config: TrainingConfig) -> PackedTrainer[Any]:
    trainer = OBJECTIVES["gpt"].start([config], [0], "cpu", ExecutionPlan(1))
    assert isinstance(trainer, PackedTrainer)
    return trainer


def test_members_that_will_return_to_a_mean_train_as_alone_and_resume() -> None:
    changes = [{}, *({"interventions": (Intervention(**entry),)} for entry in (MEAN, {"at": 14, "skip": 2}))]
    together = replace(pack_with("gpt", changes, width=3, seeds=[0, 0, 0]), checkpoint_steps=1)
    expected = whole(list(worker.run_pack(together)))
    alone = whole(list(worker.run_pack(pack_with("gpt", [changes[1]], width=1, seeds=[0]))))
    assert (expected[1]["trial1"] == alone[1]["trial0"]).all()
    kept, rest = interrupted(together, 2)
    assert_the_same(whole([*kept, *worker.run_pack(rest)]), expected)


@pytest.mark.parametrize("stop", [5, 8, 13])
def test_a_pack_resumes_amid_the_states_of_its_means_to_the_bit(stop: int, tmp_path: Path) -> None:
    overlapping = [MEAN, {"at": 16, "mean": 3, "apart": 3, "until": 13}]
    by_rule = [{"on": "step", "above": 0, "after": 13, "do": {"mean": 3, "apart": 4}}]
    changes = [{}, {"interventions": [MEAN]}, {"interventions": overlapping}, {"control": by_rule}]
    configs = [OBJECTIVES["quadratic"].config_of({**SMALL["quadratic"], "steps": 20, **change}) for change in changes]
    first = trainer_of("quadratic", configs, [0, 1, 2, 3])
    curves(first, stop)
    assert first.state_dict()["memory"]["restart_sums"][1:3].any(dim=(1, 2)).tolist() == [stop < 13, True]
    assert_resumes(partial(trainer_of, "quadratic"), configs, [0, 1, 2, 3], stop, 20, tmp_path)


def test_returns_whose_states_overlap_have_a_sum_each(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"at": 12, "mean": 3, "apart": 4}, {"at": 16, "mean": 3, "apart": 3, "until": 13}]
    trainer = in_float64(20, lr=1e-2, interventions=entries)
    inner, came, left = trainer._restarts.before_step, [], []

    def before_step(num_steps: int, changed: Iterable[int]) -> None:
        came.append(weights_of(trainer)[0])
        inner(num_steps, changed)
        left.append(weights_of(trainer)[0])

    monkeypatch.setattr(trainer._restarts, "before_step", before_step)
    for _ in range(17):
        trainer.step()
    torch.testing.assert_close(left[12], (left[4] + left[8] + came[12]) / 3, rtol=0, atol=1e-15)
    torch.testing.assert_close(left[16], (left[7] + left[10] + left[13]) / 3, rtol=0, atol=1e-15)
    assert [step for step in range(17) if not torch.equal(came[step], left[step])] == [12, 16]


def test_a_mean_needs_states_before_its_step() -> None:
    with pytest.raises(ValueError, match="choose a later step"):
        OBJECTIVES["gpt"].config_of({"steps": 40, "interventions": [{"at": 5, "mean": 3, "apart": 4}]})
    with pytest.raises(ValueError, match="that is for its mean"):
        OBJECTIVES["gpt"].config_of({"steps": 40, "interventions": [{"at": 5, "skip": 3, "apart": 4}]})
    with pytest.raises(ValueError, match="whose states are not after 30"):
        OBJECTIVES["gpt"].config_of({"steps": 40, "interventions": [{"at": 30, "mean": 2, "until": 31}]})
