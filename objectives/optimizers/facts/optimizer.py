"""The facts about an optimizer that are known without loading torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from objectives.fields import Settings, is_per_member


class NoFields(BaseModel):
    """The fields of an optimizer without settings of its own: none."""


def never(settings: Settings) -> bool | None:
    """No, for all settings."""
    return False


def always(settings: Settings) -> bool | None:
    """Yes, for all settings."""
    return True


def unknown(settings: Settings) -> bool | None:
    """Not known, for all settings."""
    return None


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer's name, fields and facts; ``rule`` locates its update as module:class.

    ``fields`` belong to it alone and start with its name; ``reads`` are those it shares with others. Facts that may
    depend on the settings of a trial are functions of the settings, None where not known.
    """

    name: str
    rule: str
    fields: type[BaseModel] = NoFields
    reads: Sequence[str] = ("beta1", "beta2", "eps")
    # Whether all members of a pack train as one model, which can be compiled.
    can_be_stacked: bool = True
    # Whether it keeps the second moment of every parameter uncompressed, so that it can start elsewhere than at zero.
    can_start_second_moment: bool = False
    # The states that are its first and its second moment, which an intervention may set to zero or rescale.
    first_moments: Sequence[str] = ("first_moment",)
    second_moments: Sequence[str] = ("second_moment",)
    # Whether its steps have a divisor for each coordinate, so that curvature can be measured, and whether it tells v.
    has_divisor: bool = True
    has_v: bool = True
    # Whether steps are divided by the root of a second moment.
    divides_by_root: Callable[[Settings], bool | None] = unknown
    # Whether that is the root of an average of g^2 with decay beta2, so that a short average makes steps longer.
    averages_squares: Callable[[Settings], bool | None] = never
    # Whether the sum of v follows from the gradient norms: v starts at zero and averages g^2 over all steps.
    v_follows_from_norms: bool = False
    # For tests: three values of each of its fields that give three different runs, and the settings needed for that
    # besides the optimizer itself.
    examples: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    beside: Mapping[str, Settings] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The per-member fields that its update reads."""
        own = [name for name, one in self.fields.model_fields.items() if is_per_member(one)]
        return (*self.reads, *own)
