"""One intervention: a change of a trial's hyperparameters, optimizer states, weights or data; free of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

Number = float | int | str | None
Reset = Literal["moments", "first_moment", "second_moment"]
RESETS: tuple[str, ...] = get_args(Reset)
SAME, OTHER = "same", "other"  # values of ``data``: the last batch again, and another stream of batches
# Keys of what stays as it is for as long as the entry lasts, and the only value of each that is a word.
HELD: Mapping[str, str | None] = {
    "freeze": None,
    "weight_decay": None,
    "norm": "hold",
    "optimizer": "sgd_like",
    "attention": "capped",
}
_OF_GROUPS = ("weight_decay", "norm")
_FACTOR = re.compile(r"x([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")


class Intervention(BaseModel):
    """A change that takes effect before the step ``at`` of a member. Steps count from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    at: int = Field(ge=0, description="the step before which it takes effect")
    set: Mapping[str, Number] = Field({}, description="fields and their values, or factors such as x0.5")
    over: int = Field(0, ge=0, description="steps of a linear ramp; 0 for at once")
    lasts: int | None = Field(None, ge=1, description="steps after which it ends and fields return; null for never")
    reset: Reset | None = Field(
        None, description="moments of the optimizer to set to zero; moments resets its whole state"
    )
    rescale: float | None = Field(None, gt=0, description="factor on the second moment")
    skip: int = Field(0, ge=0, description="batches to leave out")
    mean: int | None = Field(None, ge=2, description="states of the member whose mean replaces its weights")
    apart: int = Field(10, ge=1, description="steps from one of these states to the next")
    until: int | None = Field(None, ge=0, description="step of the last of these states; null for `at`")
    data: int | Literal["same"] = Field(
        0, description="other, or the number of another stream of batches; same for the last batch again"
    )
    freeze: str | None = Field(None, description="layer group or third of the depth whose weights stand still")
    moments: Literal["go_on", "stop"] = Field(
        "go_on", description="moments of frozen weights go on, or stop as without a gradient"
    )
    group: str = Field("all", description="layer group or third of the depth of weight_decay and norm")
    weight_decay: float | None = Field(None, ge=0, description="weight decay of the group")
    norm: Literal["hold"] | None = Field(None, description="hold keeps the norm of each weight of the group")
    optimizer: Literal["sgd_like"] | None = Field(None, description="sgd_like keeps the second moment as it is")
    attention: Literal["capped"] | None = Field(None, description="capped shrinks queries and keys as qk_clip 100 does")
    precision: Literal["float64"] | None = Field(None, description="float64 for the whole step from here on")

    @field_validator("set")
    @classmethod
    def _values_are_numbers(cls, changes: Mapping[str, Number]) -> Mapping[str, Number]:
        """Normalise values, so that 1 and 1.0, or x.5 and x0.50, are equal."""
        return {name: _canonical(name, changes[name]) for name in sorted(changes)}

    @field_validator("data", mode="before")
    @classmethod
    def _data_are_a_stream(cls, data: Any) -> Any:
        if isinstance(data, str) and data not in (SAME, OTHER):
            raise ValueError(f"data = {data!r:.40} is not same, other, or the number of another stream")
        if isinstance(data, int) and not isinstance(data, bool) and data < 0:
            raise ValueError(f"data = {data} is below 0")
        return 1 if data == OTHER else data

    @model_validator(mode="after")
    def _changes_something(self) -> Intervention:
        here = f"the intervention at {self.at}"
        if self.over and not self.set:
            raise ValueError(f"{here} sets no field: over and lasts apply to fields that it sets")
        if self.lasts is not None and not (self.set or self.data or self.holds):
            ends = ", ".join(("data", *HELD))
            raise ValueError(f"{here} sets no field: over and lasts apply to fields that it sets, lasts also to {ends}")
        if self.lasts is not None and self.lasts <= self.over:
            raise ValueError(f"{here} lasts {self.lasts} steps: it must outlast its ramp over {self.over}")
        if not (
            self.set or self.reset or self.rescale is not None or self.skip or self.data or self.holds or self.precision
            or self.mean is not None
        ):  # fmt: skip
            known = "set, reset, rescale, skip, mean, data, precision"
            raise ValueError(f"{here} changes nothing: give it {known}, {', '.join(HELD)}")
        if self.begins < 0:
            raise ValueError(f"{here} has no {self.mean} states {self.apart} steps apart: choose a later step")
        if self.until is not None and (self.mean is None or self.until > self.at):
            raise ValueError(f"{here} has until: that is for its mean, whose states are not after {self.at}")
        if self.apart != 10 and self.mean is None:
            raise ValueError(f"{here} says how far states are apart: that is for its mean")
        if self.moments != "go_on" and self.freeze is None:
            raise ValueError(f"{here} says what becomes of moments: that is for weights that it freezes")
        if self.group != "all" and self.weight_decay is None and self.norm is None:
            raise ValueError(f"{here} has a group: that is for its {' or '.join(_OF_GROUPS)}; freeze names its own")
        return self

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        """Dump only the keys that were set, so that a new key of this class does not change the ids of older trials."""
        kept = plain({name: getattr(self, name) for name in type(self).model_fields})
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in kept.items()}

    @property
    def holds(self) -> tuple[str, ...]:
        """The keys of what stays as it is for as long as the entry lasts."""
        return tuple(name for name in HELD if getattr(self, name) is not None)

    @property
    def begins(self) -> int:
        """The first step at which a member with it differs from one without: that of the first state of its mean."""
        return self.at if self.mean is None else self.ends - (self.mean - 1) * self.apart

    @property
    def ends(self) -> int:
        """The step of the last state of its mean."""
        return self.at if self.until is None else self.until

    def share(self, step: int) -> float:
        """Return the share of its change in force at ``step``, from 0 to 1."""
        gone = 0.0 if self.lasts is None else _risen(step - self.at - self.lasts, self.over)
        return _risen(step - self.at, self.over) - gone

    def is_on(self, step: int) -> bool:
        """Return whether it lasts at ``step``, apart from ramps."""
        return step >= self.at and (self.lasts is None or step < self.at + self.lasts)

    def spans(self) -> list[range]:
        """Return the ranges of steps during which it changes something."""
        starts = [self.at] if self.lasts is None else [self.at, self.at + self.lasts]
        return [range(start, start + self.over + 1) for start in starts]


def plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the keys that are off."""
    fields = Intervention.model_fields
    return {name: value for name, value in entry.items() if name == "at" or value != fields[name].default}


def _risen(steps: int, over: int) -> float:
    return min(max(steps + 1, 0) / (over + 1), 1.0)


def factor_of(change: Any) -> float | None:
    """Return the number of a text such as ``x0.5``, or None for anything else."""
    return float(change[1:]) if isinstance(change, str) and _FACTOR.fullmatch(change) else None


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


# --- words ---


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
    if entry.get("mean"):
        until = "" if entry.get("until") is None else f" up to {entry['until']}"
        words.append(f"mean of {entry['mean']} states {entry.get('apart', 10)} apart{until}")
    words += _held_in_words(entry, text)
    if entry.get("precision"):
        words.append(f"precision {entry['precision']}")
    if entry.get("data"):
        words.append(f"data {entry['data']}")
    if entry.get("back"):
        words.append(f"back {entry['back']}")
    if entry.get("stop"):
        words.append("stop")
    return " + ".join(words)


def _held_in_words(entry: Mapping[str, Any], text: Callable[[Number], str]) -> list[str]:
    words, group = [], entry.get("group", "all")
    if entry.get("freeze"):
        stop = " and its moments" if entry.get("moments") == "stop" else ""
        words.append(f"freeze {entry['freeze']}{stop}")
    if entry.get("weight_decay") is not None:
        words.append(f"{group}.weight_decay {text(entry['weight_decay'])}")
    if entry.get("norm"):
        words.append(f"{group}.norm {entry['norm']}")
    return words + [f"{name} {entry[name]}" for name in ("optimizer", "attention") if entry.get(name)]


def length_in_words(entry: Mapping[str, Any]) -> str:
    """Return the ramp and the duration of an entry, e.g. `` over 5 for 50``; "" for at once and forever."""
    over = f" over {entry['over']}" if entry.get("over") else ""
    return over + (f" for {entry['lasts']}" if entry.get("lasts") is not None else "")


def _number_text(value: Number) -> str:
    return value if isinstance(value, str) else re.sub(r"e([+-])0+", r"e\1", f"{value:.12g}").replace("e+", "e")
