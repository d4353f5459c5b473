"""What every objective promises; one suite for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from objectives.base import OBJECTIVES, Objective, Trainer

STEPS = 12
SMALL: dict[str, dict] = {
    "gpt": {"width": 8, "heads": 2, "context": 8, "batch_size": 2, "validation_batches": 2},
    "function_fit": {"width": 8, "num_points": 20},
    "quadratic": {"noise": 0.1},
}
# For each axis the values that the members of one pack get.
AXES = {
    "lr": [1e-3, 1e-2, 3e-1],
    "warmup": [0, 3, 12],
    "beta1": [0.0, 0.9, 0.99],
    "beta2": [0.5, 0.95, 0.9999],
    "eps": [1e-12, 1e-8, 1e-2],
    "clip": [None, 1.0, 1e-3],
    "weight_decay": [0.0, 0.1, 1.0],
}
METRICS = ("loss", "grad_norm", "update_norm", "lr")


@pytest.fixture(params=OBJECTIVES.values(), ids=OBJECTIVES.keys())
def objective(request) -> Objective:
    return request.param


def start(objective: Objective, changes: Sequence[dict], seeds: Sequence[int] | None = None) -> Trainer:
    fixed = {"steps": STEPS, "lr": 1e-2, **SMALL[objective.name]}
    configs = [objective.config_class(**(fixed | change)) for change in changes]
    return objective.start(configs, list(seeds) if seeds else [0] * len(configs), "cpu")


def curves(trainer: Trainer, num_steps: int = STEPS) -> dict[str, np.ndarray]:
    """Metrics of the next steps, (T, K) each."""
    rows = [trainer.step() for _ in range(num_steps)]
    return {name: torch.stack([row[name] for row in rows]).double().numpy() for name in METRICS}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Equal but for rounding: a batched product may sum in another order than a single one."""
    for name in METRICS:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("axis", AXES)
def test_a_member_of_a_pack_trains_as_it_would_alone(objective: Objective, axis: str) -> None:
    together = curves(start(objective, [{axis: value} for value in AXES[axis]]))
    for k, value in enumerate(AXES[axis]):
        alone = curves(start(objective, [{axis: value}]))
        assert_same({name: together[name][:, k : k + 1] for name in METRICS}, alone)
    assert len({tuple(together["update_norm"][:, k]) for k in range(3)}) > 1, f"{axis} changes something"


def test_members_of_different_seeds_train_as_they_would_alone(objective: Objective) -> None:
    seeds = [3, 0, 3, 7]
    together = curves(start(objective, [{}] * 4, seeds))
    for k, seed in enumerate(seeds):
        assert_same({name: together[name][:, k : k + 1] for name in METRICS}, curves(start(objective, [{}], [seed])))
    np.testing.assert_array_equal(together["loss"][:, 0], together["loss"][:, 2])
    assert together["grad_norm"][0, 0] != together["grad_norm"][0, 1]


def test_batch_size_is_structural_and_changes_training(objective: Objective) -> None:
    assert "batch_size" not in objective.per_member_fields
    small, large = (curves(start(objective, [{"batch_size": size}])) for size in (2, 16))
    assert not np.array_equal(small["update_norm"], large["update_norm"])


def test_who_stays_in_the_pack_does_not_notice_who_leaves(objective: Objective) -> None:
    changes, seeds = [{"lr": lr} for lr in (1e-3, 1e-2, 3e-2, 1e-1)], [0, 1, 2, 3]
    whole = curves(start(objective, changes, seeds))
    trainer = start(objective, changes, seeds)
    curves(trainer, 4)
    trainer.keep([1, 3])
    assert trainer.num_members == 2
    rest = curves(trainer, STEPS - 4)
    assert_same(rest, {name: whole[name][4:, [1, 3]] for name in METRICS})


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resumed_pack_goes_on_bit_for_bit(objective: Objective, optimizer: str) -> None:
    changes = [{"lr": lr, "optimizer": optimizer, "warmup": 6, "schedule": "cosine"} for lr in (1e-3, 1e-2)]
    straight, stopped = start(objective, changes, [0, 1]), start(objective, changes, [0, 1])
    expected = {name: values[5:] for name, values in curves(straight).items()}
    curves(stopped, 5)
    state = stopped.state_dict()
    curves(stopped, 2)  # what is done after the snapshot must not leak into it
    resumed = start(objective, changes, [0, 1])
    resumed.load_state_dict(state)
    found = curves(resumed, STEPS - 5)
    for name in METRICS:
        np.testing.assert_array_equal(found[name], expected[name])
    torch.testing.assert_close(resumed.validate(), straight.validate(), rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_holds_plain_values_and_tensors_only(objective: Objective, tmp_path) -> None:
    trainer = start(objective, [{}, {}])
    trainer.step()
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    start(objective, [{}, {}]).load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


def test_a_member_that_blows_up_is_masked_and_touches_nobody(objective: Objective) -> None:
    calm = [{"lr": 1e-3}, {"lr": 1e-2}]
    expected = curves(start(objective, calm))
    found = curves(start(objective, [calm[0], {"lr": 1e300, "optimizer": "sgd"} | {"optimizer": "adamw"}, calm[1]]))
    assert_same({name: found[name][:, [0, 2]] for name in METRICS}, expected)
    lost = ~np.isfinite(found["loss"][:, 1]) | ~np.isfinite(found["grad_norm"][:, 1])
    first = int(np.argmax(lost))
    assert lost.any()
    assert np.isnan(found["loss"][first + 1 :, 1]).all(), "nothing is reported of it afterwards"
    assert found["update_norm"][first, 1] == 0, "not even the step of the blow-up changes it"


def test_metrics_and_validation_have_one_number_per_member(objective: Objective) -> None:
    trainer = start(objective, [{}, {}, {}])
    metrics = trainer.step()
    assert {name: tuple(value.shape) for name, value in metrics.items()} == dict.fromkeys(METRICS, (3,))
    assert tuple(trainer.validate().shape) == (3,)
    assert all(isinstance(value, str) for value in trainer.describe().values())
    trainer.close()


def test_training_lowers_the_loss(objective: Objective) -> None:
    trainer = start(
        objective, [{"steps": 80, "lr": 1e-2, "noise": 0.0} if objective.name == "quadratic" else {"steps": 80}]
    )
    loss = curves(trainer, 80)["loss"][:, 0]
    assert np.median(loss[-10:]) < 0.97 * loss[0]
