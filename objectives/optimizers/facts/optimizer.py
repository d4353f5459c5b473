"""The facts about an optimizer that are known without loading torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from objectives.fields import Settings, is_per_member


class NoFields(BaseModel):
    """No fields: for an optimizer without settings of its own."""


def never(settings: Settings) -> bool | None:
    """Return False for all settings."""
    return False


def always(settings: Settings) -> bool | None:
    """Return True for all settings."""
    return True


def unknown(settings: Settings) -> bool | None:
    """Return None for all settings: not known."""
    return None


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer's name, fields and facts; ``rule`` locates its update as module:class.

    ``fields`` belong to this optimizer alone and start with its name; it shares ``reads`` with others. Facts that may
    depend on a trial's settings are functions of the settings and return None if unknown.
    """

    name: str
    rule: str
    fields: type[BaseModel] = NoFields
    reads: Sequence[str] = ("beta1", "beta2", "eps")
    # The same rule in C++, for packs with native kernels; empty for none.
    native_rule: str = ""
    # Whether a pack trains as one stacked model, which can be compiled.
    can_be_stacked: bool = True
    # Whether it keeps the second moment of every parameter uncompressed, so that any initial value is possible.
    can_start_second_moment: bool = False
    # Whether v can stand still while the moment and its bias correction go on.
    can_keep_v: bool = False
    # Whether its moments have one number for each weight's coordinate.
    keeps_columns: bool = True
    # The states that hold its first and second moments, which an intervention may reset or rescale.
    first_moments: Sequence[str] = ("first_moment",)
    second_moments: Sequence[str] = ("second_moment",)
    # Whether a step has a divisor per coordinate, so that curvature can be measured; and whether v can be read.
    has_divisor: bool = True
    has_v: bool = True
    # Whether it divides by the root of a second moment.
    divides_by_root: Callable[[Settings], bool | None] = unknown
    # Whether this second moment averages g^2 with decay beta2, so that a short average makes steps longer.
    averages_squares: Callable[[Settings], bool | None] = never
    # Whether gradient norms determine the sum of v: v starts at zero and averages g^2 over all steps.
    v_follows_from_norms: bool = False
    # For tests: three values per field that give three different runs, and other settings that this needs.
    examples: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    needs: Mapping[str, Settings] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The per-member fields that its update reads."""
        own = [name for name, info in self.fields.model_fields.items() if is_per_member(info)]
        return (*self.reads, *own)
