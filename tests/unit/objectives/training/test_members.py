"""Tensors of the members are renewed when members come and go, or refused at the first step."""

import pytest
import torch

from objectives.base import OBJECTIVES, ExecutionPlan, RowSpec
from objectives.models.quadratic import QuadraticTrainer
from objectives.training.members import OWN

CONFIG = OBJECTIVES["quadratic"].config_class(steps=20, lr=0.1)


class Stale(QuadraticTrainer):
    def __init__(self, configs, seeds, device, plan) -> None:
        super().__init__(configs, seeds, device, plan)
        self.scale_K = self.field("curvature")


class Renewed(QuadraticTrainer):
    def members_changed(self) -> None:
        super().members_changed()
        self.scale_K = self.field("curvature")


class AsLongAsThePack(QuadraticTrainer):
    """A constant that happens to be as long as a pack is wide."""

    def __init__(self, configs, seeds, device, plan) -> None:
        super().__init__(configs, seeds, device, plan)
        self.classes = torch.arange(4)
        self.names = ["a", "b", "c", "d"]


def pack(kind: type, size: int = 4):
    configs = [CONFIG.model_copy(update={"curvature": float(1 + k)}) for k in range(size)]
    return kind(configs, list(range(size)), "cpu", ExecutionPlan(size))


@pytest.mark.parametrize("observed", [False, True])
def test_a_tensor_of_the_members_that_is_made_once_is_refused_at_the_first_step(observed: bool) -> None:
    trainer = pack(Stale)
    with pytest.raises(ValueError, match=r"Stale: self\.scale_K has a row for each member.*members_changed\(\)"):
        trainer.observed_step([0], [], 1) if observed else trainer.step()


@pytest.mark.parametrize("kind", [Renewed, AsLongAsThePack, QuadraticTrainer])
def test_what_is_renewed_and_what_is_no_member_s_is_not_refused(kind: type) -> None:
    pack(kind).step()


def test_a_field_has_the_values_of_the_members_that_are_there_now() -> None:
    trainer = pack(QuadraticTrainer)
    assert trainer.field("curvature").tolist() == [1, 2, 3, 4]
    new = CONFIG.model_copy(update={"curvature": 9.0})
    trainer.arrange([RowSpec(trainer.configs[2], 2, 2), RowSpec(new, 7, None), RowSpec(trainer.configs[0], 0, 0)])
    assert trainer.field("curvature").tolist() == [3, 9, 1]


def test_all_that_the_base_class_keeps_is_known_to_be_its_own() -> None:
    class Plain(QuadraticTrainer):
        def __init__(self, configs, seeds, device, plan) -> None:
            super(QuadraticTrainer, self).__init__(configs, seeds, device, plan)

        def members_changed(self) -> None: ...

    assert set(vars(pack(Plain))) <= OWN
