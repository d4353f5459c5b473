"""What an update rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from objectives.base import TrainingConfig
from objectives.layout import Layout

# Shapes: K members, n parameters of one member.

Numbers = Mapping[str, torch.Tensor]
States = dict[str, torch.Tensor]


class UpdateRule(ABC):
    """From gradients to updates, for K members whose hyperparameters are numbers of shape (K,).

    What it remembers are tensors with the members as their first size, all zeros for a fresh member; they are
    kept, arranged and saved by the optimizer, and changed in place here.
    """

    # Fields of the configuration that are read as ``numbers``; null counts as infinite.
    fields: Sequence[str] = ("beta1",)
    # Whether an update takes the first moment without its bias.
    is_debiased = False

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
