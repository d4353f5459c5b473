"""The test suite that every packed objective passes, built-in or custom.

Subclass it in a test file and run pytest:

    from digits import OBJECTIVE
    from objectives.conformance import ObjectiveConformance

    class TestDigits(ObjectiveConformance):
        objective = OBJECTIVE
        small = {"channels": 4, "batch_size": 4}
"""

# ruff: noqa: D102 - the names of the tests are sentences

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from objectives.base import RowSpec, Trainer
from objectives.conformance_kit import (
    ALIKE,
    COMMON_IDLE,
    METRICS,
    PHASES,
    RUNS,
    SCHEDULES,
    STEPS,
    ConformanceKit,
    Curves,
    assert_identical,
    curves,
    leaves,
    members,
    validation,
)
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.schedules import schedule_factor


class ObjectiveConformance(ConformanceKit):
    """Some eighty tests of one objective on the CPU, with one thread. A subclass sets these attributes.

    ``objective``: the ``Objective`` to test. Without it collection fails: "TestMine sets no objective".

    ``small``: changes to the default configuration that make a step quick, none by default. The configuration rejects
    unknown fields: "Extra inputs are not permitted".

    ``values``: three different values for each field of the objective that may differ inside a pack. A missing field
    fails a test: "mine lets dropout differ inside a pack: give it three different values, values = {'dropout': [...]}";
    so does a field that may not differ. Values for fields that all objectives have, such as ``lr``, replace the
    suite's.

    ``needs``: for a field with no effect on its own, the changes that it needs to have one, as in needs =
    {'context_steps': {'context_start': 2}}. The three values of a field must give three different runs, or the test
    fails: "context_steps does not act on the updates". For a field that all objectives have, this failure means that
    gradients are too small or too large for an effect: set other ``values`` or another learning rate.

    ``idle``: the objective's fields that may differ and do not act on a step, such as one that only names a run; their
    values must then give equal runs.

    ``has_noise``: whether seeds make different runs; False for an objective without random weights and data.

    ``learning``: changes to ``small`` with which the loss falls by 3 %; 80 steps at lr = 1e-2 by default.

    ``is_exact``: whether a member has the same bits independent of the other members of its pack. Then an interrupted
    sweep ends with the numbers of an undisturbed one; objectives/stacking.py helps to achieve it. It is
    tested at the sizes in ``small`` and may not hold at odd sizes, since a product's last bits depend on the alignment
    of a matrix in memory. With False these tests require only ``rtol``, and a run near the edge of stability may end
    differently in another pack. Resuming the same pack must be exact in any case.

    ``rtol``: the largest relative difference between two numbers that are equal up to rounding.
    """

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        """Make the order of sums deterministic."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test for each field that may differ inside a pack."""
        if not hasattr(self, "objective"):
            raise pytest.Collector.CollectError(f"{type(self).__name__} sets no objective: objective = OBJECTIVE")
        if "field" in metafunc.fixturenames:
            metafunc.parametrize("field", sorted(self.objective.per_member_fields | set(self.values)))

    # Members and their neighbours.

    def test_a_member_of_a_pack_trains_as_it_would_alone(self, field: str) -> None:
        changes = [self.needs_of(field) | {field: value} for value in self.values_of(field)]
        trainer = self.start(changes)
        together = curves(trainer)
        for k, change in enumerate(changes):
            self.assert_close(members(together, [k]), curves(self.start([change])))
        if field in ("interventions", "control") and not getattr(trainer, f"takes_{field}", False):
            return  # sweeps with this field reject such a trainer
        # Otherwise a trainer that ignores the field would pass.
        num_distinct = len({together["update_norm"][:, k].tobytes() for k in range(len(changes))})
        is_idle = field in (*COMMON_IDLE, *self.idle)
        num_wanted = 1 if is_idle else 2 if field in ALIKE else len(changes)
        assert not is_idle or num_distinct == 1, f"{field} acts on the updates, so it is not idle"
        assert num_distinct >= num_wanted, f"{field} does not act on the updates: it is not used"

    @pytest.mark.parametrize("number", range(len(OPTIMIZERS)), ids=list(OPTIMIZERS).__getitem__)
    def test_members_that_differ_in_everything_train_as_they_would_alone(self, number: int) -> None:
        shared = {
            "optimizer": list(OPTIMIZERS)[number],
            # Structural fields, each in combination with some of the optimizers.
            "schedule": SCHEDULES[number % 5],
            "warmup_shape": ("linear", "cosine")[number % 2],
            "weight_decay_kind": ("decoupled", "coupled", "independent")[number % 3],
            "second_moment_start": self.start_of(
                list(OPTIMIZERS)[number], ("zero", "random", "data", "first_gradient")[number % 4]
            ),
            "final_lr_fraction": 0.1,
        }
        fields = sorted(self.objective.per_member_fields)
        # Shifted by one from field to field, for many combinations of values.
        changes = [
            shared | {field: self.values_of(field)[(i + k) % 3] for i, field in enumerate(fields)} for k in range(3)
        ]
        seeds = [5, 0, 5]
        together = curves(self.start(changes, seeds))
        for k, (change, seed) in enumerate(zip(changes, seeds, strict=True)):
            self.assert_close(members(together, [k]), curves(self.start([change], [seed])))

    def test_members_of_different_seeds_train_as_they_would_alone(self) -> None:
        seeds = [3, 0, 3, 7]
        together = curves(self.start([{}] * 4, seeds))
        for k, seed in enumerate(seeds):
            self.assert_close(members(together, [k]), curves(self.start([{}], [seed])))

    @pytest.mark.parametrize("size", [1, 2, 5, 16, 31])
    def test_who_shares_a_pack_changes_no_bit_of_a_member(self, size: int) -> None:
        """Packs that are rebuilt after a fault must end with the numbers of an undisturbed run."""
        shared = {"schedule": "cosine", "weight_decay": 0.1}
        changes = [shared | {"lr": 1e-3 * (1 + k), "warmup": k % 5, "beta2": 1 - 0.5 / (1 + k)} for k in range(33)]
        seeds = [k % 3 for k in range(33)]
        index = list(range(33 - size, 33))
        together = curves(self.start(changes, seeds))
        apart = curves(self.start([changes[k] for k in index], [seeds[k] for k in index]))
        self.assert_alike(members(together, index), apart)

    def test_every_reading_of_a_member_is_the_same_alone_and_in_a_pack_of_any_size(self) -> None:
        """Losses, norms, telemetry with the curvature, and validation, bit for bit."""
        if not self.is_exact:
            pytest.skip("is_exact = False: rounding may differ in another pack")
        self.assert_same_readings_alone(range(2, 9), {})

    def test_equal_seeds_train_alike_and_different_seeds_do_not(self) -> None:
        first = curves(self.start([{}] * 4, [3, 0, 3, 7]))
        self.assert_alike(members(first, [0]), members(first, [2]))
        assert_identical(first, curves(self.start([{}] * 4, [3, 0, 3, 7])), "trained again")
        # At the first step. The loss would not suffice: a quadratic starts with the same loss in every direction.
        num_distinct = len(set(first["grad_norm"][0, [0, 1, 3]]))
        if self.has_noise:
            assert num_distinct == 3, "three seeds start with the same gradient; without noise set has_noise = False"
        else:
            assert num_distinct == 1, "seeds start with different gradients: has_noise = False is wrong"

    def test_batch_size_is_structural_and_changes_training(self) -> None:
        assert "batch_size" not in self.objective.per_member_fields, "a batch size changes shapes, so it is structural"
        small, large = (curves(self.start([{"batch_size": size}])) for size in (2, 16))
        assert np.isfinite(small["loss"]).all(), "the loss with batch_size = 2 is not finite"
        assert np.isfinite(large["loss"]).all(), "the loss with batch_size = 16 is not finite"
        # The first loss may be equal: it is exact if only the gradient is noisy.
        if self.has_noise:
            assert (small["loss"][1:] != large["loss"][1:]).all(), "batch_size does not act on the losses"

    # What is reported.

    def test_loss_and_gradient_of_a_step_belong_to_the_weights_before_it(self) -> None:
        metrics = curves(self.start([{"lr": lr} for lr in self.values_of("lr")]))
        for name in ("loss", "grad_norm"):
            assert len(set(metrics[name][0])) == 1, f"the first {name} depends on lr: it was taken after the update"
            assert len(set(metrics[name][1])) == 3, f"the second {name} does not depend on lr: was there an update?"

    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_the_reported_lr_is_the_peak_times_the_schedule(self, schedule: str) -> None:
        warmup, lr = [0, 4, 12], [1e-3, 3e-3, 1e-2]
        shared = {"schedule": schedule, "final_lr_fraction": 0.1}
        metrics = curves(self.start([shared | {"lr": lr[k], "warmup": warmup[k]} for k in range(3)]))
        for step in range(STEPS):
            factor_K = schedule_factor(self.config_of(shared), torch.tensor(step), torch.tensor(warmup))
            expected = factor_K * torch.tensor(lr)
            np.testing.assert_allclose(metrics["lr"][step], expected, rtol=1e-6, err_msg=f"lr of step {step}")

    def test_metrics_and_validation_have_one_number_per_member(self) -> None:
        trainer = self.start([{}, {}, {}])
        shapes = {name: tuple(value.shape) for name, value in trainer.step().items()}
        assert shapes == dict.fromkeys(METRICS, (3,)), f"step() gives {shapes}, expected {METRICS} of shape (3,)"
        assert validation(trainer).shape == (3,), "validate() must give one number per row"
        facts = trainer.describe()
        assert all(isinstance(value, str) for value in facts.values()), f"describe() must give text only, not {facts}"
        trainer.close()

    def test_training_lowers_the_loss(self) -> None:
        changes = {"steps": 80, "lr": 1e-2, **self.learning}
        loss = curves(self.start([changes]), changes["steps"])["loss"][:, 0]
        last = np.median(loss[-10:])
        assert last < 0.97 * loss[0], f"from {loss[0]:.4g} to {last:.4g} only: try other steps or lr in `learning`"

    def test_the_declared_number_of_weights_is_the_one_that_a_member_has(self) -> None:
        declared, weights = self.objective.num_weights, getattr(self.start([{}]), "weights", {})
        found = sum(weight[0].numel() for weight in weights.values())
        assert declared is None or declared(self.config_of({})) == found, f"num_weights is wrong: it is {found}"

    # Members that are dropped.

    @pytest.mark.parametrize("index", [[1, 3], [2], [0, 1, 2, 3]], ids=str)
    def test_who_stays_in_the_pack_does_not_notice_who_leaves(self, index: list[int]) -> None:
        changes = [{"lr": lr, "warmup": 3 * k} for k, lr in enumerate((1e-3, 1e-2, 3e-2, 1e-1))]
        seeds = [0, 1, 2, 3]
        stayed, shrunk = self.start(changes, seeds), self.start(changes, seeds)
        whole = curves(stayed)
        curves(shrunk, 4)
        self.keep(shrunk, index, changes, seeds)
        assert shrunk.num_members == len(index), "arrange() leaves num_members as it was"
        self.assert_close(curves(shrunk, STEPS - 4), members(whole, index, since=4))
        expected = validation(stayed)[index]
        np.testing.assert_allclose(validation(shrunk), expected, rtol=self.rtol, atol=1e-9, err_msg="validation")

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_a_member_that_blows_up_is_masked_and_touches_nobody(self, optimizer: str) -> None:
        def pack(middle_lr: float) -> Trainer:
            return self.start([{"lr": lr, "optimizer": optimizer} for lr in (1e-3, middle_lr, 1e-2)], [0, 1, 2])

        # Of equal size, so that even rounding is the same.
        calm, wild = pack(5e-3), pack(1e300)
        expected, actual = curves(calm), curves(wild)
        assert_identical(members(actual, [0, 2]), members(expected, [0, 2]), "neighbours of a member that blew up")
        lost = ~np.isfinite(actual["loss"][:, 1]) | ~np.isfinite(actual["grad_norm"][:, 1])
        assert lost.any(), f"with lr = 1e300 the loss is still finite after {STEPS} steps"
        first = int(np.argmax(lost))
        for name in METRICS:
            assert np.isnan(actual[name][first + 1 :, 1]).all(), f"{name} is still reported after the blow-up"
        assert actual["update_norm"][first, 1] == 0, "the step of the blow-up must not change the member"
        others = [0, 2]
        np.testing.assert_array_equal(validation(wild)[others], validation(calm)[others], err_msg="validation")

    def test_the_mask_stays_with_its_member_when_others_leave(self) -> None:
        changes, seeds = [{"lr": lr} for lr in (1e-3, 1e-2, 1e300)], [0, 1, 2]
        trainer = self.start(changes, seeds)
        curves(trainer, 6)
        self.keep(trainer, [1, 2], changes, seeds)
        metrics = curves(trainer, STEPS - 6)
        assert np.isfinite(metrics["loss"][:, 0]).all(), "a healthy member was masked"
        assert np.isnan(metrics["loss"][:, 1]).all(), "a masked member came back"

    @pytest.mark.parametrize("rows", [[2], [0, 1, 2, 3], [3, 0], [1, 1]], ids=str)
    def test_the_validation_loss_of_some_is_that_of_all(self, rows: list[int]) -> None:
        trainer = self.start([{"lr": lr} for lr in (1e-3, 1e-2, 1e300, 1e-1)], [0, 1, 2, 3])
        curves(trainer, 5)
        whole = validation(trainer)
        assert len(set(whole.tolist())) == 4 or np.isnan(whole).all(), "equal losses would hide a mix-up"
        self.assert_alike({"validation": validation(trainer, rows)}, {"validation": whole[rows]})

    # Checkpoints.

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_a_resumed_pack_goes_on_bit_for_bit(self, optimizer: str) -> None:
        # The last member is lost at its second step, before the snapshot.
        lrs, seeds = (1e-3, 1e-2, 1e300), [0, 1, 2]
        clipping: dict[str, Any] = {"zclip": 0.1, "zclip_warmup": 2, "adagc": 0.9, "adagc_warmup": 3}
        clipping["second_moment_start"] = self.start_of(optimizer, "data")
        shared = {"optimizer": optimizer, "warmup": 6, "schedule": "cosine", **clipping}
        changes = [shared | {"lr": lr} for lr in lrs]
        straight, stopped = self.start(changes, seeds), self.start(changes, seeds)
        expected = members(curves(straight), seeds, since=5)
        assert np.isnan(expected["loss"][:, 2]).all(), "with lr = 1e300 a member must be lost"
        curves(stopped, 5)
        state = stopped.state_dict()
        curves(stopped, 2)  # later steps must not leak into the snapshot
        resumed = self.start(changes, seeds)
        resumed.load_state_dict(state)
        assert_identical(curves(resumed, STEPS - 5), expected, "resumed")
        np.testing.assert_array_equal(validation(resumed), validation(straight), err_msg="validation, resumed")

    def test_a_pack_that_shrank_resumes_bit_for_bit(self) -> None:
        changes, seeds = [{"lr": lr} for lr in (1e-3, 1e-2, 3e-2)], [0, 1, 2]
        straight = self.start(changes, seeds)
        curves(straight, 3)
        self.keep(straight, [0, 2], changes, seeds)
        state = straight.state_dict()
        resumed = self.start([changes[0], changes[2]], [0, 2])
        resumed.load_state_dict(state)
        assert_identical(curves(resumed, STEPS - 3), curves(straight, STEPS - 3), "resumed")

    def test_a_pack_of_many_ages_resumes_bit_for_bit(self) -> None:
        straight = self.start([RUNS[run][0] for run in (1, 0)], [1, 0])
        curves(straight, 3)
        straight.arrange(self.rows_of([0, 2, 1], [1, 0]))
        curves(straight, 2)
        now = [4, 1, 0, 2]
        straight.arrange(self.rows_of(now, [0, 2, 1]))
        curves(straight, 1)
        state = straight.state_dict()
        resumed = self.start([RUNS[run][0] for run in now], [RUNS[run][1] for run in now])
        curves(resumed, 2)  # earlier steps must not matter
        resumed.load_state_dict(state)
        expected = curves(straight, 4)
        assert np.isnan(expected["loss"][:, 2]).all(), "a lost member must stay lost"
        assert_identical(curves(resumed, 4), expected, "resumed")
        # Load again, into the pack that has trained on.
        straight.load_state_dict(state)
        assert_identical(curves(straight, 4), expected, "restored")
        straight.load_state_dict(state)
        straight.arrange(self.rows_of([2, 4], now))
        self.assert_alike(curves(straight, 4), members(expected, [3, 0]))

    def test_a_checkpoint_is_tensors_integers_and_strings_and_survives_the_disk(self, tmp_path: Path) -> None:
        straight = self.start([{}, {}], [0, 1])
        curves(straight, 3)
        state = straight.state_dict()
        # Exactly these types: a bool, a NumPy scalar or a tensor subclass would be another type to support.
        others = {type(leaf) for leaf in leaves(state)} - {torch.Tensor, int, str}
        assert not others, f"state_dict() must have tensors, integers and strings only, not {others}"
        torch.save(state, tmp_path / "state.pt")
        resumed = self.start([{}, {}], [0, 1])
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert_identical(curves(resumed, STEPS - 3), curves(straight, STEPS - 3), "resumed")

    # Members that are added, and members that fork.

    @pytest.mark.parametrize(("schedule", "start"), [("constant", "zero"), ("cosine", "random"), ("wsd", "data")])
    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_members_of_many_ages_and_seeds_train_bit_for_bit_as_each_would_alone(
        self, optimizer: str, schedule: str, start: str
    ) -> None:
        begins = self.start_of(optimizer, start)
        shared = {"optimizer": optimizer, "schedule": schedule, "second_moment_start": begins}
        before = PHASES[0][0]
        pieces: dict[Any, Any] = {}
        trainer = self.start([shared | RUNS[run][0] for run in before], [RUNS[run][1] for run in before])
        for now, num_steps in PHASES:
            if now != before:
                trainer.arrange(self.rows_of(now, before, shared))
            assert trainer.num_members == len(now), "arrange() leaves num_members as it was"
            news = curves(trainer, num_steps)
            for k, run in enumerate(now):
                pieces.setdefault(run, []).append(members(news, [k]))
            before = now
        held_out = dict(zip(before, validation(trainer), strict=True))
        for run, (change, seed) in enumerate(RUNS):
            whole = {name: np.concatenate([piece[name] for piece in pieces[run]]) for name in METRICS}
            alone = self.start([shared | change], [seed])
            self.assert_alike(whole, curves(alone, len(whole["loss"])))
            if run in held_out:
                self.assert_alike({"validation": validation(alone)}, {"validation": np.array([held_out[run]])})

    def test_the_order_of_rows_does_not_matter(self) -> None:
        def arranged(order: Sequence[int]) -> Curves:
            trainer = self.start([RUNS[run][0] for run in (0, 1, 3)], [0, 1, 0])
            curves(trainer, 3)
            rows = self.rows_of([0, 1, 2, 3, 4], [0, 1, 3])
            trainer.arrange([rows[i] for i in order])
            return curves(trainer, 5)

        expected = arranged(range(5))
        for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
            self.assert_alike(arranged(order), members(expected, order))

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_the_numbers_of_a_fork_hold_from_then_on(self, optimizer: str) -> None:
        shared = {"optimizer": optimizer}
        fields = sorted(self.objective.per_member_fields)
        # Together with the other fields that may differ between the two parts of a fork.
        needs = {
            field: {name: value for name, value in self.needs_of(field).items() if name in fields} for field in fields
        }
        changes = [shared, *(shared | needs[field] | {field: self.values_of(field)[1]} for field in fields)]
        trainer = self.start(changes[:1], [3])
        twins = self.start(changes[:1] * len(changes), [3] * len(changes))
        curves(trainer, 4)
        trainer.arrange([RowSpec(self.config_of(change), 3, 0) for change in changes])
        curves(twins, 4)
        expected = self.start(changes, [3] * len(changes))
        expected.load_state_dict(twins.state_dict())
        self.assert_alike(curves(trainer, STEPS - 4), curves(expected, STEPS - 4))

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    def test_copies_of_a_row_go_on_as_members_that_had_always_been_apart(self, optimizer: str) -> None:
        changes = [{"optimizer": optimizer, "warmup": 3, "lr": lr} for lr in (1e-2, 3e-2)]
        apart, forked = self.start([changes[0], *[changes[1]] * 3], [0, 3, 3, 3]), self.start(changes, [0, 3])
        self.assert_alike(curves(forked, 5), members(curves(apart, 5), [0, 1]))
        forked.arrange([RowSpec(self.config_of(changes[row]), (0, 3)[row], row) for row in (1, 0, 1, 1)])
        assert forked.num_members == 4, "arrange() leaves num_members as it was"
        self.assert_alike(curves(forked, STEPS - 5), members(curves(apart, STEPS - 5), [1, 0, 2, 3]))
        self.assert_alike({"validation": validation(forked)}, {"validation": validation(apart)[[1, 0, 2, 3]]})
