"""Interventions: changes of a trial's hyperparameters, optimizer states and data during training; free of torch.

An entry that sets a field is a layer over the layers of earlier entries, in the order of ``at``. Let v be the value of
the earlier layers at a step, and t the entry's target (v times a factor, or a number):

    value = v + share * (t - v)
    share = 0 before ``at``, (step - at + 1) / (over + 1) on the ramp, 1 once at + over is reached,
            and back to 0 in equal steps after at + lasts.

A ramp over n steps thus has n + 1 equal steps. The numbers at a step are a function of the configuration and the step
alone, so resuming within a ramp needs no state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from objectives.entries import Intervention, Number
from objectives.fields import can_change, condition_of, is_per_member, may_change
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.facts.optimizer import Optimizer

_COMMON = ("lr", "weight_decay", "clip", "adagc", "zclip")
_OF_GROUPS = "_lr", "_grad"  # endings of the fields of layer groups


class Configuration(Protocol):
    """The part of a training configuration that is read here."""

    @property
    def steps(self) -> int:
        """Length of the run."""

    @property
    def optimizer(self) -> str:
        """Name of the optimizer."""

    @property
    def optimizer_facts(self) -> Optimizer:
        """Facts about the optimizer."""

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Entries in the order of ``at``."""

    @property
    def later_values(self) -> Sequence[Mapping[str, Number]]:
        """Fields that are set during training, with their values or factors."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with other values."""


Config = TypeVar("Config", bound=Configuration)


def in_force(config: Config, step: int) -> Config:
    """Return ``config`` with the numbers in force at ``step``, and without interventions."""
    if not config.interventions:
        return config
    values = {name: value for _, name, _, value in _layers(config, step)}
    return config.model_copy(update={**values, "interventions": ()})


def _layers(config: Configuration, step: int) -> Iterator[tuple[Intervention, str, float | None, float | None]]:
    """Yield each entry and field that it sets, with the values below and above this layer at ``step``."""
    values: dict[str, float | None] = {}
    for entry in config.interventions:
        share = entry.share(step)
        for name, change in entry.set.items():
            below = values.get(name, getattr(config, name))
            values[name] = _blend(below, _target(below, change), share)
            yield entry, name, below, values[name]


def next_change(config: Configuration, step: int) -> int | None:
    """Return the first step, from ``step`` onwards, with a change, or None."""
    spans = [span for entry in config.interventions for span in entry.spans() if span[-1] >= step]
    first = min((max(step, span[0]) for span in spans), default=None)
    return first if first is not None and first < config.steps else None


def ever_set(config: Configuration, name: str) -> bool:
    """Return whether the field ``name`` is not null in ``config``, or may become so during training."""
    return getattr(config, name) is not None or any(values.get(name) is not None for values in config.later_values)


def corners(config: Configuration) -> Iterator[int]:
    """Yield the first and last step of each ramp. Between two such steps, every number is linear in the step."""
    for entry in config.interventions:
        for span in entry.spans():
            yield from (span[0], span[-1])


def check_interventions(config: Configuration) -> None:
    """Raise ValueError for an intervention without a meaning in these settings; the message names the remedy."""
    for entry in config.interventions:
        here = f"interventions at {entry.at}"
        if entry.at >= config.steps:
            raise ValueError(f"{here} are too late: steps = {config.steps}, and the last step is {config.steps - 1}")
        for name in entry.set:
            if problem := _problem_with_field(config, name):
                raise ValueError(f"{here} cannot set {name}: {problem}")
        _check_moments(config, entry, here)
    if not any(entry.set for entry in config.interventions):
        return
    for step in sorted({step for step in corners(config) if step < config.steps}):
        _check_numbers(config, step)


def settable(config: Configuration) -> list[str]:
    """Return the fields that an intervention may set: numbers that training reads at each step."""
    fields, settings = _fields(config), vars(config)
    groups = [name for name in fields if name.endswith(_OF_GROUPS) and is_per_member(fields[name])]
    groups = [name for name in groups if condition_of(fields[name]).holds(settings)]
    own = [name for name, field in fields.items() if may_change(field, settings)]
    every = (*_COMMON, *config.optimizer_facts.numbers, *groups, *own)
    names = {name: None for name in every if name in fields}
    if {"beta2", "beta2_half_life"} & names.keys():
        with_half_life = ever_set(config, "beta2_half_life")
        names |= {"beta2_half_life": None}
        names = {name: None for name in names if not (name == "beta2" and with_half_life)}
    return [name for name in names if fields[name].annotation in (float, float | None)]


def _fields(config: Configuration) -> Mapping[str, FieldInfo]:
    kind: Any = type(config)
    return kind.model_fields


def _problem_with_field(config: Configuration, name: str) -> str | None:
    names = settable(config)
    if name in names:
        return None
    fields = _fields(config)
    if name not in fields:
        problem = "there is no such field"
    elif name == "beta2" and ever_set(config, "beta2_half_life"):
        return "beta2_half_life replaces it, so set that"
    elif not is_per_member(fields[name]):
        problem = "it is structural, the same from start to end"
    elif fields[name].annotation in (float, float | None) and name.startswith(("beta", "eps", *OPTIMIZERS)):
        problem = f"{config.optimizer} does not read it"
    elif name.endswith(_OF_GROUPS) or can_change(fields[name]):
        problem = f"it acts only where {condition_of(fields[name]).text}"
    else:
        problem = "it acts only at the start, or is not a number that each step reads"
    return f"{problem}; these can change: {', '.join(names)}"


def _check_moments(config: Configuration, entry: Intervention, here: str) -> None:
    facts = config.optimizer_facts
    needs_second = entry.reset == "second_moment" or entry.rescale is not None
    change = f"reset: {entry.reset}" if entry.rescale is None else "rescale"
    if (needs_second and not facts.second_moments) or (entry.reset == "first_moment" and not facts.first_moments):
        remedy = "" if entry.rescale is not None else "; reset: moments restarts it"
        raise ValueError(f"{here} cannot do {change}: {config.optimizer} has no known moment of this kind{remedy}")


def _check_numbers(config: Configuration, step: int) -> None:
    """Reject factors and ramps on null, and numbers at ``step`` outside the domains of their fields."""
    values = {}
    for entry, name, below, value in _layers(config, step):
        change, values[name] = entry.set[name], value
        if entry.share(step) > 0 and below is None and isinstance(change, str):
            raise ValueError(f"interventions at {entry.at} have a factor on {name}, which is null there")
        if entry.over and (below is None) != (_target(below, change) is None):
            raise ValueError(f"interventions at {entry.at} have a ramp between null and a number in {name}")
    for name, value in values.items():
        if message := problem_with_value(config, name, value):
            shown = "null" if value is None else f"{value:g}"
            raise ValueError(f"interventions make {name} {shown} at step {step}, which is out of range: {message}")


def problem_with_value(config: Configuration, name: str, value: float | None) -> str | None:
    """Return why the field ``name`` rejects ``value``, or None if it accepts it."""
    try:
        _checker(type(config), name).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        return message[:1].lower() + message[1:]
    return None


@functools.lru_cache(maxsize=512)
def _checker(config_class: type[Any], name: str) -> TypeAdapter[Any]:
    field = config_class.model_fields[name]
    checked: Any = Annotated[field.annotation, field]  # type: ignore[name-defined,valid-type,unused-ignore]
    return TypeAdapter(checked, config=ConfigDict(strict=True, allow_inf_nan=False))


def _target(before: float | None, change: Number) -> float | None:
    if not isinstance(change, str):
        return change
    # Validation rejects a factor on null.
    return None if before is None else before * float(change[1:])


def _blend(before: float | None, target: float | None, share: float) -> float | None:
    """Return ``before`` and ``target`` exactly at the ends of a ramp, and whenever one is null, which has no ramp."""
    if share == 0 or before is None or target is None:
        return before if share == 0 else target
    return target if share == 1 else before + share * (target - before)
