"""The interface of an update rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from objectives.base import TrainingConfig
from objectives.instruments.telemetry import norm_per_member
from objectives.stacking import Layout

# Shapes: K members, R observed ones, n parameters per member.

Numbers = Mapping[str, torch.Tensor]
States = dict[str, torch.Tensor]


class UpdateRule(ABC):
    """From gradients to updates, for K members whose hyperparameters are numbers of shape (K,).

    Its states are tensors whose first axis is the members, all zeros for a new member. The optimizer stores, arranges
    and saves them, and the rule changes them in place. Anything periodic depends on the age of each member, since ages
    may differ within a pack.

    ``numbers`` are the fields that its facts name (objectives/optimizers/facts), with infinity for null.

    If a rule has both a first moment and a divisor, its update is lr * first moment / divisor.
    """

    # States with one number per parameter.
    moments: Sequence[str] = ("first_moment",)
    # Types of the states that differ from the parameters' type.
    state_types: Mapping[str, torch.dtype] = {}
    # Whether the first moment is divided by 1 - beta1^t.
    is_debiased: bool = False
    # Whether members need ``take_hessian`` before a step if ``hessian_is_due``.
    needs_hessian: bool = False

    def __init__(self, structure: TrainingConfig, layout: Layout) -> None:
        """``structure`` has the structural fields, which all members share."""
        self.structure, self.layout = structure, layout

    def state_sizes(self) -> Mapping[str, int]:
        """Return the size of each state in one member."""
        return dict.fromkeys(self.moments, self.layout.size)

    @abstractmethod
    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Return the numbers that a step needs, (K,) in double precision; ``age_K`` includes this step."""

    @abstractmethod
    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return what to subtract from the parameters, (K, n), including the learning rate; may overwrite ``grad_Kn``.

        ``params_Kn`` is read-only. Only plain tensor operations, so that torch.compile can fuse them.
        """

    def norms(self, value_Kn: torch.Tensor) -> torch.Tensor:
        """Return the Euclidean norm of each member's gradient or update, (K,)."""
        return norm_per_member(value_Kn)

    def hessian_is_due(self, num_steps: int) -> bool:
        """Return whether a member that has completed ``num_steps`` steps needs a Hessian for the next one."""
        return False

    def take_hessian(self, states: States, rows: torch.Tensor, hessian_Rn: torch.Tensor, numbers: Numbers) -> None:
        """Use estimates of the Hessian's diagonal at the current parameters of members ``rows``, (R, n).

        A non-finite estimate is ignored for its member.
        """
        raise NotImplementedError(f"{type(self).__name__} does not use a Hessian")

    def divisor(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """Return the divisor of each coordinate of the first moment at the last step, (K, n).

        1 / divisor is the rule's preconditioner. None if it is not diagonal.
        """
        return None

    def second_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """Return the bias-corrected second moment after the last step, (K, n), or None without one."""
        return None

    def first_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor | None:
        """Return the first moment after the last step as the update uses it, (K, n), or None without one."""
        return states.get("first_moment")
