"""What can be swept or fixed: the fields of an objective, or the placeholders of a custom trainer."""

from __future__ import annotations

import functools
import glob
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from objectives.base import Objective, TrainingConfig
from objectives.fields import acting, condition_of, inert_fields, unit_of
from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import frozen, is_number
from orchestrator.sweepfile.custom_trainer import GIVEN, CustomTrainer
from orchestrator.sweepfile.entry_values import ENTRY_FIELDS, canonical_entries, entries_problem
from orchestrator.sweepfile.global_batch import GLOBAL
from orchestrator.sweepfile.shares import is_share, share_problem

# A step of a trial has as many tokens as the product of its batch, called by one of these names, and its context.
BATCH_NAMES, CONTEXT = (GLOBAL, "batch_size"), "context"
_SURE_DIGITS = 15  # that every double keeps
_NAME = re.compile(r"[A-Za-z]\w{0,63}")


class Resolved(NamedTuple):
    """A trial's configuration, and the given names that do not act in it."""

    config: dict[str, Any]
    inert: frozenset[str] = frozenset()


class Fields(Protocol):
    """The names that a sweep file may use under ``axes`` and ``fixed``, and the configuration they give."""

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """The problem of ``value`` for the field ``name`` and its remedy; None without one."""

    def is_known(self, name: str) -> bool:
        """Whether there is such a field."""

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether a range between ``ends``, as they were written, holds whole numbers only."""

    def canonical(self, name: str, value: Any) -> Any:
        """The canonical form of ``value``: values that a field treats as equal must give the same trial."""

    def computed(self, name: str, value: float) -> Any:
        """A computed number as a value of the field ``name``: a whole one where the field takes no other."""

    def names_files(self, name: str) -> bool:
        """Whether values of ``name`` are file patterns."""

    def counts_steps(self, name: str) -> bool:
        """Whether values of ``name`` are numbers of steps, which may be written as a share of all steps."""

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """The tokens of one step of a trial with these ``settings``. Raises ValueError where they do not say."""

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """A trial's configuration. Raises ValueError where values are incompatible."""

    def acts_where(self, name: str) -> str:
        """In words, the settings under which ``name`` acts."""


class ObjectiveFields:
    """The typed fields of an objective's configuration."""

    def __init__(self, objective: Objective) -> None:
        self._objective, self._config_class = objective, objective.config_class

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """The problem of ``value`` for the field ``name`` and its remedy; None without one."""
        if name == "steps":
            return "is not swept or fixed here", "set the top-level key `steps`"
        fields = self._config_class.model_fields
        if name not in fields:
            known = [field for field in fields if field != "steps"]
            remedy = did_you_mean(name, known) or f"`sweep objectives` lists the fields of {self._objective.name}"
            return f"unknown field of {self._objective.name}", remedy
        if name in ENTRY_FIELDS:
            return entries_problem(name, value)
        if is_share(value) and self.counts_steps(name):
            return share_problem(value)
        try:
            _field_checker(self._config_class, name).validate_python(frozen(value))
        except ValidationError as error:
            message = lowered(error.errors()[0]["msg"])
            return f"{shown(value)} is refused: {message}", f"{name} is the {fields[name].description}"
        return None

    def is_known(self, name: str) -> bool:
        """Whether there is such a field."""
        return name in self._config_class.model_fields

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether the field accepts whole numbers only."""
        annotation = self._config_class.model_fields[name].annotation
        return annotation is int or annotation == int | None

    def canonical(self, name: str, value: Any) -> Any:
        """1 and 1.0 are the same learning rate: the field's type decides."""
        if name in ENTRY_FIELDS:
            return canonical_entries(name, value)
        annotation = self._config_class.model_fields[name].annotation
        if isinstance(value, int) and not isinstance(value, bool) and annotation in (float, float | None):
            return float(value)
        return frozen(value)

    def computed(self, name: str, value: float) -> Any:
        """Rounded to a whole number where the field takes no other, else to the digits that a computation keeps."""
        return round(value) if self.is_integer(name, ()) else self.canonical(name, without_noise(value))

    def names_files(self, name: str) -> bool:
        """Whether values of ``name`` are file patterns: those of the fields of texts."""
        return name in ("text", "shift_text") and self._config_class.model_fields[name].annotation == tuple[str, ...]

    def counts_steps(self, name: str) -> bool:
        """Whether the unit of the field is steps, or a step."""
        return name in ENTRY_FIELDS or unit_of(self._config_class.model_fields[name]) in ("step", "steps")

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """Batch size times context, of which one that is not given has its default."""
        return self._objective.tokens_per_step(settings)

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """The acting fields, and the cell's values that do not act: each cell of a sweep has trials of its own.

        Raises ValueError where values are incompatible.
        """
        try:
            config = self._config_class(steps=steps, **fixed, **cell)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        inert = inert_fields(config)
        asked = config.model_dump(mode="json", include=inert & cell.keys())
        return Resolved({**acting(config), **asked}, frozenset(inert & (fixed.keys() | cell.keys())))

    def acts_where(self, name: str) -> str:
        """In words, the settings under which ``name`` acts."""
        return condition_of(self._config_class.model_fields[name]).text


class CustomFields:
    """User-defined names for a custom trainer. Those of ``counted`` are used by sweep itself, if not by the command."""

    def __init__(self, own: CustomTrainer, counted: Collection[str]) -> None:
        self._own, self._counted = own, counted

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """The problem of ``value`` for the name ``name`` and its remedy; None without one."""
        if name == "steps":
            return "is not swept or fixed here", "set the top-level key `steps`"
        if name in GIVEN:
            return "is what sweep itself gives a trainer", f"choose another name than {', '.join(sorted(GIVEN))}"
        if not _NAME.fullmatch(name):
            return f"{shown(name)} is no name for a placeholder", "use letters, digits and _"
        if not self._uses(name):
            return f"no part of the command uses {{{name}}}", f"write {{{name}}} in objective.command, or {{config}}"
        if isinstance(value, str) and "\0" in value:
            return f"{shown(value)} holds a NUL, which no command takes", "leave it out"
        if not isinstance(value, str | bool | int | float | None):
            return f"{shown(value)} is refused: a value is a number, a word, true, false or null", "write one value"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value} is refused: not a finite number", "write a number"
        return None

    def is_known(self, name: str) -> bool:
        """Whether the command uses it."""
        return bool(_NAME.fullmatch(name)) and name not in GIVEN and self._uses(name)

    def _uses(self, name: str) -> bool:
        return name in self._counted or self._own.uses(name)

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether both ends were written as whole numbers: 8 and 64, not 8.0."""
        return all(isinstance(end, int) and not isinstance(end, bool) for end in ends)

    def canonical(self, name: str, value: Any) -> Any:
        """As written: a script may distinguish 1 from 1.0."""
        return frozen(value)

    def computed(self, name: str, value: float) -> Any:
        """Whole numbers stay whole, and others are rounded to the digits that a computation keeps."""
        return without_noise(value)

    def names_files(self, name: str) -> bool:
        """Never: the command's use of a word is not known."""
        return False

    def counts_steps(self, name: str) -> bool:
        """Never: ``5%`` is a word that the command gets as it is written."""
        return False

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """Batch times context. Raises ValueError where one of them is no number above zero."""
        settings = self._own.with_whole_batch(settings)
        batch = next(name for name in BATCH_NAMES if name in settings)
        for name in (batch, CONTEXT):
            if not is_number(settings.get(name)) or settings[name] <= 0:
                raise ValueError(
                    f"{name} = {shown(settings.get(name))} is no number above 0, and tokens are counted with it"
                )
        return settings[batch] * settings[CONTEXT]

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """A trial's configuration: its values and what is run with them. Raises ValueError."""
        return Resolved(self._own.resolve(steps, {**fixed, **cell}))

    def acts_where(self, name: str) -> str:
        """Everywhere: the command's use of a word is not known."""
        return ""


def without_noise(value: float) -> float:
    """``value`` without the error of its last digits: 0.3 for 0.1 * 3, so that it is the same trial as 0.3."""
    return value if isinstance(value, int) else float(f"{value:.{_SURE_DIGITS}g}")


def fields_of(objective: Objective | CustomTrainer, counted: Collection[str]) -> Fields:
    """The fields of ``objective`` that can be swept and fixed; those ``counted`` need not be used by a command."""
    return CustomFields(objective, counted) if isinstance(objective, CustomTrainer) else ObjectiveFields(objective)


@functools.lru_cache(maxsize=512)
def _field_checker(config_class: type[TrainingConfig], name: str) -> TypeAdapter[Any]:
    field = config_class.model_fields[name]
    checked: Any = Annotated[field.annotation, field]  # type: ignore[name-defined,valid-type,unused-ignore]
    return TypeAdapter(
        checked,
        config=ConfigDict(strict=True, allow_inf_nan=False),
    )


def lowered(message: str) -> str:
    """``message`` as part of a sentence."""
    return message[:1].lower() + message[1:]


def shown(value: Any) -> str:
    """``value`` in few characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def absolute_text(patterns: Sequence[str], where: str, key: str, problems: list[Problem]) -> tuple[str, ...]:
    """Makes relative paths absolute, since workers have other working directories."""
    absolute = []
    for pattern in patterns:
        full = str(Path(os.path.expanduser(pattern)).absolute())
        absolute.append(full)
        if not os.path.exists(full) and not _matches(full):
            message = f"{shown(pattern)} matches no file"
            problems.append(Problem(where, key, message, "paths are relative to where you stand"))
    return tuple(absolute)


def _matches(pattern: str) -> bool:
    try:
        return any(True for _ in glob.iglob(pattern, recursive=True))
    except (OSError, ValueError, RecursionError):  # too long, a NUL, too many folders
        return False
