"""Control: rules that turn measured signals into interventions while a member trains; free of torch.

A rule reads its signal at the steps ``after``, ``after + every``, and so on. After ``readings`` of them in a row above
``above`` it fires: before the next step its change takes effect, as an intervention ``at`` that step would. It fires
``at_most`` times, and does not read for ``cool_down`` steps after each. With several steps in ``do`` the n-th firing
does the n-th of them, and later ones do the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_serializer, model_validator

from objectives.interventions import (
    Configuration,
    Intervention,
    Number,
    change_in_words,
    factor_of,
    length_in_words,
    problem_with_value,
    refuse_what_cannot_act,
)

Signal = Literal[
    "step",
    "loss",
    "grad_norm",
    "curvature",
    "curvature_along_gradient",
    "v_lag",
    "noise_scale",
    "gain",
    "loss_scale_falls",
]
SIGNALS: tuple[str, ...] = get_args(Signal)
# Those that need products with the Hessian, and how many they take.
PRODUCTS: Mapping[str, int] = {"curvature": 4, "curvature_along_gradient": 1}
# The trend of a series is the median of its last finite values before the step; there is none of fewer than the least.
WINDOW, LEAST_HISTORY = 64, 8
QUANTILE, BY_GAIN = "clip_to_quantile", "lr_by_gain"
# The keys of a change whose number is measured when it is done, and the field that each sets.
_MEASURED: Mapping[str, str] = {QUANTILE: "clip", BY_GAIN: "lr"}
_SOME: Mapping[str, float] = {"clip": 1.0, "lr": 1.0}  # in place of a number that is not measured yet
_OF_ENTRIES = ("reset", "rescale", "skip")
_MOST_FIRINGS = 1000
NO_RULES = "none"  # an empty list in words

Change = Mapping[str, Any]


def _listed(value: Any) -> Any:
    """One change is a list of one."""
    return (value,) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value


class Rule(BaseModel):
    """What is read of a member, and what is done when it is too large."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = Field(None, pattern=r"^[^\s=]([^=\n]{0,28}[^\s=])?$", description="what maps and tables call it")
    on: Signal = Field(description="the signal that is read")
    above: float = Field(ge=0, description="the value that a reading must exceed")
    readings: int = Field(1, ge=1, description="readings in a row that must exceed it")
    do: Annotated[tuple[Change, ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="the change, or one for each firing; the last one repeats"
    )
    every: int = Field(10, ge=1, description="steps from one reading to the next")
    after: int = Field(0, ge=0, description="the first step that is read")
    at_most: int = Field(1, ge=1, le=_MOST_FIRINGS, description="firings in all")
    cool_down: int = Field(0, ge=0, description="steps after a firing that are not read")
    over: int = Field(0, ge=0, description="steps of a linear ramp of the fields that it sets")
    lasts: int | None = Field(None, ge=1, description="steps after which the fields go back; null for never")

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str | None) -> str | None:
        if name == NO_RULES:
            raise ValueError(f"{name!r} is what maps call an empty list")
        return name

    @field_validator("do")
    @classmethod
    def _changes_are_known(cls, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """In one form: x.5 and x0.50 are the same factor."""
        return tuple(_canonical(change) for change in changes)

    @model_validator(mode="after")
    def _can_be_entries(self) -> Rule:
        if not any(may_set([self])) and (self.over or self.lasts is not None):
            raise ValueError("over and lasts are of fields that it sets, and it sets none")
        if len(self.do) > self.at_most:
            raise ValueError(f"it has {len(self.do)} changes and fires at most {self.at_most} times: raise at_most")
        if self.over and any(QUANTILE in change for change in self.do):
            raise ValueError(f"there is no ramp to a quantile: leave out over, or {QUANTILE}")
        for number in range(1, len(self.do) + 1):
            self.entry(number, 0, _SOME)
        return self

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        """What was set: a key that is added to this class leaves the identity of older trials as it is."""
        fields = type(self).model_fields
        kept = {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].default}
        return {**kept, "do": [dict(change) for change in self.do]}

    def entry(self, number: int, at: int, measured: Mapping[str, float]) -> Intervention:
        """The intervention of the firing ``number``, from 1 on; ``measured`` has the fields that measurements set."""
        change = self.do[min(number, len(self.do)) - 1]
        fields = {**_sets(change), **{name: measured[name] for name in _set_by_measurement(change)}}
        length: dict[str, Any] = {"over": self.over, "lasts": self.lasts} if fields else {}
        return Intervention(at=at, set=fields, **length, **_kept(change, *_OF_ENTRIES))

    def asks_quantile(self, number: int) -> float | None:
        """The quantile of recent gradient norms that the firing ``number`` clips to; None for none."""
        found = self.do[min(number, len(self.do)) - 1].get(QUANTILE)
        return None if found is None else float(found)

    def asks_gain(self, number: int) -> bool:
        """Whether the firing ``number`` sets the learning rate by the gain."""
        return BY_GAIN in self.do[min(number, len(self.do)) - 1]


def _sets(change: Change) -> dict[str, Number]:
    """The fields that a change sets itself."""
    return {name: value for name, value in change.items() if name not in _MEASURED and name not in _OF_ENTRIES}


def _set_by_measurement(change: Change) -> list[str]:
    """The fields that a change sets to what is measured."""
    return [field for key, field in _MEASURED.items() if key in change]


def _canonical(change: Change) -> dict[str, Any]:
    if not change:
        raise ValueError(f"a change is empty: give it a field, {', '.join(_OF_ENTRIES)}, {QUANTILE} or {BY_GAIN}")
    quantile = change.get(QUANTILE, 1.0)
    if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile <= 1:
        raise ValueError(f"{QUANTILE} = {quantile!r:.40} is not a number above 0 and up to 1")
    if change.get(BY_GAIN, True) is not True:
        raise ValueError(f"{BY_GAIN} = {change[BY_GAIN]!r:.40} is not true: leave it out where it is not wanted")
    for key, field in _MEASURED.items():
        if key in change and field in change:
            raise ValueError(f"{field} and {key} set the same field: keep one of the two")
    fields = {**_sets(change), **{name: _SOME[name] for name in _set_by_measurement(change)}}
    entry = Intervention(at=0, set=fields, **_kept(change, *_OF_ENTRIES)).model_dump()
    measured = {**({QUANTILE: float(quantile)} if QUANTILE in change else {}), **_kept(change, BY_GAIN)}
    own = {name: value for name, value in entry.get("set", {}).items() if name in change}
    return {**own, **_kept(entry, *_OF_ENTRIES), **measured}


def _kept(change: Change, *keys: str) -> dict[str, Any]:
    return {key: change[key] for key in keys if key in change}


class Controlled(Configuration, Protocol):
    """What is read here of a configuration of training."""

    @property
    def control(self) -> tuple[Rule, ...]:
        """Its rules."""

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that can be read with its settings."""


Config = TypeVar("Config", bound=Controlled)


def may_set(rules: Iterable[Rule]) -> list[Mapping[str, Number]]:
    """The fields that rules may set, with their values or factors; what is measured is a number not yet known."""
    changes = [change for rule in rules for change in rule.do]
    return [{**_sets(change), **{name: _SOME[name] for name in _set_by_measurement(change)}} for change in changes]


def first_reading(rules: Sequence[Rule]) -> float:
    """The first step that any of the rules reads; infinite without rules."""
    return min((rule.after for rule in rules), default=math.inf)


def with_fired(config: Config, fired: Sequence[Mapping[str, Any]]) -> Config:
    """``config`` with what its rules have done among its interventions, behind its own ones of the same step."""
    if not fired:
        return config
    entries = [*config.interventions, *(Intervention.model_validate(one["did"], strict=False) for one in fired)]
    return config.model_copy(update={"interventions": tuple(sorted(entries, key=lambda entry: entry.at))})


def acted(config: Mapping[str, Any], fired: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A configuration as plain data with what its rules did among its interventions, in place of the rules."""
    entries = [*(config.get("interventions") or ()), *(one["did"] for one in fired)]
    kept = {name: value for name, value in config.items() if name not in ("interventions", "control")}
    return {**kept, **({"interventions": sorted(entries, key=lambda entry: entry["at"])} if entries else {})}


def refuse_rules_that_cannot_act(config: Controlled) -> None:
    """Raise ValueError for a rule that these settings give no meaning to, naming it and what would do."""
    for number, rule in enumerate(config.control, 1):
        here = f"control rule {number}"
        if rule.on not in config.signals:
            what = f"there is no such signal with these settings, optimizer {config.optimizer} among them"
            raise ValueError(f"{here} cannot read {rule.on}: {what}; these can be read: {', '.join(config.signals)}")
        if rule.after + 1 >= config.steps:
            raise ValueError(f"{here} reads from step {rule.after} on, which is too late: steps = {config.steps}")
        for firing in range(1, len(rule.do) + 1):
            if rule.asks_gain(firing) and "gain" not in config.signals:
                where = f"{here}, change {firing}: {BY_GAIN} needs the gain"
                raise ValueError(f"{where}, which these settings do not measure: that of gpt with accumulate above 1")
            # Own interventions that clash among themselves are refused elsewhere.
            alone = config.model_copy(update={"interventions": (rule.entry(firing, rule.after + 1, _SOME),)})
            try:
                refuse_what_cannot_act(alone)
            except ValueError as error:
                entry = f"interventions at {rule.after + 1}"
                said = str(error).replace(f"{entry} have", "it has").replace(entry, "it")
                said = said.replace("interventions make", "it makes")
                raise ValueError(f"{here}, change {firing}: {said}") from None
    _refuse_nulls(config)
    _refuse_extremes(config)


def _all_sets(config: Controlled) -> list[Mapping[str, Number]]:
    return [*(entry.set for entry in config.interventions), *may_set(config.control)]


def _refuse_nulls(config: Controlled) -> None:
    """Refuse a factor or a ramp on a field that is null at the start, or that something sets to null."""
    every = _all_sets(config)
    for number, rule in enumerate(config.control, 1):
        for change in rule.do:
            for name, value in _sets(change).items():
                is_null = getattr(config, name) is None or any(one.get(name, 0) is None for one in every)
                if is_null and (factor_of(value) is not None or rule.over):
                    what = "a ramp" if rule.over else "a factor"
                    raise ValueError(f"control rule {number} has {what} on {name}, which may be null: write a number")


def _refuse_extremes(config: Controlled) -> None:
    """Refuse rules whose factors, at all the firings that they may have, leave the domain of a field."""
    for name in dict.fromkeys(name for one in may_set(config.control) for name in one):
        written = [one[name] for one in _all_sets(config) if name in one]
        bases = {value for value in (getattr(config, name), *written) if isinstance(value, int | float) and value}
        changes = [(rule.at_most, change.get(name)) for rule in config.control for change in rule.do]
        changes += [(1, entry.set.get(name)) for entry in config.interventions]
        factors = [(times, factor) for times, change in changes if (factor := factor_of(change)) is not None]
        for is_rise in (True, False):
            powers = [(times, factor) for times, factor in factors if (factor > 1) == is_rise]
            for base in bases:
                value = base * _product(powers)
                if problem := problem_with_value(config, name, value):
                    most = f"control may make {name} {value:g} if all factors on it act as often as they may"
                    raise ValueError(f"{most}, which is refused: {problem}")


def _product(powers: Sequence[tuple[int, float]]) -> float:
    """Factors, each as often as its number says; infinite where that is too much for a float."""
    try:
        return math.prod(factor**number for number, factor in powers)
    except OverflowError:
        return math.inf


def policy_in_words(rules: Sequence[Mapping[str, Any]], *, wants_details: bool = True) -> str:
    """A policy as plain data in few characters, e.g. ``curvature > 1: lr x0.5``; ``none`` for no rules."""
    return " + ".join(_rule_in_words(rule, wants_details) for rule in rules) or NO_RULES


def _rule_in_words(rule: Mapping[str, Any], wants_details: bool) -> str:
    if rule.get("name"):
        return str(rule["name"])
    changes = rule["do"] if isinstance(rule["do"], list | tuple) else [rule["do"]]
    text = f"{rule['on']} > {rule['above']:g}: {', then '.join(map(_change_in_words, changes))}"
    if not wants_details:
        return text
    details = [length_in_words(rule).strip()]
    details += [f"{rule['readings']} readings"] if rule.get("readings", 1) > 1 else []
    details += [f"every {rule['every']}"] if "every" in rule else []
    details += [f"after {rule['after']}"] if rule.get("after") else []
    details += [f"{rule['at_most']} times"] if rule.get("at_most", 1) > 1 else []
    details += [f"cool down {rule['cool_down']}"] if rule.get("cool_down") else []
    return ", ".join([text, *filter(None, details)])


def _change_in_words(change: Mapping[str, Any]) -> str:
    words = change_in_words({"set": _sets(change), **_kept(change, *_OF_ENTRIES)})
    quantile = f"clip to quantile {change[QUANTILE]:g}" if QUANTILE in change else ""
    return " + ".join(filter(None, [words, quantile, "lr by gain" if BY_GAIN in change else ""]))


def firing_in_words(fired: Mapping[str, Any]) -> str:
    """What a rule did, when and why: ``lr x0.5 at 106 (curvature 1.3 > 1 at step 105)``."""
    did = fired["did"]
    why = f"{fired['on']} {fired['value']:.3g} > {fired['above']:g} at step {fired['step']}"
    return f"{change_in_words(did)} at {did['at']}{length_in_words(did)} ({why})"
