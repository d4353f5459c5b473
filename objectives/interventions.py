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
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from objectives.fields import can_change, condition_of, is_per_member, may_change
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.facts.optimizer import Optimizer

Number = float | int | str | None
_COMMON = ("lr", "weight_decay", "clip", "adagc", "zclip")
Reset = Literal["moments", "first_moment", "second_moment"]
RESETS: tuple[str, ...] = get_args(Reset)
_OF_GROUPS = "_lr", "_grad"  # endings of the fields of layer groups
_FACTOR = re.compile(r"x([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")


class Intervention(BaseModel):
    """A change that takes effect before the step ``at`` of a member. Steps count from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    at: int = Field(ge=0, description="the step before which it takes effect")
    set: Mapping[str, Number] = Field({}, description="fields and their values, or factors such as x0.5")
    over: int = Field(0, ge=0, description="steps of a linear ramp; 0 for at once")
    lasts: int | None = Field(None, ge=1, description="steps after which the fields return; null for never")
    reset: Reset | None = Field(
        None, description="moments of the optimizer to set to zero; moments resets its whole state"
    )
    rescale: float | None = Field(None, gt=0, description="factor on the second moment")
    skip: int = Field(0, ge=0, description="batches to leave out")
    data: int = Field(0, ge=0, description="number of another stream of batches; 0 for the same stream")

    @field_validator("set")
    @classmethod
    def _values_are_numbers(cls, changes: Mapping[str, Number]) -> Mapping[str, Number]:
        """Normalise values, so that 1 and 1.0, or x.5 and x0.50, are equal."""
        return {name: _canonical(name, changes[name]) for name in sorted(changes)}

    @model_validator(mode="after")
    def _changes_something(self) -> Intervention:
        here = f"the intervention at {self.at}"
        if not self.set and (self.over or self.lasts is not None):
            raise ValueError(f"{here} sets no field: over and lasts apply to fields that it sets")
        if self.lasts is not None and self.lasts <= self.over:
            raise ValueError(f"{here} lasts {self.lasts} steps: it must outlast its ramp over {self.over}")
        if not (self.set or self.reset or self.rescale is not None or self.skip or self.data):
            raise ValueError(f"{here} changes nothing: give it set, reset, rescale, skip or data")
        return self

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        """Dump only the keys that were set, so that a new key of this class does not change the ids of older trials."""
        kept = plain({name: getattr(self, name) for name in type(self).model_fields})
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in kept.items()}

    def share(self, step: int) -> float:
        """Return the share of its change in force at ``step``, from 0 to 1."""
        gone = 0.0 if self.lasts is None else _risen(step - self.at - self.lasts, self.over)
        return _risen(step - self.at, self.over) - gone

    def spans(self) -> list[range]:
        """Return the ranges of steps during which it changes something."""
        starts = [self.at] if self.lasts is None else [self.at, self.at + self.lasts]
        return [range(start, start + self.over + 1) for start in starts]


def plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the keys that are off."""
    fields = Intervention.model_fields
    return {name: value for name, value in entry.items() if name == "at" or value != fields[name].default}


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


def data_seed(config: Configuration, seed: int, step: int) -> int:
    """Return the seed of batches and noise at ``step``: the member's, or the seed of the latest other stream."""
    streams = [entry.data for entry in config.interventions if entry.data and entry.at <= step]
    if not streams:
        return seed
    digest = hashlib.sha256(f"stream {streams[-1]} of {seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def num_skipped(config: Configuration, step: int) -> int:
    """Return how many batches interventions have left out up to and including ``step``."""
    return sum(entry.skip for entry in config.interventions if entry.at <= step)


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


def changes_in_words(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a short text for interventions as plain data, e.g. ``lr x0.5 at 100``; ``none`` for none."""
    return ", ".join(map(_in_words, entries)) or "none"


def _in_words(entry: Mapping[str, Any]) -> str:
    return f"{change_in_words(entry)} at {entry['at']}{length_in_words(entry)}"


def change_in_words(entry: Mapping[str, Any], number_text: Callable[[Number], str] | None = None) -> str:
    """Return what an entry changes, without when, e.g. ``lr x0.5 + skip 5``."""
    text = number_text or _number_text
    words = [f"{name} {'none' if value is None else text(value)}" for name, value in entry.get("set", {}).items()]
    if entry.get("reset"):
        words.append(f"reset {entry['reset'].replace('_', ' ')}")
    if entry.get("rescale") is not None:
        words.append(f"second moment x{text(entry['rescale'])}")
    if entry.get("skip"):
        words.append(f"skip {entry['skip']}")
    if entry.get("data"):
        words.append(f"data {entry['data']}")
    if entry.get("back"):
        words.append(f"back {entry['back']}")
    if entry.get("stop"):
        words.append("stop")
    return " + ".join(words)


def length_in_words(entry: Mapping[str, Any]) -> str:
    """Return the ramp and the duration of an entry, e.g. `` over 5 for 50``; "" for at once and forever."""
    over = f" over {entry['over']}" if entry.get("over") else ""
    return over + (f" for {entry['lasts']}" if entry.get("lasts") is not None else "")


def factor_of(change: Any) -> float | None:
    """Return the number of a text such as ``x0.5``, or None for anything else."""
    return float(change[1:]) if isinstance(change, str) and _FACTOR.fullmatch(change) else None


def _number_text(value: Number) -> str:
    return value if isinstance(value, str) else re.sub(r"e([+-])0+", r"e\1", f"{value:.12g}").replace("e+", "e")


def _canonical(name: str, change: Number) -> Number:
    if change is None:
        return None
    if isinstance(change, bool):
        raise ValueError(f"{name} = {str(change).lower()} is not a number, a factor such as x0.5, or null")
    if isinstance(change, str):
        if not _FACTOR.fullmatch(change):
            raise ValueError(f"{name} = {change!r:.40} is not a number, a factor such as x0.5, or null")
        return f"x{_number_text(float(change[1:]))}"
    return float(change)


def _risen(steps: int, over: int) -> float:
    return min(max(steps + 1, 0) / (over + 1), 1.0)


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
