"""What an update rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from objectives.base import TrainingConfig
from objectives.stacking.layout import Layout

# Shapes: K members, R of them that are looked at, n parameters of one member.

Numbers = Mapping[str, torch.Tensor]
States = dict[str, torch.Tensor]


class UpdateRule(ABC):
    """From gradients to updates, for K members whose hyperparameters are numbers of shape (K,).

    What it remembers are tensors with the members as their first size, all zeros for a fresh member; they are
    kept, arranged and saved by the optimizer, and changed in place here. Whatever a rule does now and then it
    does by the age of each member, as members of a pack may differ in age.

    ``numbers`` are the fields that its facts name (objectives/optimizers/facts), null as infinite.

    Where a rule has both a first moment and a divisor, its update is lr * first moment / divisor.
    """

    # States whose numbers are not of the parameters' type.
    state_types: Mapping[str, torch.dtype] = {}
    # Whether the first moment is divided by 1 - beta1^t.
    is_debiased: bool = False
    # Whether ``take_hessian`` is to be called before the step of members for whom ``hessian_is_due``.
    needs_hessian: bool = False

    def __init__(self, shape: TrainingConfig, layout: Layout) -> None:
        """``shape`` is for the structural fields, which all members share."""
        self.shape, self.layout = shape, layout

    @abstractmethod
    def state_sizes(self) -> Mapping[str, int]:
        """Numbers of one member in each of its states."""

    @abstractmethod
    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """What a step needs of the hyperparameters, (K,) in double precision; ``age_K`` counts this step."""

    @abstractmethod
    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """What is to be subtracted from the parameters, (K, n), learning rate included; may overwrite ``grad_Kn``.

        ``params_Kn`` are only read. Plain tensor operations, as torch.compile is to fuse them.
        """

    def hessian_is_due(self, num_steps: int) -> bool:
        """Whether a member with ``num_steps`` steps behind it needs a Hessian for the next one."""
        return False

    def take_hessian(self, states: States, rows: torch.Tensor, hessian_Rn: torch.Tensor, numbers: Numbers) -> None:
        """Use estimates of the Hessian's diagonal at the parameters that members ``rows`` have now, (R, n).

        Of a member whose estimate is not finite nothing is used.
        """
        raise NotImplementedError(f"{type(self).__name__} has no use for a Hessian")

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """What each coordinate of the first moment was divided by at the last step, (K, n).

        1 / divisor is the preconditioner of the rule; None where it has none that is a diagonal.
        """
        return None

    def second_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """The bias-corrected second moment after the last step, (K, n); None where there is none."""
        return None

    def first_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """The bias-corrected first moment after the last step, (K, n); None where there is none."""
        return None
