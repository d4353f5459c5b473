"""What can be swept or fixed: the fields of an objective, or the placeholders of a custom trainer."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from objectives.base import Objective, TrainingConfig
from objectives.fields import acting, condition_of, inert_fields
from orchestrator.space import frozen
from orchestrator.sweepfile.own_trainer import GIVEN, OwnTrainer

_NAME = re.compile(r"[A-Za-z]\w{0,63}")


class Resolved(NamedTuple):
    """A trial's configuration, and which of the names that were given do not act in it."""

    config: dict[str, Any]
    inert: frozenset[str] = frozenset()


class Fields(Protocol):
    """What a sweep file may name under ``axes`` and ``fixed``, and the configuration that comes of it."""

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """What is wrong with ``value`` for the field ``name``, and the remedy; None where nothing is."""

    def is_known(self, name: str) -> bool:
        """Whether there is such a field."""

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether a range from one to the other of ``ends``, as they were written, holds whole numbers only."""

    def canonical(self, name: str, value: Any) -> Any:
        """The one spelling of ``value``: what a field takes for the same must be the same trial."""

    def names_files(self, name: str) -> bool:
        """Whether values of ``name`` are patterns of files."""

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """A trial's configuration. Raises ValueError where values do not go together."""

    def acts_where(self, name: str) -> str:
        """In words, the settings beside which ``name`` acts."""


class ObjectiveFields:
    """The typed fields of an objective's configuration."""

    def __init__(self, objective: Objective) -> None:
        self._objective, self._config_class = objective, objective.config_class

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """What is wrong with ``value`` for the field ``name``, and the remedy; None where nothing is."""
        if name == "steps":
            return "is not swept or fixed here", "set the top-level key `steps`"
        fields = self._config_class.model_fields
        if name not in fields:
            known = [field for field in fields if field != "steps"]
            remedy = did_you_mean(name, known) or f"`sweep objectives` lists the fields of {self._objective.name}"
            return f"unknown field of {self._objective.name}", remedy
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
        """Whether the field takes whole numbers only."""
        annotation = self._config_class.model_fields[name].annotation
        return annotation is int or annotation == int | None

    def canonical(self, name: str, value: Any) -> Any:
        """1 and 1.0 are one learning rate: the field's type decides."""
        annotation = self._config_class.model_fields[name].annotation
        if isinstance(value, int) and not isinstance(value, bool) and annotation in (float, float | None):
            return float(value)
        return frozen(value)

    def names_files(self, name: str) -> bool:
        """Whether values of ``name`` are patterns of files: those of a field ``text``."""
        return name == "text" and self._config_class.model_fields[name].annotation == tuple[str, ...]

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """What acts, and the values of the cell that do not: the cells of a sweep are trials of their own.

        Raises ValueError where values do not go together.
        """
        try:
            config = self._config_class(steps=steps, **fixed, **cell)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        inert = inert_fields(config)
        asked = config.model_dump(mode="json", include=inert & cell.keys())
        return Resolved({**acting(config), **asked}, frozenset(inert & (fixed.keys() | cell.keys())))

    def acts_where(self, name: str) -> str:
        """In words, the settings beside which ``name`` acts."""
        return condition_of(self._config_class.model_fields[name]).text


class OwnFields:
    """Names that the user has made up for a trainer of their own."""

    def __init__(self, own: OwnTrainer) -> None:
        self._own = own

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """What is wrong with ``value`` for the name ``name``, and the remedy; None where nothing is."""
        if name == "steps":
            return "is not swept or fixed here", "set the top-level key `steps`"
        if name in GIVEN:
            return "is what sweep itself gives a trainer", f"choose another name than {', '.join(sorted(GIVEN))}"
        if not _NAME.fullmatch(name):
            return f"{shown(name)} is no name for a placeholder", "use letters, digits and _"
        if not self._own.uses(name):
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
        return bool(_NAME.fullmatch(name)) and name not in GIVEN and self._own.uses(name)

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether both ends were written as whole numbers: 8 and 64, not 8.0."""
        return all(isinstance(end, int) and not isinstance(end, bool) for end in ends)

    def canonical(self, name: str, value: Any) -> Any:
        """As it was written: a script may tell 1 from 1.0."""
        return frozen(value)

    def names_files(self, name: str) -> bool:
        """Never: what a command makes of a word is not known."""
        return False

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """A trial's configuration: its values and what is run with them. Raises ValueError."""
        return Resolved(self._own.resolve(steps, {**fixed, **cell}))

    def acts_where(self, name: str) -> str:
        """Everywhere: what a command makes of a word is not known."""
        return ""


def fields_of(objective: Objective | OwnTrainer) -> Fields:
    """What can be swept and fixed of ``objective``."""
    return OwnFields(objective) if isinstance(objective, OwnTrainer) else ObjectiveFields(objective)


@functools.lru_cache(maxsize=512)
def _field_checker(config_class: type[TrainingConfig], name: str) -> TypeAdapter[Any]:
    field = config_class.model_fields[name]
    return TypeAdapter(
        Annotated[field.annotation, field],  # type: ignore[name-defined]
        config=ConfigDict(strict=True, allow_inf_nan=False),
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt word, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def lowered(message: str) -> str:
    """``message`` as the part of a sentence."""
    return message[:1].lower() + message[1:]


def shown(value: Any) -> str:
    """``value`` in few characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
