"""Metadata of configuration fields: unit, domain, whether members may differ in it, and when it acts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """When a field acts: a test of the other settings, and words that complete "it acts where"."""

    text: str
    holds: Callable[[Settings], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(f"{self.text} and {other.text}", lambda values: self.holds(values) and other.holds(values))


def when(name: str, *values: Any) -> Condition:
    """Return the condition that the setting ``name`` has one of ``values``."""
    return Condition(f"{name} is {' or '.join(map(_word, values))}", lambda settings: settings[name] in values)


def unless(name: str, value: Any) -> Condition:
    """Return the condition that the setting ``name`` differs from ``value``."""
    return Condition(f"{name} is not {_word(value)}", lambda settings: settings[name] != value)


def _word(value: Any) -> str:
    """Return the value as written in a sweep file."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


ALWAYS = Condition("", lambda settings: True)


def per_member(
    default: Any,
    unit: str,
    description: str,
    *,
    acts: Condition = ALWAYS,
    off: bool = False,
    changes: bool = False,
    **domain: Any,
) -> Any:
    """Declare a field that may differ between the members of a pack.

    The field belongs to a trial only if its condition ``acts`` holds. ``off`` means that the default switches a feature
    off: training is then the same as without the field, so it does not belong to the trial either. A field of an
    objective with ``changes`` is read at each step, so interventions may set it.
    """
    return _field(default, unit, description, domain, per_member=True, acts=acts, off=off, changes=changes)


def structural(
    default: Any, unit: str, description: str, *, acts: Condition = ALWAYS, off: bool = False, **domain: Any
) -> Any:
    """Declare a field with one value for all members of a pack; ``acts`` and ``off`` as in ``per_member``."""
    return _field(default, unit, description, domain, per_member=False, acts=acts, off=off)


def _field(default: Any, unit: str, description: str, domain: Mapping[str, Any], **facts: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"unit": unit, **facts}, **domain)


def condition_of(field: FieldInfo) -> Condition:
    """Return when a field acts."""
    return _facts(field).get("acts", ALWAYS)


def unit_of(field: FieldInfo) -> str:
    """Return the unit of a field in words, or "" without one."""
    return str(_facts(field).get("unit", ""))


def is_per_member(field: FieldInfo) -> bool:
    """Return whether a field may differ between the members of a pack."""
    return bool(_facts(field).get("per_member"))


def can_change(field: FieldInfo) -> bool:
    """Return whether a field of an objective is read at each step where it acts."""
    return bool(_facts(field).get("changes"))


def may_change(field: FieldInfo, settings: Settings) -> bool:
    """Return whether an objective's field is read at each step with these ``settings``, so that it may change."""
    return can_change(field) and condition_of(field).holds(settings)


def is_feature(field: FieldInfo) -> bool:
    """Return whether a field switches on a feature that is off by default."""
    return bool(_facts(field).get("off"))


def acting(config: BaseModel) -> dict[str, Any]:
    """Return the fields that affect the training of ``config``, as plain data. Only these belong to a trial."""
    fields, inert = type(config).model_fields, inert_fields(config)
    return {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if name not in inert and not (is_feature(fields[name]) and value == _as_json(fields[name].default))
    }


def inert_fields(config: BaseModel) -> set[str]:
    """Return the fields that cannot act with these settings. A feature that is off can act: it may be switched on.

    A field also acts if its condition holds with a value that an intervention or a control rule sets.
    """
    settings, fields = config.model_dump(mode="json"), type(config).model_fields
    phases = [settings, *_with_interventions(settings)]
    return {name for name in settings if not any(condition_of(fields[name]).holds(phase) for phase in phases)}


def _with_interventions(settings: Settings) -> Iterator[Settings]:
    """Yield the settings with the values of each later change. A factor leaves a feature on or off."""
    entries = settings.get("interventions", ())
    changes = [{**entry.get("set", {}), **_own_fields(entry)} for entry in entries]
    changes += [change for rule in settings.get("control", ()) for change in rule["do"]]
    for change in changes:
        numbers = {name: value for name, value in change.items() if name in settings and not isinstance(value, str)}
        if numbers:
            yield {**settings, **numbers}


def _own_fields(entry: Settings) -> Settings:
    """Return the fields that an entry sets for a group of weights."""
    return {"weight_decay": entry["weight_decay"]} if entry.get("weight_decay") is not None else {}


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def with_features_off(config_class: type[BaseModel], config: Settings) -> dict[str, Any]:
    """Return the settings ``config`` of a trial, plus the features that it could have and that are off."""
    defaults, features = _defaults_and_features(config_class)
    settings = {**defaults, **config}
    off = {name: defaults[name] for name, acts in features if name not in config and acts.holds(settings)}
    return {**config, **off}


@functools.lru_cache(maxsize=64)
def _defaults_and_features(config_class: type[BaseModel]) -> tuple[Settings, Sequence[tuple[str, Condition]]]:
    """Return the defaults of all fields, and the features with their conditions."""
    fields = config_class.model_fields
    features = [(name, condition_of(field)) for name, field in fields.items() if is_feature(field)]
    return {name: field.default for name, field in fields.items()}, features


def third_of_depth(block: int, depth: int) -> str:
    """Return the third of the depth with the middle of a block: ``shallow``, ``middle`` or ``deep``.

    Blocks count from 0.
    """
    middle = 3 * (2 * block + 1)  # of the block, in sixths of a block
    return "shallow" if middle < 2 * depth else "middle" if middle <= 4 * depth else "deep"


def _facts(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
