"""Interventions: changes of a trial's hyperparameters, optimizer states and data in mid-run; free of torch.

An entry that sets a field is a layer over the layers of the entries before it, in the order of ``at``. Where v is the
value that these give at a step, and t its target (v times the factor, or the number),

    value = v + share * (t - v)
    share = 0 before ``at``, (step - at + 1) / (over + 1) on the ramp, 1 from at + over on,
            and back to 0 in equal steps from at + lasts on.

So a ramp over n steps has n + 1 equal steps, and the numbers at a step are a function of the configuration and of the
step alone: nothing need be kept to resume within a ramp.
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

from objectives.fields import is_per_member, may_change
from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.facts.optimizer import Optimizer

Number = float | int | str | None
_COMMON = ("lr", "weight_decay", "clip", "adagc", "zclip")
Reset = Literal["moments", "first_moment", "second_moment"]
RESETS: tuple[str, ...] = get_args(Reset)
_FACTOR = re.compile(r"x([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")


class Intervention(BaseModel):
    """What changes before the step ``at`` of a member, whose steps count from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    at: int = Field(ge=0, description="the step before which it takes effect")
    set: Mapping[str, Number] = Field({}, description="fields and their values, or factors such as x0.5")
    over: int = Field(0, ge=0, description="steps of a linear ramp; 0 for at once")
    lasts: int | None = Field(None, ge=1, description="steps after which the fields go back; null for never")
    reset: Reset | None = Field(
        None, description="moments of the optimizer that become zero; with moments it starts afresh"
    )
    rescale: float | None = Field(None, gt=0, description="factor on the second moment")
    skip: int = Field(0, ge=0, description="batches that are left out")
    data: int = Field(0, ge=0, description="number of another stream of batches; 0 for no other")

    @field_validator("set")
    @classmethod
    def _values_are_numbers(cls, changes: Mapping[str, Number]) -> Mapping[str, Number]:
        """1 and 1.0 are the same value, and so are x.5 and x0.50."""
        return {name: _canonical(name, changes[name]) for name in sorted(changes)}

    @model_validator(mode="after")
    def _changes_something(self) -> Intervention:
        here = f"the intervention at {self.at}"
        if not self.set and (self.over or self.lasts is not None):
            raise ValueError(f"{here} sets no field: over and lasts are of fields that it sets")
        if self.lasts is not None and self.lasts <= self.over:
            raise ValueError(f"{here} lasts {self.lasts} steps, no longer than its ramp over {self.over}")
        if not (self.set or self.reset or self.rescale is not None or self.skip or self.data):
            raise ValueError(f"{here} changes nothing: give it set, reset, rescale, skip or data")
        return self

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        """What was set: a key that is added to this class leaves the identity of older trials as it is."""
        kept = plain({name: getattr(self, name) for name in type(self).model_fields})
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in kept.items()}

    def share(self, step: int) -> float:
        """How much of its change is in force at ``step``, from 0 to 1."""
        gone = 0.0 if self.lasts is None else _risen(step - self.at - self.lasts, self.over)
        return _risen(step - self.at, self.over) - gone

    def spans(self) -> list[range]:
        """The steps at which it changes something."""
        starts = [self.at] if self.lasts is None else [self.at, self.at + self.lasts]
        return [range(start, start + self.over + 1) for start in starts]


def plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as it is written: without what is off."""
    fields = Intervention.model_fields
    return {name: value for name, value in entry.items() if name == "at" or value != fields[name].default}


class Configuration(Protocol):
    """What is read here of a configuration of training."""

    @property
    def steps(self) -> int:
        """Length of the run."""

    @property
    def optimizer(self) -> str:
        """Its name."""

    @property
    def optimizer_facts(self) -> Optimizer:
        """What is known of it."""

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """In the order of ``at``."""

    @property
    def later_values(self) -> Sequence[Mapping[str, Number]]:
        """The fields that anything sets in mid-run, with their values or factors."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with other values."""


Config = TypeVar("Config", bound=Configuration)


def in_force(config: Config, step: int) -> Config:
    """``config`` with the numbers that are in force at ``step``, and no interventions."""
    if not config.interventions:
        return config
    values: dict[str, float | None] = {}
    for entry in config.interventions:
        share = entry.share(step)
        for name, change in entry.set.items():
            before = values.get(name, getattr(config, name))
            values[name] = _blend(before, _target(before, change), share)
    return config.model_copy(update={**values, "interventions": ()})


def next_change(config: Configuration, step: int) -> int | None:
    """The first step from ``step`` on at which something changes; None for none."""
    spans = [span for entry in config.interventions for span in entry.spans() if span[-1] >= step]
    first = min((max(step, span[0]) for span in spans), default=None)
    return first if first is not None and first < config.steps else None


def events(config: Configuration, step: int) -> list[Intervention]:
    """The interventions that start at ``step``, in order."""
    return [entry for entry in config.interventions if entry.at == step]


def data_seed(config: Configuration, seed: int, step: int) -> int:
    """The seed of the batches and the noise at ``step``: that of the member, or of the last other stream by then."""
    streams = [entry.data for entry in config.interventions if entry.data and entry.at <= step]
    if not streams:
        return seed
    digest = hashlib.sha256(f"stream {streams[-1]} of {seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def num_skipped(config: Configuration, step: int) -> int:
    """Batches that interventions have left out by ``step``, those of the step itself included."""
    return sum(entry.skip for entry in config.interventions if entry.at <= step)


def ever_set(config: Configuration, name: str) -> bool:
    """Whether the field ``name`` is not null in ``config``, or may become so in mid-run."""
    return getattr(config, name) is not None or any(one.get(name) is not None for one in config.later_values)


def corners(config: Configuration) -> Iterator[int]:
    """The steps at which a ramp begins or ends: between two of them every number moves on a line."""
    for entry in config.interventions:
        for span in entry.spans():
            yield from (span[0], span[-1])


def refuse_what_cannot_act(config: Configuration) -> None:
    """Raise ValueError for an intervention that these settings give no meaning to, naming it and what would do."""
    for entry in config.interventions:
        here = f"interventions at {entry.at}"
        if entry.at >= config.steps:
            raise ValueError(f"{here} are too late: steps = {config.steps}, and the last step is {config.steps - 1}")
        for name in entry.set:
            if problem := _problem_with_field(config, name):
                raise ValueError(f"{here} cannot set {name}: {problem}")
        _refuse_states(config, entry, here)
    if not any(entry.set for entry in config.interventions):
        return
    for step in sorted({step for step in corners(config) if step < config.steps}):
        _refuse_numbers(config, step)


def settable(config: Configuration) -> list[str]:
    """The fields that an intervention may set: numbers that training reads at each step."""
    fields = _fields(config)
    groups = [name for name in fields if name.endswith(("_lr", "_grad")) and is_per_member(fields[name])]
    own = [name for name, field in fields.items() if may_change(field, vars(config))]
    names = dict.fromkeys((*_COMMON, *config.optimizer_facts.numbers, *groups, *own))
    if {"beta2", "beta2_half_life"} & names.keys():
        with_half_life = ever_set(config, "beta2_half_life")
        names |= {"beta2_half_life": None}
        names = {name: None for name in names if not (name == "beta2" and with_half_life)}
    return [name for name in names if fields[name].annotation in (float, float | None)]


def _fields(config: Configuration) -> Mapping[str, FieldInfo]:
    kind: Any = type(config)
    return kind.model_fields


def _problem_with_field(config: Configuration, name: str) -> str | None:
    can = settable(config)
    if name in can:
        return None
    fields = _fields(config)
    if name == "beta2" and ever_set(config, "beta2_half_life"):
        return "beta2_half_life is in its place, so set that"
    if name not in fields:
        what = "there is no such field"
    elif not is_per_member(fields[name]):
        what = "it is structural, the same from start to end"
    elif fields[name].annotation in (float, float | None) and name.startswith(("beta", "eps", *OPTIMIZERS)):
        what = f"{config.optimizer} does not read it"
    else:
        what = "it acts only at the start, or not as a number of each step"
    return f"{what}; these can change: {', '.join(can)}"


def _refuse_states(config: Configuration, entry: Intervention, here: str) -> None:
    facts = config.optimizer_facts
    asks_second = entry.reset == "second_moment" or entry.rescale is not None
    what = f"reset: {entry.reset}" if entry.rescale is None else "rescale"
    if (asks_second and not facts.second_moments) or (entry.reset == "first_moment" and not facts.first_moments):
        remedy = "" if entry.rescale is not None else "; reset: moments starts it afresh"
        raise ValueError(f"{here} cannot do {what}: {config.optimizer} has no such moment that is known{remedy}")


def _refuse_numbers(config: Configuration, step: int) -> None:
    """Refuse a factor or a ramp on null, and numbers at ``step`` that their fields do not take."""
    values: dict[str, float | None] = {}
    for entry in config.interventions:
        share = entry.share(step)
        for name, change in entry.set.items():
            before = values.get(name, getattr(config, name))
            if share > 0 and before is None and isinstance(change, str):
                raise ValueError(f"interventions at {entry.at} have a factor on {name}, which is null there")
            if entry.over and (before is None) != (_target(before, change) is None):
                raise ValueError(f"interventions at {entry.at} have a ramp between null and a number in {name}")
            values[name] = _blend(before, _target(before, change), share)
    for name, value in values.items():
        if message := problem_with_value(config, name, value):
            shown = "null" if value is None else f"{value:g}"
            raise ValueError(f"interventions make {name} {shown} at step {step}, which is refused: {message}")


def problem_with_value(config: Configuration, name: str, value: float | None) -> str | None:
    """Why the field ``name`` does not take ``value``; None where it does."""
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
    """Interventions as plain data in few characters, e.g. ``lr x0.5 at 100``; ``none`` for none."""
    return ", ".join(map(_in_words, entries)) or "none"


def _in_words(entry: Mapping[str, Any]) -> str:
    return f"{change_in_words(entry)} at {entry['at']}{length_in_words(entry)}"


def change_in_words(entry: Mapping[str, Any], number_text: Callable[[Number], str] | None = None) -> str:
    """What an entry changes, without when, e.g. ``lr x0.5 + skip 5``."""
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
    return " + ".join(words)


def length_in_words(entry: Mapping[str, Any]) -> str:
    """The ramp of an entry and how long it lasts, e.g. `` over 5 for 50``; empty for at once and for ever."""
    over = f" over {entry['over']}" if entry.get("over") else ""
    return over + (f" for {entry['lasts']}" if entry.get("lasts") is not None else "")


def factor_of(change: Any) -> float | None:
    """The number of a text such as ``x0.5``; None where it is no factor."""
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
    # The configuration refuses a factor on null.
    return None if before is None else before * float(change[1:])


def _blend(before: float | None, target: float | None, share: float) -> float | None:
    """Exactly ``before`` and ``target`` at the ends, and where one of them is null, which has no ramp."""
    if share == 0 or before is None or target is None:
        return before if share == 0 else target
    return target if share == 1 else before + share * (target - before)
