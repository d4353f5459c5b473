"""What every objective promises; one suite for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pack_cases import everyone, keep, trainer_of

from objectives.base import OBJECTIVES, Objective, Place, Trainer, TrainingConfig
from objectives.schedules import schedule_factor

STEPS = 12
# Small enough to be quick; an objective that is not named here is tested at its defaults.
SMALL: dict[str, dict] = {
    "gpt": {"width": 8, "heads": 2, "context": 8, "batch_size": 2, "validation_batches": 2},
    "function_fit": {"width": 8, "num_points": 20},
    "quadratic": {"noise": 0.1},
}
# For each field that may differ inside a pack the values that its members get.
VALUES: dict[str, list] = {
    "lr": [1e-3, 1e-2, 3e-1],
    "warmup": [0, 3, 12],
    "beta1": [0.0, 0.9, 0.99],
    "beta2": [0.5, 0.95, 0.9999],
    "eps": [1e-12, 1e-8, 1e-2],
    "clip": [None, 1e-1, 1e-3],
    "weight_decay": [0.0, 0.1, 1.0],
    "curvature": [0.5, 1.0, 4.0],
    "noise": [0.0, 0.1, 1.0],
}
AXES = [(objective, field) for objective in OBJECTIVES.values() for field in sorted(objective.per_member_fields)]
METRICS = ("loss", "grad_norm", "update_norm", "lr")

Curves = Mapping[str, np.ndarray]


@pytest.fixture(params=OBJECTIVES.values(), ids=OBJECTIVES.keys())
def objective(request) -> Objective:
    return request.param


def start(objective: Objective, changes: Sequence[dict], seeds: Sequence[int] | None = None) -> Trainer:
    configs = [config_of(objective, change) for change in changes]
    return trainer_of(objective.name, configs, list(seeds) if seeds else [0] * len(configs))


def config_of(objective: Objective, change: dict) -> TrainingConfig:
    fixed = {"steps": STEPS, "lr": 1e-2, **SMALL.get(objective.name, {})}
    return objective.config_class(**(fixed | change))


def curves(trainer: Trainer, num_steps: int = STEPS) -> Curves:
    """Metrics of the next steps, (T, K) each."""
    rows = [trainer.step() for _ in range(num_steps)]
    return {name: torch.stack([row[name] for row in rows]).double().numpy() for name in METRICS}


def members(found: Curves, index: Sequence[int], since: int = 0) -> Curves:
    return {name: values[since:, list(index)] for name, values in found.items()}


def assert_same(found: Curves, expected: Curves) -> None:
    """Equal but for rounding: a batched product may sum in another order than a single one."""
    for name in METRICS:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-9, err_msg=name)


def assert_identical(found: Curves, expected: Curves) -> None:
    """Equal bit for bit, NaN included."""
    for name in METRICS:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def leaves(value: Any) -> Iterator[Any]:
    """All that dictionaries hold, however deep, and their keys."""
    if type(value) is dict:
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    else:
        yield value


@pytest.mark.parametrize(("objective", "field"), AXES, ids=[f"{o.name}-{field}" for o, field in AXES])
def test_a_member_of_a_pack_trains_as_it_would_alone(objective: Objective, field: str) -> None:
    assert field in VALUES, f"{objective.name} lets {field} differ inside a pack: give it three values in VALUES"
    changes = [{field: value} for value in VALUES[field]]
    together = curves(start(objective, changes))
    for k, change in enumerate(changes):
        assert_same(members(together, [k]), curves(start(objective, [change])))
    # Without this, a trainer that ignores the field would pass.
    assert len({together["update_norm"][:, k].tobytes() for k in range(len(changes))}) == len(changes)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_members_that_differ_in_everything_train_as_they_would_alone(
    objective: Objective, optimizer: str, schedule: str
) -> None:
    shared = {"optimizer": optimizer, "schedule": schedule, "final_lr_fraction": 0.1}
    fields = sorted(objective.per_member_fields)
    # Shifted by one from field to field, so that values meet in many combinations.
    changes = [shared | {field: VALUES[field][(i + k) % 3] for i, field in enumerate(fields)} for k in range(3)]
    seeds = [5, 0, 5]
    together = curves(start(objective, changes, seeds))
    for k, (change, seed) in enumerate(zip(changes, seeds, strict=True)):
        assert_same(members(together, [k]), curves(start(objective, [change], [seed])))


def test_members_of_different_seeds_train_as_they_would_alone(objective: Objective) -> None:
    seeds = [3, 0, 3, 7]
    together = curves(start(objective, [{}] * 4, seeds))
    for k, seed in enumerate(seeds):
        assert_same(members(together, [k]), curves(start(objective, [{}], [seed])))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 31])
def test_who_shares_a_pack_changes_no_bit_of_a_member(objective: Objective, size: int) -> None:
    """So that packs which are made up anew after a fault end with the numbers of an undisturbed run."""
    shared = {"schedule": "cosine", "weight_decay": 0.1}
    changes = [shared | {"lr": 1e-3 * (1 + k), "warmup": k % 5, "beta2": 1 - 0.5 / (1 + k)} for k in range(33)]
    seeds = [k % 3 for k in range(33)]
    index = list(range(33 - size, 33))
    together = curves(start(objective, changes, seeds))
    apart = curves(start(objective, [changes[k] for k in index], [seeds[k] for k in index]))
    assert_identical(members(together, index), apart)


def test_equal_seeds_train_alike_and_different_seeds_do_not(objective: Objective) -> None:
    found = curves(start(objective, [{}] * 4, [3, 0, 3, 7]))
    assert_identical(members(found, [0]), members(found, [2]))
    assert_identical(found, curves(start(objective, [{}] * 4, [3, 0, 3, 7])))
    # From the first step on. The loss alone would not do: a quadratic starts at the same one in every direction.
    assert len(set(found["grad_norm"][0])) == 3


def test_batch_size_is_structural_and_changes_training(objective: Objective) -> None:
    assert "batch_size" not in objective.per_member_fields
    small, large = (curves(start(objective, [{"batch_size": size}])) for size in (2, 16))
    assert np.isfinite(small["loss"]).all()
    assert np.isfinite(large["loss"]).all()
    # The first loss may be equal: it is exact where only the gradient is noisy.
    assert (small["loss"][1:] != large["loss"][1:]).all()


def test_loss_and_gradient_of_a_step_belong_to_the_weights_before_it(objective: Objective) -> None:
    found = curves(start(objective, [{"lr": lr} for lr in VALUES["lr"]]))
    for name in ("loss", "grad_norm"):
        assert len(set(found[name][0])) == 1, name
        assert len(set(found[name][1])) == 3, name


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_reported_lr_is_the_peak_times_the_schedule(objective: Objective, schedule: str) -> None:
    warmup, lr = [0, 4, 12], [1e-3, 3e-3, 1e-2]
    shared = {"schedule": schedule, "final_lr_fraction": 0.1}
    found = curves(start(objective, [shared | {"lr": lr[k], "warmup": warmup[k]} for k in range(3)]))
    for step in range(STEPS):
        factor_K = schedule_factor(schedule, torch.tensor(step), torch.tensor(warmup), STEPS, 0.1)
        np.testing.assert_allclose(found["lr"][step], factor_K * torch.tensor(lr), rtol=1e-6)


@pytest.mark.parametrize("index", [[1, 3], [2], [0, 1, 2, 3]], ids=str)
def test_who_stays_in_the_pack_does_not_notice_who_leaves(objective: Objective, index: list[int]) -> None:
    changes = [{"lr": lr, "warmup": 3 * k} for k, lr in enumerate((1e-3, 1e-2, 3e-2, 1e-1))]
    stayed, shrunk = start(objective, changes, [0, 1, 2, 3]), start(objective, changes, [0, 1, 2, 3])
    whole = curves(stayed)
    curves(shrunk, 4)
    keep(shrunk, index)
    assert shrunk.num_members == len(index)
    assert_same(curves(shrunk, STEPS - 4), members(whole, index, since=4))
    torch.testing.assert_close(
        shrunk.validate(everyone(shrunk)),
        stayed.validate(everyone(stayed))[index],
        rtol=2e-5,
        atol=1e-9,
        equal_nan=True,
    )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resumed_pack_goes_on_bit_for_bit(objective: Objective, optimizer: str) -> None:
    # The last member is lost at its second step, long before the snapshot.
    lrs = (1e-3, 1e-2, 1e300)
    changes = [{"lr": lr, "optimizer": optimizer, "warmup": 6, "schedule": "cosine"} for lr in lrs]
    straight, stopped = start(objective, changes, [0, 1, 2]), start(objective, changes, [0, 1, 2])
    expected = members(curves(straight), [0, 1, 2], since=5)
    assert np.isnan(expected["loss"][:, 2]).all()
    curves(stopped, 5)
    state = stopped.state_dict()
    curves(stopped, 2)  # what is done after the snapshot must not leak into it
    resumed = start(objective, changes, [0, 1, 2])
    resumed.load_state_dict(state)
    assert_identical(curves(resumed, STEPS - 5), expected)
    torch.testing.assert_close(
        resumed.validate(everyone(resumed)), straight.validate(everyone(straight)), rtol=0, atol=0, equal_nan=True
    )


def test_a_pack_that_shrank_resumes_bit_for_bit(objective: Objective) -> None:
    changes, seeds = [{"lr": lr} for lr in (1e-3, 1e-2, 3e-2)], [0, 1, 2]
    straight = start(objective, changes, seeds)
    curves(straight, 3)
    keep(straight, [0, 2])
    state = straight.state_dict()
    resumed = start(objective, [changes[0], changes[2]], [0, 2])
    resumed.load_state_dict(state)
    assert_identical(curves(resumed, STEPS - 3), curves(straight, STEPS - 3))


# From here on members come and go: who trains in each of the phases, row by row, and for how many steps.
# 0 is lost at once, and a fresh member begins on what it leaves behind; 1 and 2 move between rows.
RUNS = [({"lr": 1e300}, 0), ({"lr": 1e-2}, 1), ({"lr": 3e-2, "clip": 0.05}, 1), ({"lr": 1e-3, "warmup": 6}, 0),
        ({"lr": 1e-2, "weight_decay": 1.0}, 7)]  # fmt: skip
PHASES = [([0, 1], 3), ([0, 1, 2], 2), ([3, 2, 1], 4), ([2, 4, 3], 3)]


def places_of(objective: Objective, now: Sequence[int], before: Sequence[int], shared: dict) -> list[Place]:
    """Places for the runs ``now``; those that were there ``before`` go on."""
    return [
        Place(config_of(objective, shared | RUNS[run][0]), RUNS[run][1], before.index(run) if run in before else None)
        for run in now
    ]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_members_of_many_ages_and_seeds_train_bit_for_bit_as_each_would_alone(
    objective: Objective, optimizer: str, schedule: str
) -> None:
    shared = {"optimizer": optimizer, "schedule": schedule}
    before, found = PHASES[0][0], {}
    trainer = start(objective, [shared | RUNS[run][0] for run in before], [RUNS[run][1] for run in before])
    for now, num_steps in PHASES:
        if now != before:
            trainer.arrange(places_of(objective, now, before, shared))
        assert trainer.num_members == len(now)
        news = curves(trainer, num_steps)
        for k, run in enumerate(now):
            found.setdefault(run, []).append(members(news, [k]))
        before = now
    validation = dict(zip(before, trainer.validate(everyone(trainer)).tolist(), strict=True))
    for run, (change, seed) in enumerate(RUNS):
        whole = {name: np.concatenate([piece[name] for piece in found[run]]) for name in METRICS}
        alone = start(objective, [shared | change], [seed])
        assert_identical(whole, curves(alone, len(whole["loss"])))
        if run in validation:
            np.testing.assert_array_equal(alone.validate([0]).tolist(), [validation[run]])


def test_a_pack_of_many_ages_resumes_bit_for_bit(objective: Objective) -> None:
    straight = start(objective, [RUNS[run][0] for run in (1, 0)], [1, 0])
    curves(straight, 3)
    straight.arrange(places_of(objective, [0, 2, 1], [1, 0], {}))
    curves(straight, 2)
    now = [4, 1, 0, 2]
    straight.arrange(places_of(objective, now, [0, 2, 1], {}))
    curves(straight, 1)
    state = straight.state_dict()
    resumed = start(objective, [RUNS[run][0] for run in now], [RUNS[run][1] for run in now])
    curves(resumed, 2)  # what it has done so far must not matter
    resumed.load_state_dict(state)
    expected = curves(straight, 4)
    assert np.isnan(expected["loss"][:, 2]).all(), "who was lost stays lost"
    assert_identical(curves(resumed, 4), expected)
    # Back once more, by the pack that has gone on: what a worker does when members must part.
    straight.load_state_dict(state)
    assert_identical(curves(straight, 4), expected)
    straight.load_state_dict(state)
    straight.arrange(places_of(objective, [2, 4], now, {}))
    assert_identical(curves(straight, 4), members(expected, [3, 0]))


def test_a_fork_goes_on_as_two_that_had_always_been_apart_while_their_numbers_did_not_act(objective: Objective) -> None:
    num_steps = 30
    change = {"lr": 3.0, "steps": num_steps}
    norm = curves(start(objective, [change], [3]), num_steps)["grad_norm"][:, 0]
    # A threshold that no gradient reaches before the last record, and that one does.
    fork = int(np.flatnonzero(norm[1:] > np.maximum.accumulate(norm)[:-1])[-1]) + 1
    threshold = float(norm[:fork].max() + norm[fork]) / 2
    apart = curves(start(objective, [change, change | {"clip": threshold}], [3, 3]), num_steps)
    assert apart["update_norm"][fork, 0] != apart["update_norm"][fork, 1], "now it acts"
    assert_identical(members({n: v[:fork] for n, v in apart.items()}, [0]),
                     members({n: v[:fork] for n, v in apart.items()}, [1]))  # fmt: skip
    trainer = start(objective, [change | {"lr": 0.1}, change], [0, 3])
    curves(trainer, fork)
    parted = [Place(config_of(objective, change | c), 3, 1) for c in ({"clip": threshold}, {}, {"clip": threshold})]
    trainer.arrange(parted)
    assert_identical(curves(trainer, num_steps - fork), members(apart, [1, 0, 1], since=fork))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_numbers_of_a_fork_hold_from_then_on(objective: Objective, optimizer: str) -> None:
    fields = sorted(objective.per_member_fields)
    changes = [{"optimizer": optimizer}, *({"optimizer": optimizer, field: VALUES[field][1]} for field in fields)]
    trainer, twins = (
        start(objective, changes[:1], [3]),
        start(objective, changes[:1] * len(changes), [3] * len(changes)),
    )
    curves(trainer, 4)
    trainer.arrange([Place(config_of(objective, change), 3, 0) for change in changes])
    curves(twins, 4)
    expected = start(objective, changes, [3] * len(changes))
    expected.load_state_dict(twins.state_dict())
    assert_identical(curves(trainer, STEPS - 4), curves(expected, STEPS - 4))


def test_the_order_of_places_does_not_matter(objective: Objective) -> None:
    def arranged(order: Sequence[int]) -> Curves:
        trainer = start(objective, [RUNS[run][0] for run in (0, 1, 3)], [0, 1, 0])
        curves(trainer, 3)
        places = places_of(objective, [0, 1, 2, 3, 4], [0, 1, 3], {})
        trainer.arrange([places[i] for i in order])
        return curves(trainer, 5)

    expected = arranged(range(5))
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert_identical(arranged(order), members(expected, order))


@pytest.mark.parametrize("rows", [[2], [0, 1, 2, 3], [3, 0], [1, 1]], ids=str)
def test_the_validation_loss_of_some_is_that_of_all(objective: Objective, rows: list[int]) -> None:
    trainer = start(objective, [{"lr": lr} for lr in (1e-3, 1e-2, 1e300, 1e-1)], [0, 1, 2, 3])
    curves(trainer, 5)
    whole = trainer.validate(everyone(trainer))
    assert len(set(whole.tolist())) == 4 or whole.isnan().all(), "no two would be mistaken for each other"
    torch.testing.assert_close(trainer.validate(rows), whole[rows], rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_is_tensors_integers_and_strings_and_survives_the_disk(objective: Objective, tmp_path) -> None:
    straight = start(objective, [{}, {}], [0, 1])
    curves(straight, 3)
    state = straight.state_dict()
    # Exactly these: a bool, a NumPy scalar or a tensor's subclass would be one more thing to be able to read.
    assert {type(leaf) for leaf in leaves(state)} <= {torch.Tensor, int, str}
    torch.save(state, tmp_path / "state.pt")
    resumed = start(objective, [{}, {}], [0, 1])
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_identical(curves(resumed, STEPS - 3), curves(straight, STEPS - 3))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_member_that_blows_up_is_masked_and_touches_nobody(objective: Objective, optimizer: str) -> None:
    def pack(middle_lr: float) -> Trainer:
        return start(objective, [{"lr": lr, "optimizer": optimizer} for lr in (1e-3, middle_lr, 1e-2)], [0, 1, 2])

    # Of one size, so that even rounding is the same.
    calm, wild = pack(5e-3), pack(1e300)
    expected, found = curves(calm), curves(wild)
    assert_identical(members(found, [0, 2]), members(expected, [0, 2]))
    lost = ~np.isfinite(found["loss"][:, 1]) | ~np.isfinite(found["grad_norm"][:, 1])
    first = int(np.argmax(lost))
    assert lost.any()
    for name in METRICS:
        assert np.isnan(found[name][first + 1 :, 1]).all(), f"{name} is reported of it afterwards"
    assert found["update_norm"][first, 1] == 0, "not even the step of the blow-up changes it"
    others = [0, 2]
    torch.testing.assert_close(
        wild.validate(everyone(wild))[others], calm.validate(everyone(calm))[others], rtol=0, atol=0, equal_nan=True
    )


def test_the_mask_stays_with_its_member_when_others_leave(objective: Objective) -> None:
    trainer = start(objective, [{"lr": lr} for lr in (1e-3, 1e-2, 1e300)], [0, 1, 2])
    curves(trainer, 6)
    keep(trainer, [1, 2])
    found = curves(trainer, STEPS - 6)
    assert np.isfinite(found["loss"][:, 0]).all()
    assert np.isnan(found["loss"][:, 1]).all()


def test_metrics_and_validation_have_one_number_per_member(objective: Objective) -> None:
    trainer = start(objective, [{}, {}, {}])
    metrics = trainer.step()
    assert {name: tuple(value.shape) for name, value in metrics.items()} == dict.fromkeys(METRICS, (3,))
    assert tuple(trainer.validate(everyone(trainer)).shape) == (3,)
    assert all(isinstance(value, str) for value in trainer.describe().values())
    trainer.close()


def test_training_lowers_the_loss(objective: Objective) -> None:
    quiet = dict.fromkeys(objective.per_member_fields & {"noise"}, 0.0)
    loss = curves(start(objective, [{"steps": 80, "lr": 1e-2} | quiet]), 80)["loss"][:, 0]
    assert np.median(loss[-10:]) < 0.97 * loss[0]
