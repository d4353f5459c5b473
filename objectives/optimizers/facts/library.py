"""Facts about the optimizers of torch and pytorch_optimizer, derived from their names."""

from __future__ import annotations

from objectives.fields import Settings
from objectives.optimizers.facts.optimizer import Optimizer

# They divide by the root of an average of g^2, as Adam does.
_WITH_AVERAGED_SQUARES = ("Adam", "AdamW", "NAdam", "StableAdamW")


def _divides_by_root(settings: Settings) -> bool | None:
    name = str(settings.get("optimizer")).lower()
    return False if name.endswith("sgd") else True if "adam" in name else None


def _averages_squares(settings: Settings) -> bool | None:
    return True if str(settings.get("optimizer")).rpartition(".")[2] in _WITH_AVERAGED_SQUARES else None


LIBRARY = Optimizer(
    "of a library",
    "objectives.optimizers.foreign:ForeignRule",
    can_be_stacked=False,
    first_moments=(),
    second_moments=(),
    has_divisor=False,
    has_v=False,
    divides_by_root=_divides_by_root,
    averages_squares=_averages_squares,
)
