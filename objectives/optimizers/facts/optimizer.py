"""What is known of an optimizer without loading torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from objectives.fields import Settings, is_per_member


class NoFields(BaseModel):
    """Of an optimizer without a setting of its own."""


def never(settings: Settings) -> bool | None:
    """Whatever the settings are: no."""
    return False


def always(settings: Settings) -> bool | None:
    """Whatever the settings are: yes."""
    return True


def unknown(settings: Settings) -> bool | None:
    """Whatever the settings are: nobody says."""
    return None


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The name of an optimizer, its fields and its facts; ``rule`` is where its update is, as module:class.

    ``fields`` are its own, and begin with its name; ``reads`` are those that it shares with others. Facts that may
    depend on the settings of a trial are functions of them, None where nobody says.
    """

    name: str
    rule: str
    fields: type[BaseModel] = NoFields
    reads: Sequence[str] = ("beta1", "beta2", "eps")
    # Whether all members of a pack train as one model, which can be compiled.
    can_be_stacked: bool = True
    # Whether it keeps the second moment of every parameter as it is, so that it can start elsewhere than at zero.
    can_start_second_moment: bool = False
    # Whether steps are divided by the root of a second moment.
    divides_by_root: Callable[[Settings], bool | None] = unknown
    # Whether that is the root of an average of g^2 with decay beta2, by which steps grow where it is short.
    averages_squares: Callable[[Settings], bool | None] = never
    # Whether the sum of v follows from the gradient norms: v starts at zero, and is the average of g^2 of all steps.
    v_follows_from_norms: bool = False

    @property
    def numbers(self) -> tuple[str, ...]:
        """The fields that its update reads as numbers, one for each member."""
        own = [name for name, field in self.fields.model_fields.items() if is_per_member(field)]
        return (*self.reads, *own)
