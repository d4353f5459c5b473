"""Control: rules that turn measured signals into interventions during training; free of torch.

A rule reads its signal at the steps ``after``, ``after + every``, and so on. It fires after ``readings`` consecutive
readings above ``above``, and its change takes effect before the next step, as an intervention ``at`` that step would.
It fires ``at_most`` times and pauses for ``cool_down`` steps after each firing. If ``do`` is a list, the n-th firing
applies the n-th change, and later firings the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_serializer, model_validator

from objectives.entries import HELD, Intervention, Number, factor_of
from objectives.held import Holding, check_entries
from objectives.interventions import problem_with_value

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
    "router_gini",
    "router_dead",
    "not_finite",
]
SIGNALS: tuple[str, ...] = get_args(Signal)
# Signals that need products with the Hessian, and how many.
PRODUCTS: Mapping[str, int] = {"curvature": 4, "curvature_along_gradient": 1}
# The trend of a series is the median of its last finite values before the step.
WINDOW, LEAST_HISTORY = 64, 8  # values: at most, and at least for a trend
QUANTILE, BY_GAIN = "clip_to_quantile", "lr_by_gain"
# Keys of a change whose number is measured when a rule fires, and the field that each sets.
_MEASURED: Mapping[str, str] = {QUANTILE: "clip", BY_GAIN: "lr"}
_PLACEHOLDERS: Mapping[str, float] = {"clip": 1.0, "lr": 1.0}  # for numbers that are not measured yet
# Keys of an entry, apart from fields. ``weight_decay`` is one only next to ``group``.
OF_ENTRIES = ("reset", "rescale", "skip", "mean", "apart", "data", "moments", "group", "precision", *HELD)
# Changes of a training loop of the user's own; built-in objectives have the field ``rollback``.
BACK, STOP = "back", "stop"
_OF_LOOPS = (BACK, STOP)
_MOST_FIRINGS = 1000
_OF_MEANS = ("mean", "apart")
_LATE = 2**40  # a step with every state before it
NO_RULES = "none"  # the text for an empty list

Change = Mapping[str, Any]


def _listed(value: Any) -> Any:
    """Return a single change as a list of one."""
    return (value,) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value


class Rule(BaseModel):
    """A signal to read, and what to do when it is too large."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = Field(None, pattern=r"^[^\s=]([^=\n]{0,28}[^\s=])?$", description="its name in maps and tables")
    on: Signal = Field(description="the signal to read")
    above: float = Field(ge=0, description="the threshold that a reading must exceed")
    readings: int = Field(1, ge=1, description="consecutive readings that must exceed it")
    do: Annotated[tuple[Change, ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="the change, or one per firing; the last one repeats"
    )
    every: int = Field(10, ge=1, description="steps from one reading to the next")
    after: int = Field(0, ge=0, description="the first step to read")
    at_most: int = Field(1, ge=1, le=_MOST_FIRINGS, description="largest number of firings")
    cool_down: int = Field(0, ge=0, description="steps without readings after a firing")
    over: int = Field(0, ge=0, description="steps of a linear ramp, for the fields that it sets")
    lasts: int | None = Field(None, ge=1, description="steps after which the fields return; null for never")
    calm: int | None = Field(
        None, ge=1, description="steps without a firing after which the first change is next again; null for never"
    )

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str | None) -> str | None:
        if name == NO_RULES:
            raise ValueError(f"{name!r} is the name of an empty list; choose another")
        return name

    @field_validator("do")
    @classmethod
    def _changes_are_known(cls, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Normalise changes, so that x.5 and x0.50 are equal."""
        return tuple(_canonical(change) for change in changes)

    @model_validator(mode="after")
    def _can_be_entries(self) -> Rule:
        sets, holds = any(may_set([self])), any(map(_lasting, self.do))
        if not sets and (self.over or (self.lasts is not None and not holds)):
            raise ValueError("over and lasts apply to fields that it sets, and it sets none")
        if len(self.do) > self.at_most:
            raise ValueError(f"it has {len(self.do)} changes and fires at most {self.at_most} times: raise at_most")
        if self.over and any(QUANTILE in change for change in self.do):
            raise ValueError(f"a quantile cannot be reached by a ramp: leave out over, or {QUANTILE}")
        if self.calm is not None and len(self.do) == 1:
            raise ValueError(
                "calm returns to the first of several changes, and it has one: remove calm, or add changes"
            )
        for number in range(1, len(self.do) + 1):
            self.did(number, _some_step(self._change(number)), _PLACEHOLDERS)
        return self

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        """Dump only the keys that were set, so that a new key of this class does not change the ids of older trials."""
        fields = type(self).model_fields
        kept = {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].default}
        return {**kept, "do": [dict(change) for change in self.do]}

    def did(self, number: int, at: int, measured: Mapping[str, float]) -> dict[str, Any]:
        """Return what a firing does: an intervention as plain data, and changes that only a loop of your own can make.

        ``number`` counts from 1, ``measured`` has the measured fields.
        """
        change = self._change(number)
        fields = _all_fields(change, measured)
        length: dict[str, Any] = {"over": self.over, "lasts": self.lasts} if fields else {}
        length |= {"lasts": self.lasts} if _lasting(change) else {}
        if "mean" in change:
            states = self.states(number, at)
            mean = {"mean": len(states)} if states else {}
            change = {**{key: value for key, value in change.items() if states or key not in _OF_MEANS}, **mean}
            length |= {"until": states[-1]} if states else {}
        return {"at": at, **_entry(at, change, fields, **length), **_kept(change, *_OF_LOOPS)}

    def number(self, past: Sequence[int], step: int) -> int:
        """Return which change a firing at ``step`` makes, from 1, after its firings at the steps ``past``."""
        times = [*past, step]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        starts = [i for i, gap in enumerate(gaps, 1) if self.calm is not None and gap > self.calm]
        return len(times) - max(starts, default=0)

    def _change(self, number: int) -> Change:
        return self.do[min(number, len(self.do)) - 1]

    def asks_quantile(self, number: int) -> float | None:
        """Return the quantile of recent gradient norms that the firing ``number`` clips to, or None."""
        quantile = self._change(number).get(QUANTILE)
        return None if quantile is None else float(quantile)

    def states(self, number: int, at: int) -> range:
        """Return the steps of the states whose mean the firing ``number`` sets before the step ``at``; two at least.

        These are the last multiples of ``apart`` that were followed by ``apart`` steps: what spoils the weights of a
        state is in the readings by then. Empty without a mean, or while there are fewer than two.
        """
        change = self._change(number)
        if "mean" not in change:
            return range(0)
        apart = change.get("apart", 10)
        last = (at // apart - 1) * apart
        states = range(max(last - (change["mean"] - 1) * apart, self._first_state(change)), last + 1, apart)
        return states if len(states) > 1 else range(0)

    def waits_for_states(self, number: int, at: int) -> bool:
        """Return whether the firing ``number`` sets a mean of states of which there are too few before ``at``."""
        return "mean" in self._change(number) and not self.states(number, at)

    def _first_state(self, change: Change) -> int:
        """Return the first state that a firing may need, which is not the initial weights."""
        apart = change.get("apart", 10)
        return max(apart, ((self.after + 1) // apart - change["mean"]) * apart)

    @property
    def first_states(self) -> list[int]:
        """The steps of the first states that its changes may need."""
        return [self._first_state(change) for change in self.do if "mean" in change]

    def asks_gain(self, number: int) -> bool:
        """Return whether the firing ``number`` sets the learning rate by the gain."""
        return BY_GAIN in self._change(number)

    def of_loops(self, number: int) -> list[str]:
        """Return the keys of a change that only a loop of your own can make."""
        return [key for key in _OF_LOOPS if key in self._change(number)]


def fields_of(change: Change) -> dict[str, Number]:
    """Return the fields that a change sets to written values."""
    others = (*_MEASURED, *_entry_keys(change), *_OF_LOOPS)
    return {name: value for name, value in change.items() if name not in others}


def _entry_keys(change: Change) -> tuple[str, ...]:
    """Return the keys of ``change`` that are keys of an entry; a weight decay without a group is a field."""
    return tuple(key for key in OF_ENTRIES if key in change and (key != "weight_decay" or "group" in change))


def _lasting(change: Change) -> bool:
    """Return whether a change lasts without setting a field."""
    return any(key in HELD or key == "data" for key in _entry_keys(change))


def _entry(at: int, change: Change, fields: Mapping[str, Number], **length: Any) -> dict[str, Any]:
    """Return an intervention with ``fields`` and the rest of ``change`` as plain data; empty if it has none."""
    others = _kept(change, *_entry_keys(change))
    return Intervention(at=at, set=fields, **length, **others).model_dump() if fields or others else {}


def _all_fields(change: Change, measured: Mapping[str, float]) -> dict[str, Number]:
    """Return the fields that a change sets, with ``measured`` numbers for the measured ones."""
    return {**fields_of(change), **{field: measured[field] for key, field in _MEASURED.items() if key in change}}


def _some_step(change: Change) -> int:
    """Return a step at which an entry has a meaning: a mean has states before it."""
    return _LATE if "mean" in change else 0


def _canonical(change: Change) -> dict[str, Any]:
    if not change:
        known = ", ".join((*OF_ENTRIES, *_OF_LOOPS, QUANTILE))
        raise ValueError(f"a change is empty: give it a field, {known} or {BY_GAIN}")
    quantile = change.get(QUANTILE, 1.0)
    if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile <= 1:
        raise ValueError(f"{QUANTILE} = {quantile!r:.40} is not a number above 0 and up to 1")
    for key in (BY_GAIN, STOP):
        if change.get(key, True) is not True:
            raise ValueError(f"{key} = {change[key]!r:.40} is not true: leave it out to switch it off")
    if type(back := change.get(BACK, 1)) is not int or back < 1:
        raise ValueError(f"{BACK} = {back!r:.40} is not a positive number of steps")
    if "apart" in change and "mean" not in change:
        raise ValueError("apart says how far the states of a mean are apart: give it mean too")
    for key, field in _MEASURED.items():
        if key in change and field in change:
            raise ValueError(f"{field} and {key} set the same field: keep one of the two")
    entry = _entry(_some_step(change), change, _all_fields(change, _PLACEHOLDERS))
    measured = {**({QUANTILE: float(quantile)} if QUANTILE in change else {}), **_kept(change, BY_GAIN)}
    own = {name: value for name, value in entry.get("set", {}).items() if name in change}
    return {**own, **_kept(entry, *_entry_keys(change)), **_kept(change, *_OF_LOOPS), **measured}


def _kept(change: Change, *keys: str) -> dict[str, Any]:
    return {key: change[key] for key in keys if key in change}


class Controlled(Holding, Protocol):
    """The part of a training configuration that is read here."""

    @property
    def control(self) -> tuple[Rule, ...]:
        """The rules."""

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that can be read with these settings."""

    @property
    def is_own_loop(self) -> bool:
        """Whether it is a training loop of the user's own."""


Config = TypeVar("Config", bound=Controlled)


def may_set(rules: Iterable[Rule]) -> list[Mapping[str, Number]]:
    """Return the fields that rules may set, with values or factors; measured numbers are placeholders."""
    return [_all_fields(change, _PLACEHOLDERS) for rule in rules for change in rule.do]


def first_reading(rules: Sequence[Rule]) -> float:
    """Return the first step that any of the rules reads, or keeps the weights of; infinite without rules."""
    return min((step for rule in rules for step in (rule.after, *rule.first_states)), default=math.inf)


@dataclass(frozen=True, slots=True)
class KeptStates:
    """The states that the rules of a member may need: ``number`` multiples of ``apart``, from the step ``first`` on."""

    apart: int
    number: int
    first: int

    def keeps(self, step: int) -> bool:
        """Return whether the weights before ``step`` are kept."""
        return step >= self.first and step % self.apart == 0

    def place(self, step: int) -> int:
        """Return where the state of ``step`` is, among as many as are kept."""
        return step // self.apart % self.number


def kept_states(rules: Sequence[Rule]) -> KeptStates | None:
    """Return which states rules may need, or None. Raises ValueError for states at several distances."""
    means = [change for rule in rules for change in rule.do if "mean" in change]
    if not means:
        return None
    distances = sorted({change.get("apart", 10) for change in means})
    if len(distances) > 1:
        known = " and ".join(map(str, distances))
        raise ValueError(f"control has means of states {known} steps apart: choose one distance for all rules")
    first = min(step for rule in rules for step in rule.first_states)
    # The newest state is not yet good when a rule fires.
    return KeptStates(distances[0], max(change["mean"] for change in means) + 1, first)


def with_fired(config: Config, fired: Sequence[Mapping[str, Any]]) -> Config:
    """Return ``config`` with its rules' changes among its interventions, after its own ones of the same step."""
    if not fired:
        return config
    fields = Intervention.model_fields
    known = [{key: value for key, value in firing["did"].items() if key in fields} for firing in fired]
    changes = [Intervention.model_validate(entry, strict=False) for entry in known if len(entry) > 1]
    entries = [*config.interventions, *changes]
    return config.model_copy(update={"interventions": tuple(sorted(entries, key=lambda entry: entry.at))})


def acted(config: Mapping[str, Any], fired: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a configuration as plain data, with the changes of its rules as interventions in place of the rules."""
    entries = [*(config.get("interventions") or ()), *(firing["did"] for firing in fired)]
    kept = {name: value for name, value in config.items() if name not in ("interventions", "control")}
    return {**kept, **({"interventions": sorted(entries, key=lambda entry: entry["at"])} if entries else {})}


def check_rules(config: Controlled) -> None:
    """Raise ValueError for a rule without a meaning in these settings; the message names the remedy."""
    for number, rule in enumerate(config.control, 1):
        here = f"control rule {number}"
        if rule.on not in config.signals:
            settings = f"these settings, with optimizer {config.optimizer}, do"
            problem = f"{'a training loop of your own does' if config.is_own_loop else settings} not have this signal"
            raise ValueError(f"{here} cannot read {rule.on}: {problem}; choose from {', '.join(config.signals)}")
        if rule.after + 1 >= config.steps:
            raise ValueError(f"{here} first reads step {rule.after}, which is too late: steps = {config.steps}")
        for firing in range(1, len(rule.do) + 1):
            if rule.asks_gain(firing) and "gain" not in config.signals:
                problem = f"{BY_GAIN} needs the gain, which is measured only by gpt with accumulate above 1"
                raise ValueError(f"{here}, change {firing}: {problem}")
            if (keys := rule.of_loops(firing)) and not config.is_own_loop:
                problem = "acts in a training loop of your own; built-in objectives have the field rollback"
                raise ValueError(f"{here}, change {firing}: {keys[0]} {problem}")
            # Clashes among the configuration's own interventions are reported elsewhere.
            did = {"did": rule.did(firing, rule.after + 1, _PLACEHOLDERS)}
            alone = with_fired(config.model_copy(update={"interventions": ()}), [did])
            try:
                check_entries(alone)
            except ValueError as error:
                entry = f"interventions at {rule.after + 1}"
                message = str(error).replace(f"{entry} have", "it has").replace(entry, "it")
                message = message.replace("interventions make", "it makes")
                raise ValueError(f"{here}, change {firing}: {message}") from None
    kept_states(config.control)
    _check_nulls(config)
    _check_extremes(config)


def _all_sets(config: Controlled) -> list[Mapping[str, Number]]:
    return [*(entry.set for entry in config.interventions), *may_set(config.control)]


def _check_nulls(config: Controlled) -> None:
    """Reject a factor or a ramp on a field that is null at the start, or that a change sets to null."""
    all_sets = _all_sets(config)
    for number, rule in enumerate(config.control, 1):
        for change in rule.do:
            for name, value in fields_of(change).items():
                is_null = getattr(config, name) is None or any(fields.get(name, 0) is None for fields in all_sets)
                if is_null and (factor_of(value) is not None or rule.over):
                    kind = "a ramp" if rule.over else "a factor"
                    raise ValueError(f"control rule {number} has {kind} on {name}, which may be null: write a number")


def _check_extremes(config: Controlled) -> None:
    """Reject rules whose factors leave the domain of a field if every rule fires as often as it may."""
    for name in dict.fromkeys(name for fields in may_set(config.control) for name in fields):
        written = [fields[name] for fields in _all_sets(config) if name in fields]
        bases = {value for value in (getattr(config, name), *written) if isinstance(value, int | float) and value}
        changes = [(rule.at_most, change.get(name)) for rule in config.control for change in rule.do]
        changes += [(1, entry.set.get(name)) for entry in config.interventions]
        factors = [(times, factor) for times, change in changes if (factor := factor_of(change)) is not None]
        for is_rise in (True, False):
            powers = [(times, factor) for times, factor in factors if (factor > 1) == is_rise]
            for base in bases:
                value = base * _product(powers)
                if problem := problem_with_value(config, name, value):
                    extreme = f"control may make {name} {value:g} if all factors on it act as often as they may"
                    raise ValueError(f"{extreme}, which is out of range: {problem}")


def _product(powers: Sequence[tuple[int, float]]) -> float:
    """Return the product of factors with their powers; infinite on overflow."""
    try:
        return math.prod(factor**number for number, factor in powers)
    except OverflowError:
        return math.inf
