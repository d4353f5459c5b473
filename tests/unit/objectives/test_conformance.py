"""The suite for custom objectives finds the mistakes that are easily made, and says what to do."""

import sys
import types

import pytest
import torch

from objectives.base import Objective, QuadraticConfig, per_member
from objectives.conformance import ObjectiveConformance
from objectives.models.quadratic import QuadraticTrainer

VALUES = {"curvature": [0.5, 1.0, 4.0], "noise": [0.0, 0.1, 1.0]}


class Forgetful(QuadraticTrainer):
    """Counts in an attribute that no checkpoint holds."""

    num_calls = 0

    def losses(self):
        self.num_calls += 1
        return super().losses() * (1 + 0.1 * self.num_calls)


class Mixing(QuadraticTrainer):
    """Subtracts a mean over the members."""

    def losses(self):
        loss_K = super().losses()
        return loss_K - 0.5 * loss_K.mean()


class Contagious(QuadraticTrainer):
    """As Mixing, by so little that only what is not finite shows it."""

    def losses(self):
        loss_K = super().losses()
        return loss_K + 1e-30 * loss_K.sum()


class GloballyRandom(QuadraticTrainer):
    """Draws from torch's own generator."""

    def gradient_noise(self, grad_Kn):
        return grad_Kn + 0.1 * torch.randn(grad_Kn.shape, dtype=grad_Kn.dtype)


class Seedless(QuadraticTrainer):
    """Begins alike whatever the seed."""

    def initial_weights(self, seed):
        return super().initial_weights(0)

    def gradient_noise(self, grad_Kn):
        return grad_Kn


class Deaf(QuadraticTrainer):
    """Reads only the first member's curvature."""

    def members_changed(self):
        super().members_changed()
        self._curvature_K = self._curvature_K[:1].expand(self.num_members)


class Unmasked(QuadraticTrainer):
    """Reports the learning rate of members that are lost."""

    def step(self):
        metrics = super().step()
        return metrics | {"lr": metrics["lr"].nan_to_num(nan=0.1)}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch):
    """The suite for a trainer of the same configuration as the quadratic."""

    def make(trainer_class: type, config_class: type = QuadraticConfig) -> ObjectiveConformance:
        module = types.ModuleType("trainer_of_ones_own")
        module.start = trainer_class
        monkeypatch.setitem(sys.modules, module.__name__, module)

        class TestMine(ObjectiveConformance):
            objective = Objective("mine", config_class, module.__name__, spike_rise=2.0, can_compile=False)
            small = {"noise": 0.1}
            values = VALUES

        return TestMine()

    return make


def test_a_state_that_no_checkpoint_holds_is_found(case) -> None:
    with pytest.raises(AssertionError, match="resumed"):
        case(Forgetful).test_a_resumed_pack_goes_on_bit_for_bit("adamw")


def test_members_that_touch_each_other_are_found(case) -> None:
    with pytest.raises(AssertionError):
        case(Mixing).test_members_of_different_seeds_train_as_they_would_alone()
    with pytest.raises(AssertionError, match="is_exact = False"):
        case(Mixing).test_who_shares_a_pack_changes_no_bit_of_a_member(2)
    with pytest.raises(AssertionError, match="neighbours of a member that blew up"):
        case(Contagious).test_a_member_that_blows_up_is_masked_and_touches_nobody("sgd")


def test_random_numbers_that_are_not_the_members_own_are_found(case) -> None:
    with pytest.raises(AssertionError, match="another pack"):
        case(GloballyRandom).test_equal_seeds_train_alike_and_different_seeds_do_not()
    with pytest.raises(AssertionError, match="three seeds start with the same gradient"):
        case(Seedless).test_equal_seeds_train_alike_and_different_seeds_do_not()


def test_a_field_that_does_not_act_is_found(case) -> None:
    with pytest.raises(AssertionError):
        case(Deaf).test_a_member_of_a_pack_trains_as_it_would_alone("curvature")

    class Config(QuadraticConfig):
        idle: float = per_member(0.0, "1", "is read by nobody")

    mine = case(QuadraticTrainer, Config)
    mine.values = VALUES | {"idle": [0.0, 1.0, 2.0]}
    with pytest.raises(AssertionError, match="idle does not act on the updates"):
        mine.test_a_member_of_a_pack_trains_as_it_would_alone("idle")


class Gated(QuadraticTrainer):
    """Adds to the loss what ``height`` says, where ``gate`` is open."""

    def losses(self):
        config_K = self.configs
        scale_K = torch.tensor([1 + config.gate * config.height for config in config_K], dtype=torch.float64)
        return super().losses() * scale_K


def test_a_field_that_acts_beside_another_alone_is_tried_beside_it(case) -> None:
    class Config(QuadraticConfig):
        gate: float = per_member(0.0, "1", "how far height acts", ge=0)
        height: float = per_member(0.0, "1", "of the loss", ge=0)

    mine = case(Gated, Config)
    mine.values = VALUES | {"gate": [0.0, 1.0, 2.0], "height": [0.0, 1.0, 4.0]}
    with pytest.raises(AssertionError, match="height does not act on the updates"):
        mine.test_a_member_of_a_pack_trains_as_it_would_alone("height")
    mine.needs = {"height": {"gate": 1.0}}
    mine.test_a_member_of_a_pack_trains_as_it_would_alone("height")


def test_what_is_reported_of_the_lost_is_found(case) -> None:
    with pytest.raises(AssertionError, match="lr is still reported after"):
        case(Unmasked).test_a_member_that_blows_up_is_masked_and_touches_nobody("sgd")


@pytest.mark.parametrize("given", [[], [0.1, 0.2], [0.1, 0.2, 0.1]], ids=["none", "two", "twice the same"])
def test_a_field_without_three_values_is_asked_for(case, given: list[float]) -> None:
    mine = case(QuadraticTrainer)
    mine.values = {"noise": VALUES["noise"]} | ({"curvature": given} if given else {})
    with pytest.raises(pytest.fail.Exception, match=r"mine lets curvature differ.*values = \{'curvature'"):
        mine.test_a_member_of_a_pack_trains_as_it_would_alone("curvature")


def test_values_for_a_field_that_may_not_differ_are_refused(case) -> None:
    mine = case(QuadraticTrainer)
    mine.values = VALUES | {"dimension": [1, 2, 3]}
    with pytest.raises(pytest.fail.Exception, match="mine has no field dimension that may differ"):
        mine.test_a_member_of_a_pack_trains_as_it_would_alone("dimension")


class Doubling(QuadraticTrainer):
    """Where several rows continue one row, all but the first get other weights."""

    def arrange(self, rows):
        super().arrange(rows)
        sources = [row.source for row in rows]
        is_first_K = torch.tensor([sources.index(row) == k for k, row in enumerate(sources)])
        self._params_Kn.mul_(torch.where(is_first_K, 1.0, 2.0)[:, None])


def test_a_fork_that_is_no_copy_is_found(case) -> None:
    mine = case(Doubling)
    with pytest.raises(AssertionError):
        mine.test_copies_of_a_row_go_on_as_members_that_had_always_been_apart("sgd")
    mine.test_the_mask_stays_with_its_member_when_others_leave()


def test_an_objective_that_rounds_says_so_and_is_held_to_that(case) -> None:
    class Rounding(QuadraticTrainer):
        """The last digits of the loss depend on the number of members."""

        def losses(self):
            return super().losses() * (1 + 1e-7 * self.num_members)

    mine = case(Rounding)
    with pytest.raises(AssertionError, match="is_exact = False"):
        mine.test_who_shares_a_pack_changes_no_bit_of_a_member(5)
    mine.is_exact = False
    mine.test_who_shares_a_pack_changes_no_bit_of_a_member(5)
    mine.rtol = 1e-8
    with pytest.raises(AssertionError, match="Not equal to tolerance rtol=1e-08"):
        mine.test_who_shares_a_pack_changes_no_bit_of_a_member(5)


def test_a_suite_without_an_objective_is_refused_when_it_is_collected() -> None:
    with pytest.raises(pytest.Collector.CollectError, match="ObjectiveConformance sets no objective: objective = OBJ"):
        ObjectiveConformance().pytest_generate_tests(None)
